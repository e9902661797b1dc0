"""Scored sentence pairs from SentEval's folder and from a user's files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from contrasent.data.columns import RATED_PAIRS
from contrasent.data.readers import lines, tab_rows
from contrasent.data.rows import as_text, open_rows_of, score_of
from contrasent.data.senteval import MissingDataError, senteval_root
from contrasent.errors import DataError
from contrasent.evaluation.task_names import (
    ALL_SPLITS,
    STS_TASKS,
    StsTask,
    TaskName,
    TaskText,
)
from contrasent.metrics import Vector

_LEAST = 3

Pair = tuple[str, str, float]


def read_pairs(source: str, columns: Sequence[str] | None = None) -> tuple[list[Pair], str, str]:
    """All pairs of a file or data set, its hash, and a line on how columns were understood.

    ``columns`` are both sentences and the score; None to know them by name, or by order of three.
    """
    records = open_rows_of(source, RATED_PAIRS, columns)
    by_place = records.chosen.by in ("order", "number") and not records.chosen.header
    note = "" if by_place else f"{source}: {records.described}"
    pairs = [
        _pair(where, as_text(first, where), as_text(second, where), score)
        for where, (first, second, score) in records.rows()
    ]
    if len(pairs) < _LEAST:
        raise DataError(f"{source} has {len(pairs)} pairs; a correlation needs at least {_LEAST}")
    return pairs, records.sha256, note


def _pair(where: str, first: str, second: str, score: Any, of_score: str = "") -> Pair:
    """A pair with single spaces between words, as SentEval's batcher makes them."""
    tidy = " ".join(first.split()), " ".join(second.split())
    if not all(tidy):
        raise DataError(f"{where}: a sentence is empty")
    return *tidy, score_of(score, of_score or where)


@dataclass(frozen=True, slots=True)
class Subset:
    """N pairs that are scored together, and how similar people found them, ``gold (N,)``."""

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
        """All subsets, one after the other: the first sentences, then the second ones."""
        return (text for subset in self.subsets for text in (*subset.first, *subset.second))

    @property
    def sides(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """First and second sentences of all subsets."""
        first, second = zip(*((it.first, it.second) for it in self.subsets), strict=True)
        return tuple(chain.from_iterable(first)), tuple(chain.from_iterable(second))

    def texts(self) -> Iterator[TaskText]:
        """All pairs, as training text must not have both sentences."""
        pairs = list(zip(*self.sides, strict=True))
        sentences = [sentence for pair in pairs for sentence in pair]
        yield TaskText(self.name.name, self.name.split, sentences, pairs)


def load(
    name: TaskName, data_dir: str | Path | None = None, columns: Sequence[str] | None = None
) -> Task:
    """Read one task; MissingDataError if a file is not there, DataError if one is damaged."""
    row = STS_TASKS.get(name.name)
    if row is None:
        path = Path(name.name).expanduser()
        source = str(path) if path.exists() else name.name
        pairs, sha256, note = read_pairs(source, columns)
        return Task(name, (_subset("", pairs, source),), sha256, note)
    root = senteval_root(data_dir)
    if row.subsets:
        folder = root / row.folder
        parts = [
            (subset, folder / f"STS.input.{subset}.txt", folder / f"STS.gs.{subset}.txt")
            for subset in row.subsets
        ]
        sha256 = sha256_of_all([path for _, *both in parts for path in both])
        subsets = (_subset(name, list(_aligned(*both)), both[1]) for name, *both in parts)
        return Task(name, tuple(subsets), sha256)
    if name.split == "all":
        splits = [load(TaskName(name.name, split), data_dir) for split in ALL_SPLITS]
        whole = Task(name, tuple(subset for task in splits for subset in task.subsets), "")
        digest = hashlib.sha256(" ".join(task.sha256 for task in splits).encode())
        return Task(name, (Subset("", *whole.sides, whole.gold),), digest.hexdigest())
    path = root / row.files[name.split]
    sha256 = sha256_of_all([path])
    return Task(name, (_subset("", list(_table(path, row)), path),), sha256)


def sha256_of_all(paths: Sequence[Path]) -> str:
    """Hash of the bytes of files, one after the other; MissingDataError if one is not there."""
    digest = hashlib.sha256()
    for path in paths:
        if not path.is_file():
            raise MissingDataError(path)
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _aligned(sentences: Path, scores: Path) -> Iterator[Pair]:
    """Pairs and their scores, line by line; a pair with an empty score line was not scored."""
    pairs, gold = list(tab_rows(sentences)), list(lines(scores))
    if len(pairs) != len(gold):
        raise DataError(
            f"{scores} has {len(gold)} lines, but {sentences} has {len(pairs)}; "
            "line n of one must belong to line n of the other"
        )
    for (number, cells), (_, score) in zip(pairs, gold, strict=True):
        where = f"{sentences}:{number}"
        if score.strip():
            first, second = _cells(cells, 2, where)
            yield _pair(where, first, second, score, f"{scores}:{number}")


def _table(path: Path, row: StsTask) -> Iterator[Pair]:
    """Tab-separated, quotes literal; of STS-B without, of SICK with a header."""
    for number, cells in tab_rows(path):
        where = f"{path}:{number}"
        known = _cells(cells, max(row.columns) + 1, where)
        if number > 1 or not row.header:
            first, second, score = (known[place] for place in row.columns)
            yield _pair(where, first, second, score)


def _cells(cells: Sequence[str], needed: int, where: str) -> Sequence[str]:
    if len(cells) < needed:
        raise DataError(f"{where}: {len(cells)} tab-separated columns, not {needed}")
    return cells[:needed]


def _subset(name: str, rows: Sequence[Pair], source: Path | str) -> Subset:
    if not rows:
        raise DataError(f"{source} has no scored pair")
    first, second, gold = zip(*rows, strict=True)
    return Subset(name, first, second, np.array(gold, dtype=np.float64))
