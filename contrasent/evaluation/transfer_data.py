"""The seven transfer tasks of SentEval's folder, with the quirks by which SentEval reads them.

Order matters: the folds are drawn over the sentences sorted by length, as SentEval's are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from contrasent.data.readers import tab_rows
from contrasent.errors import DataError

if TYPE_CHECKING:
    from contrasent.evaluation.protocols import Rows

NESTED_FOLDS = ("all",)
"""All files are one part, judged by nested cross-validation."""

TRAIN_FOLDS = ("train", "test")
"""Folds of the training file choose the penalty."""

DEV_PART = ("train", "dev", "test")
"""The dev file chooses the penalty."""

_QUESTIONS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")


@dataclass(frozen=True, slots=True)
class Item:
    """A sentence or the two of a pair, empty where the file has a blank line; a class from 0."""

    texts: tuple[str, ...]
    label: int


@dataclass(frozen=True, slots=True)
class Part:
    """Items of one file, or of several that are split into folds together."""

    # N sentences, or twice as many for pairs: all first ones, then all second ones
    texts: tuple[str, ...]
    labels: Rows  # ``(N,)``


@dataclass(frozen=True, slots=True)
class TransferTask:
    """A transfer task, as a row of :data:`TRANSFER_TASKS`."""

    name: str  # as ``--tasks`` takes it, such as ``sst2``; in lower case, without ``-`` and ``_``
    heading: str  # as tables name it, such as ``SST-2``
    files: tuple[str, ...]  # in SentEval's folder, in the order of ``split``
    # reads a file, given its path, its number from 0, and the number of ``classes``
    read: Callable[[Path, int, int], list[Item]]
    classes: int = 2
    # `NESTED_FOLDS`, `TRAIN_FOLDS` or `DEV_PART`
    split: tuple[str, ...] = NESTED_FOLDS
    pairs: bool = False  # pairs of sentences are classified; they have an F1 of class 1 too
    papers: bool = True  # one of the seven that ``transfer`` stands for and that the papers average
    published: str = ""  # its column in published tables, where that is not ``heading``
    aliases: tuple[str, ...] = ()  # other names, written as ``name`` is


def polar(path: Path, number: int, _: int) -> list[Item]:
    """A sentence per line, of class 1 in the first file and of class 0 in the second.

    Blank lines count. Read as latin-1, whose letters are single bytes.
    """
    text = path.read_bytes().decode("latin-1")
    return [Item((_tidy(line),), int(number == 0)) for line in text.splitlines()]


def questions(path: Path, _: int, __: int) -> list[Item]:
    """``COARSE:fine question`` in latin-1; the fine class is left out."""
    items = []
    with path.open(encoding="latin-1") as file:
        for number, line in enumerate(file, start=1):
            coarse, _colon, rest = line.strip().partition(":")
            if coarse not in _QUESTIONS or " " not in rest:
                raise DataError(
                    f"{path}:{number}: {line.strip()[:40]!r} instead of CLASS:fine question, with "
                    f"a class of {', '.join(_QUESTIONS)}"
                )
            question = rest.split(" ", 1)[1]
            items.append(Item((_tidy(question),), _QUESTIONS.index(coarse)))
    return items


def sentiments(path: Path, _: int, classes: int) -> list[Item]:
    """``sentence TAB class``, classes being whole numbers from 0."""
    items = []
    for number, cells in tab_rows(path):
        where = f"{path}:{number}"
        if len(cells) != 2:
            raise DataError(f"{where}: {len(cells)} columns instead of sentence and class")
        items.append(Item((_tidy(cells[0]),), _class(cells[1], where, classes)))
    return items


def paraphrases(path: Path, _: int, classes: int) -> list[Item]:
    """A header, then class, two ids, two sentences; quotes are literal, a byte order mark goes."""
    items = []
    for number, cells in tab_rows(path):
        where = f"{path}:{number}"
        if len(cells) != 5:
            raise DataError(
                f"{where}: {len(cells)} columns instead of quality, two ids, two sentences"
            )
        if number > 1:
            items.append(Item((_tidy(cells[3]), _tidy(cells[4])), _class(cells[0], where, classes)))
        elif cells[0].strip() in ("0", "1"):
            raise DataError(f"{where}: expected MRPC's header line, found a pair")
    return items


_SST = "SST/binary/sentiment-"
_MRPC = "MRPC/msr_paraphrase_"
TRANSFER_TASKS = {
    task.name: task
    for task in (
        TransferTask("mr", "MR", ("MR/rt-polarity.pos", "MR/rt-polarity.neg"), polar),
        TransferTask("cr", "CR", ("CR/custrev.pos", "CR/custrev.neg"), polar),
        TransferTask("subj", "SUBJ", ("SUBJ/subj.objective", "SUBJ/subj.subjective"), polar),
        TransferTask("mpqa", "MPQA", ("MPQA/mpqa.pos", "MPQA/mpqa.neg"), polar),
        TransferTask(
            name="sst2",
            heading="SST-2",
            files=(f"{_SST}train", f"{_SST}dev", f"{_SST}test"),
            read=sentiments,
            split=DEV_PART,
            published="SST",
            aliases=("sst",),
        ),
        TransferTask(
            name="trec",
            heading="TREC",
            files=("TREC/train_5500.label", "TREC/TREC_10.label"),
            read=questions,
            classes=len(_QUESTIONS),
            split=TRAIN_FOLDS,
        ),
        TransferTask(
            name="mrpc",
            heading="MRPC",
            files=(f"{_MRPC}train.txt", f"{_MRPC}test.txt"),
            read=paraphrases,
            split=TRAIN_FOLDS,
            pairs=True,
        ),
    )
}
"""The transfer tasks, in the order of the papers' tables. To add one, add a row."""


