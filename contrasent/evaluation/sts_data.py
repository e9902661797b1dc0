"""Scored sentence pairs from SentEval's folder and from a user's files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from contrasent.data.columns import RATED_PAIRS
from contrasent.data.readers import dataset_parts, lines, tab_rows
from contrasent.data.rows import as_number, as_text, open_rows_of, score_of
from contrasent.data.senteval import MissingDataError, senteval_root
from contrasent.errors import DataError
from contrasent.evaluation.task_names import ALL_SPLITS, STS_TASKS, StsTask, TaskName
from contrasent.files import sha256_of
from contrasent.metrics import Vector

_LEAST = 3

Pair = tuple[str, str, float]


def read_pairs(source: str, columns: Sequence[str] | None = None) -> tuple[list[Pair], str, str]:
    """Read all pairs of a ``.tsv``, ``.csv``, ``.jsonl`` or ``.parquet`` file, or of a data set.

    ``columns`` are both sentences and the score, by name or by number from 0; None to know them by
    name, or by their order where there are three columns without a known name.

    Returns:
        The pairs, the hash of their source, and one line on how the columns were understood.

    Raises:
        ConfigError: ``columns`` does not fit.
        DataError: a row, whose file and line are named, does not hold a pair and its score, or
            there are fewer than three.
    """
    records = open_rows_of(source, RATED_PAIRS, columns)
    by_place = records.chosen.by in ("order", "number") and not records.chosen.header
    note = "" if by_place else f"{source}: {records.described}"
    pairs: list[Pair] = []
    for where, (first, second, score) in records.rows():
        if isinstance(score, str) and score.strip() and as_number(score) is None:
            raise DataError(
                f"{where}: the score must be a number, not {score.strip()!r}; if it is a class "
                "to be learned, put classify: in front of the file; if the row is a header, name "
                "its columns with --columns"
            )
        pairs.append(pair(where, as_text(first, where), as_text(second, where), score))
    if len(pairs) < _LEAST:
        raise DataError(f"{source} has {len(pairs)} pairs; a correlation needs at least {_LEAST}")
    return pairs, records.sha256, note


def require_different(source: str, gold: Vector) -> None:
    """Refuse scores with which nothing can correlate, before anything is encoded."""
    if (gold == gold[0]).all():
        raise DataError(
            f"{source}: the score of all {len(gold)} pairs is {gold[0]:g}, so there is no "
            "correlation; is the right column taken as the score?"
        )


def pair(where: str, first: str, second: str, score: Any) -> Pair:
    """A pair with single spaces between words, as SentEval's batcher makes them."""
    tidy = " ".join(first.split()), " ".join(second.split())
    if not all(tidy):
        raise DataError(f"{where}: a sentence is empty")
    return *tidy, score_of(score, where)


@dataclass(frozen=True, slots=True)
class Subset:
    """N pairs that are scored together, and how similar people found them, ``gold (N,)``.

    The name, such as ``MSRpar``, is empty if the task has one part only.
    """

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    gold: Vector


@dataclass(frozen=True, slots=True)
class Task:
    """One split of a task, read."""

    name: TaskName
    subsets: tuple[Subset, ...]
    # hash of the bytes of its files, one after the other; of the splits' hashes where several are
    # scored together
    sha256: str
    note: str = ""  # how the file was understood, where that had to be guessed; else empty
    # train and dev split, which its regressor is fitted to; None for cosines
    fitted: tuple[Task, Task] | None = None

    @property
    def gold(self) -> Vector:
        """Scores of all subsets."""
        gold: Vector = np.concatenate([subset.gold for subset in self.subsets])
        return gold

    @property
    def sentences(self) -> Iterator[str]:
        """Of all subsets, one after the other: the first sentences, then the second ones."""
        return (text for subset in self.subsets for text in (*subset.first, *subset.second))

    @property
    def sides(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """First and second sentences of all subsets."""
        first = tuple(sentence for subset in self.subsets for sentence in subset.first)
        second = tuple(sentence for subset in self.subsets for sentence in subset.second)
        return first, second


def load(
    name: TaskName, data_dir: str | Path | None = None, columns: Sequence[str] | None = None
) -> Task:
    """Read one task, single spaces between its words, as SentEval's batcher makes them.

    ``data_dir`` is SentEval's folder, or one that holds it; else ``CONTRASENT_DATA``, else the
    folder that ``contrasent data fetch`` fills. ``columns`` are of a user's file. MissingDataError
    if a file is not there. DataError if a file does not hold what it should; the message names file
    and line.
    """
    row = STS_TASKS.get(name.name)
    if row is None:
        return _pairs_file(name, columns)
    root = senteval_root(data_dir)
    if row.subsets:
        return _semeval(name, row, root / row.folder)
    if name.split == "all":
        splits = [load(TaskName(name.name, split), data_dir) for split in ALL_SPLITS]
        whole = Task(name, tuple(subset for task in splits for subset in task.subsets), "")
        digest = hashlib.sha256(" ".join(task.sha256 for task in splits).encode())
        return Task(name, (Subset("", *whole.sides, whole.gold),), digest.hexdigest())
    return _one_file(name, row, root / row.files[name.split])


def _semeval(name: TaskName, row: StsTask, folder: Path) -> Task:
    digest = hashlib.sha256()
    subsets = []
    for subset in row.subsets:
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


def _one_file(name: TaskName, row: StsTask, path: Path) -> Task:
    """Tab-separated, quotes literal; of STS-B without, of SICK with a header."""
    _require(path)
    first, second, score = row.columns
    rows: list[Pair] = []
    for number, cells in tab_rows(path):
        if len(cells) <= max(row.columns):
            raise DataError(
                f"{path}:{number}: {len(cells)} tab-separated columns; the score and both "
                f"sentences of {name.heading} need {max(row.columns) + 1}"
            )
        if number > 1 or not row.header:
            where = f"{path}:{number}"
            rows.append(pair(where, cells[first], cells[second], score_of(cells[score], where)))
        elif as_number(cells[score]) is not None:
            raise DataError(
                f"{path}:1: expected the header line of {row.heading}, found a scored pair"
            )
    return Task(name, (_subset("", rows, path),), sha256_of(path))


def _pairs_file(name: TaskName, columns: Sequence[str] | None) -> Task:
    path = Path(name.name).expanduser()
    if not path.exists() and not dataset_parts(name.name):
        raise DataError(f"no file {path}; a task is one of the STS names or a file of pairs")
    source = str(path) if path.exists() else name.name
    pairs, sha256, note = read_pairs(source, columns)
    return Task(name, (_subset("", pairs, source),), sha256, note)


def _subset(name: str, rows: Sequence[Pair], source: Path | str) -> Subset:
    if not rows:
        raise DataError(f"{source} has no scored pair")
    first, second, gold = zip(*rows, strict=True)
    return Subset(name, first, second, np.array(gold, dtype=np.float64))


def _require(path: Path) -> None:
    if not path.is_file():
        raise MissingDataError(path)
