"""Scored sentence pairs from SentEval's folder and from a user's file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from contrasent.data.hub import dataset_parts
from contrasent.data.readers import lines, tab_rows
from contrasent.data.senteval import DATA_VARIABLE, default_folder, senteval_root
from contrasent.errors import DataError
from contrasent.evaluate.pairs import Pair, columns_of, is_number, pair, read_pairs, score_of
from contrasent.evaluate.tasks import ALL_SPLITS, SUBSETS, TaskName
from contrasent.files import sha256_of
from contrasent.metrics import Vector

_STSB = "STS/STSBenchmark/sts-{}.csv"
_SICK = {
    "train": "SICK/SICK_train.txt",
    "dev": "SICK/SICK_trial.txt",
    "test": "SICK/SICK_test_annotated.txt",
}


class MissingDataError(DataError):
    """A task's files are not there; the message says which, and how to get them.

    Attributes:
        path: the first file that is missing.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is missing; {how_to_get_data()}")
        self.path = path


def how_to_get_data() -> str:
    """What a user without SentEval's data can do."""
    return (
        f"get SentEval's data with 'contrasent data fetch' (into {default_folder()}), or name a "
        f"folder in its layout with --data-dir or {DATA_VARIABLE}"
    )


@dataclass(frozen=True, slots=True)
class Subset:
    """Pairs that are scored together.

    Attributes:
        name: such as ``MSRpar``; empty if the task has one part only.
        first: N sentences.
        second: N sentences; ``second[i]`` is compared with ``first[i]``.
        gold: ``(N,)``, how similar people found them.
    """

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    gold: Vector


@dataclass(frozen=True, slots=True)
class Task:
    """One split of a task, read.

    Attributes:
        name: which task and split.
        subsets: its parts, in SentEval's order.
        sha256: hash of the bytes of its files, one after the other; of the splits' hashes where
            several are scored together.
        note: how the file was understood, where that had to be guessed; else empty.
    """

    name: TaskName
    subsets: tuple[Subset, ...]
    sha256: str
    note: str = ""


def load(
    name: TaskName,
    data_dir: str | Path | None = None,
    columns: Sequence[str] | None = None,
) -> Task:
    """Read one task.

    Sentences are split at white space and joined by single spaces, as SentEval's batcher does.

    Args:
        name: the task and its split.
        data_dir: SentEval's folder, or one that holds it; else ``CONTRASENT_DATA``, else the
            folder that ``contrasent data fetch`` fills. Not used for a user's file.
        columns: of a user's file, as :func:`contrasent.evaluate.pairs.read_pairs` takes them.

    Raises:
        MissingDataError: a file is not there.
        DataError: a file does not hold what it should; the message names file and line.
    """
    if name.name in SUBSETS:
        return _semeval(name, senteval_root(data_dir))
    if name.name not in ("stsb", "sickr"):
        return _pairs_file(name, columns)
    if name.split == "all":
        return _together(name, [load(TaskName(name.name, s), data_dir) for s in ALL_SPLITS])
    if name.name == "stsb":
        return _one_file(name, senteval_root(data_dir) / _STSB.format(name.split), (5, 6, 4))
    return _one_file(name, senteval_root(data_dir) / _SICK[name.split], (1, 2, 3))


def _together(name: TaskName, splits: Sequence[Task]) -> Task:
    """The pairs of several splits as those of one."""
    parts = [subset for task in splits for subset in task.subsets]
    first = tuple(sentence for part in parts for sentence in part.first)
    second = tuple(sentence for part in parts for sentence in part.second)
    gold = np.concatenate([part.gold for part in parts])
    digest = hashlib.sha256(" ".join(task.sha256 for task in splits).encode())
    return Task(name, (Subset("", first, second, gold),), digest.hexdigest())


def _semeval(name: TaskName, root: Path) -> Task:
    folder = root / "STS" / f"{name.name.upper()}-en-test"
    digest = hashlib.sha256()
    subsets = []
    for subset in SUBSETS[name.name]:
        sentences = folder / f"STS.input.{subset}.txt"
        scores = folder / f"STS.gs.{subset}.txt"
        for path in (sentences, scores):
            _require(path)
            digest.update(path.read_bytes())
        subsets.append(_subset(subset, list(_aligned(sentences, scores)), scores))
    return Task(name, tuple(subsets), digest.hexdigest())


def _aligned(sentences: Path, scores: Path) -> Iterator[Pair]:
    """Pairs and their scores, line by line; a pair with an empty score line was not scored."""
    pairs, gold = list(tab_rows(sentences)), list(lines(scores))
    if len(pairs) != len(gold):
        raise DataError(
            f"{scores} has {len(gold)} lines, but {sentences} has {len(pairs)}; "
            "line n of one must belong to line n of the other"
        )
    for (number, cells), (_, score) in zip(pairs, gold, strict=True):
        if len(cells) != 2:
            raise DataError(
                f"{sentences}:{number}: {len(cells)} tab-separated columns instead of 2 sentences"
            )
        if score.strip():
            where = f"{sentences}:{number}"
            yield pair(where, cells[0], cells[1], score_of(score, f"{scores}:{number}"))


def _one_file(name: TaskName, path: Path, columns: tuple[int, int, int]) -> Task:
    """Read STS-B or SICK: tab-separated, quotes literal; SICK starts with a header.

    Args:
        name: the task.
        path: its file.
        columns: where both sentences and the score are, from 0.
    """
    _require(path)
    first, second, score = columns
    header = name.name == "sickr"
    rows: list[Pair] = []
    for number, cells in tab_rows(path):
        if len(cells) <= max(columns):
            raise DataError(
                f"{path}:{number}: {len(cells)} tab-separated columns; the score and both "
                f"sentences of {name.heading} need {max(columns) + 1}"
            )
        if number > 1 or not header:
            where = f"{path}:{number}"
            rows.append(pair(where, cells[first], cells[second], score_of(cells[score], where)))
        elif is_number(cells[score]):
            raise DataError(f"{path}:1: expected SICK's header line, found a scored pair")
    return Task(name, (_subset("", rows, path),), sha256_of(path))


def _pairs_file(name: TaskName, columns: Sequence[str] | None) -> Task:
    path = Path(name.name).expanduser()
    if not path.exists() and not dataset_parts(name.name):
        raise DataError(f"no file {path}; a task is one of the STS names or a file of pairs")
    source = str(path) if path.exists() else name.name
    pairs, sha256, note = read_pairs(source, columns)
    return Task(name, (Subset("", *columns_of(pairs)),), sha256, note)


def _subset(name: str, rows: Sequence[Pair], path: Path) -> Subset:
    if not rows:
        raise DataError(f"{path} has no scored pair")
    return Subset(name, *columns_of(rows))


def _require(path: Path) -> None:
    if not path.is_file():
        raise MissingDataError(path)