@dataclass(frozen=True, slots=True)
class TransferData:
    """A task, read."""

    name: str
    parts: dict[str, Part]  # ``all``, or ``train`` and ``test``, or ``train``, ``dev`` and ``test``
    classes: int
    sha256: str
    # one sentence or the two of a pair, in the order of the files
    given: tuple[tuple[str, ...], ...] = ()
    class_names: tuple[str, ...] = ()  # of a user's own classes; empty for SentEval's tasks
    # one line on what the rows of a user's own task are; empty for SentEval's
    description: str = ""
    note: str = ""  # how a user's columns were understood, where that had to be guessed; else empty
    splits: tuple[str, ...] = ("dev", "test")  # those that are to have records

    @property
    def of_pairs(self) -> bool:
        """Whether it classifies pairs of sentences."""
        return any(len(part.texts) == 2 * len(part.labels) for part in self.parts.values())

    @property
    def own(self) -> bool:
        """Whether it is a user's own data."""
        return bool(self.class_names)

    def judged_part(self, split: str) -> str:
        """The part that a split's accuracy is of: the one of that name, or what stands for it."""
        choices = ("test", "all") if split == "test" else ("dev", "train", "all")
        return next(part for part in choices if part in self.parts)

    def over_folds(self, split: str) -> bool:
        """Whether the accuracy of a split is the mean over folds."""
        return "all" in self.parts or (split == "dev" and "dev" not in self.parts)


def load_transfer(name: str, data_dir: str | Path | None = None) -> TransferData:
    """Read one of :data:`TRANSFER_TASKS`; a DataError, such as a MissingDataError, if it cannot."""
    from contrasent.data.senteval import MissingDataError, senteval_root

    task = TRANSFER_TASKS[name]
    paths = [senteval_root(data_dir) / file for file in task.files]
    digest = hashlib.sha256()
    for path in paths:
        if not path.is_file():
            raise MissingDataError(path)
        digest.update(path.read_bytes())
    groups = [task.read(path, number, task.classes) for number, path in enumerate(paths)]
    if task.split == NESTED_FOLDS:
        groups = [[item for group in groups for item in group]]
    for path, items in zip(paths, groups, strict=False):
        classes = {item.label for item in items}
        if len(classes) < 2:
            raise DataError(
                f"{path}: {len(items)} sentences of {len(classes)} classes; 2 are needed"
            )
    parts = dict(zip(task.split, map(sorted_part, groups), strict=True))
    given = tuple(item.texts for items in groups for item in items)
    return TransferData(name, parts, task.classes, digest.hexdigest(), given)


def sorted_part(items: Sequence[Item]) -> Part:
    """In SentEval's order: by words of the first, then the second sentence, then by class."""
    import numpy as np

    def order(item: Item) -> tuple[int, ...]:
        return (*(len(text.split()) for text in item.texts), item.label)

    items = sorted(items, key=order)
    texts = tuple(text for side in zip(*(i.texts for i in items), strict=True) for text in side)
    return Part(texts, np.array([item.label for item in items], dtype=np.int64))


def _tidy(text: str) -> str:
    return " ".join(text.split())


def _class(cell: str, where: str, classes: int) -> int:
    known = [str(label) for label in range(classes)]
    label = cell.strip()
    if label not in known:
        raise DataError(f"{where}: the class must be {' or '.join(known)}, not {label!r}")
    return int(label)
