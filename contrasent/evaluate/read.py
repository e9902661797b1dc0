"""Scored sentence pairs from SentEval's folder and from a user's file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np

from contrasent.data.readers import comma_rows, lines, tab_rows
from contrasent.data.senteval import DATA_VARIABLE, default_folder, senteval_root
from contrasent.errors import DataError
from contrasent.evaluate.tasks import SUBSETS, TaskName
from contrasent.files import sha256_of
from contrasent.metrics import Vector

_STSB = "STS/STSBenchmark/sts-{}.csv"
_SICK = {
    "train": "SICK/SICK_train.txt",
    "dev": "SICK/SICK_trial.txt",
    "test": "SICK/SICK_test_annotated.txt",
}
_LEAST_PAIRS = 3


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
        sha256: hash of the bytes of its files, one after the other.
        note: how the file was understood, where that had to be guessed; else empty.
    """

    name: TaskName
    subsets: tuple[Subset, ...]
    sha256: str
    note: str = ""


Row = tuple[str, str, float]


def load(name: TaskName, data_dir: str | Path | None = None) -> Task:
    """Read one task.

    Sentences are split at white space and joined by single spaces, as SentEval's batcher does.

    Args:
        name: the task and its split.
        data_dir: SentEval's folder, or one that holds it; else ``CONTRASENT_DATA``, else the
            folder that ``contrasent data fetch`` fills. Not used for a user's file.

    Raises:
        MissingDataError: a file is not there.
        DataError: a file does not hold what it should; the message names file and line.
    """
    if name.name in SUBSETS:
        return _semeval(name, senteval_root(data_dir))
    if name.name == "stsb":
        return _one_file(name, senteval_root(data_dir) / _STSB.format(name.split), (5, 6, 4))
    if name.name == "sickr":
        return _one_file(name, senteval_root(data_dir) / _SICK[name.split], (1, 2, 3))
    return _pairs_file(name)


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


def _aligned(sentences: Path, scores: Path) -> Iterator[Row]:
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
            yield _row(where, cells[0], cells[1], _number(score, f"{scores}:{number}"))


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
    rows: list[Row] = []
    for number, cells in tab_rows(path):
        if len(cells) <= max(columns):
            raise DataError(
                f"{path}:{number}: {len(cells)} tab-separated columns; the score and both "
                f"sentences of {name.heading} need {max(columns) + 1}"
            )
        if number > 1 or not header:
            where = f"{path}:{number}"
            rows.append(_row(where, cells[first], cells[second], _number(cells[score], where)))
        elif _is_number(cells[score]):
            raise DataError(f"{path}:1: expected SICK's header line, found a scored pair")
    return Task(name, (_subset("", rows, path),), sha256_of(path))


def _pairs_file(name: TaskName) -> Task:
    path = Path(name.name).expanduser()
    if not path.is_file():
        raise DataError(f"no file {path}; a task is one of the STS names or a file of pairs")
    note = ""
    rows: list[Row] = []
    quoted = path.name.lower().removesuffix(".gz").endswith(".csv")
    for number, cells in comma_rows(path) if quoted else tab_rows(path):
        where = f"{path}:{number}"
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != 3:
            raise DataError(f"{where}: {len(cells)} columns instead of sentence, sentence, score")
        if not rows and not note and cells[2].strip() and not _is_number(cells[2]):
            note = f"{where}: taken as a header, because {cells[2]!r} is not a number"
        else:
            rows.append(_row(where, cells[0], cells[1], _number(cells[2], where)))
    if len(rows) < _LEAST_PAIRS:
        raise DataError(f"{path} has {len(rows)} pairs; a correlation needs at least 3")
    return Task(name, (_subset("", rows, path),), sha256_of(path), note)


def _subset(name: str, rows: Sequence[Row], path: Path) -> Subset:
    if not rows:
        raise DataError(f"{path} has no scored pair")
    first, second, gold = zip(*rows, strict=True)
    return Subset(name, first, second, np.array(gold, dtype=np.float64))


def _row(where: str, first: str, second: str, score: float) -> Row:
    tidy = " ".join(first.split()), " ".join(second.split())
    if not all(tidy):
        raise DataError(f"{where}: a sentence is empty")
    return *tidy, score


def _require(path: Path) -> None:
    if not path.is_file():
        raise MissingDataError(path)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(text: str, where: str) -> float:
    if not _is_number(text) or not isfinite(float(text)):
        raise DataError(f"{where}: the score must be a number, not {text.strip()!r}")
    return float(text)
