"""The seven transfer tasks of SentEval's folder, with the quirks by which SentEval reads them.

Order matters: the folds are drawn over the sentences sorted by length, as SentEval's are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from contrasent.data.readers import tab_rows
from contrasent.data.senteval import senteval_root
from contrasent.errors import DataError
from contrasent.evaluation.protocols import Rows
from contrasent.evaluation.sts_data import MissingDataError

FOLDED = {
    "mr": ("MR/rt-polarity.pos", "MR/rt-polarity.neg"),
    "cr": ("CR/custrev.pos", "CR/custrev.neg"),
    "subj": ("SUBJ/subj.objective", "SUBJ/subj.subjective"),
    "mpqa": ("MPQA/mpqa.pos", "MPQA/mpqa.neg"),
}
"""Tasks without splits: files of class 1 and of class 0, judged by nested cross-validation."""

_FILES = {
    "sst2": ("SST/binary/sentiment-train", "SST/binary/sentiment-dev", "SST/binary/sentiment-test"),
    "trec": ("TREC/train_5500.label", "TREC/TREC_10.label"),
    "mrpc": ("MRPC/msr_paraphrase_train.txt", "MRPC/msr_paraphrase_test.txt"),
    **FOLDED,
}
_QUESTIONS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
_PARTS = {1: ("all",), 2: ("train", "test"), 3: ("train", "dev", "test")}


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to classify.

    Attributes:
        texts: one sentence, or the two of a pair; may be empty where the file has a blank line.
        label: its class, from 0.
    """

    texts: tuple[str, ...]
    label: int


@dataclass(frozen=True, slots=True)
class Part:
    """Things that stand together in a file or are split into folds together.

    Attributes:
        texts: N sentences, or twice as many for pairs: all first ones, then all second ones.
        labels: ``(N,)``.
    """

    texts: tuple[str, ...]
    labels: Rows


@dataclass(frozen=True, slots=True)
class TransferTask:
    """A task, read.

    Attributes:
        name: such as ``mr``.
        parts: ``all``, or ``train`` and ``test``, or ``train``, ``dev`` and ``test``.
        classes: how many classes there are.
        sha256: hash of the bytes of its files, one after the other.
        given: one sentence or the two of a pair, in the order of the files.
        class_names: of a user's own classes; empty for SentEval's tasks.
        said: one line on what the rows of a user's own task are; empty for SentEval's.
        note: how a user's columns were understood, where that had to be guessed; else empty.
    """

    name: str
    parts: dict[str, Part]
    classes: int
    sha256: str
    given: tuple[tuple[str, ...], ...] = ()
    class_names: tuple[str, ...] = ()
    said: str = ""
    note: str = ""

    @property
    def of_pairs(self) -> bool:
        """Whether it classifies pairs of sentences."""
        return any(len(part.texts) == 2 * len(part.labels) for part in self.parts.values())

    @property
    def own(self) -> bool:
        """Whether it is a user's own data."""
        return bool(self.class_names)

    def over_folds(self, split: str) -> bool:
        """Whether the accuracy of a split is the mean over folds."""
        return "all" in self.parts or (split == "dev" and "dev" not in self.parts)


def load_transfer(name: str, data_dir: str | Path | None = None) -> TransferTask:
    """Read a transfer task.

    Args:
        name: ``mr``, ``cr``, ``subj``, ``mpqa``, ``sst2``, ``trec`` or ``mrpc``.
        data_dir: as :func:`contrasent.evaluation.sts_data.load`.

    Raises:
        MissingDataError: a file is not there.
        DataError: a file does not hold what it should; the message names file and line.
    """
    root = senteval_root(data_dir)
    paths = [root / file for file in _FILES[name]]
    digest = hashlib.sha256()
    for path in paths:
        if not path.is_file():
            raise MissingDataError(path)
        digest.update(path.read_bytes())
    read = _READERS.get(name, _polar)
    if name in FOLDED:
        groups = [[item for path in paths for item in _polar(path, int(path == paths[0]))]]
    else:
        groups = [read(path, 0) for path in paths]
    for path, items in zip(paths, groups, strict=False):
        _refuse_one_class(path, items)
    parts = zip(_PARTS[len(groups)], map(sorted_part, groups), strict=True)
    classes = len(_QUESTIONS) if name == "trec" else 2
    given = tuple(item.texts for items in groups for item in items)
    return TransferTask(name, dict(parts), classes, digest.hexdigest(), given)


def _polar(path: Path, label: int) -> list[Item]:
    """A sentence per line; blank lines count. Read as latin-1, whose letters are single bytes."""
    text = path.read_bytes().decode("latin-1")
    return [Item((_tidy(line),), label) for line in text.splitlines()]


def _questions(path: Path, _: int) -> list[Item]:
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


def _sentiments(path: Path, _: int) -> list[Item]:
    """``sentence TAB 0/1``."""
    items = []
    for number, cells in tab_rows(path):
        where = f"{path}:{number}"
        if len(cells) != 2:
            raise DataError(f"{where}: {len(cells)} columns instead of sentence, 0 or 1")
        items.append(Item((_tidy(cells[0]),), _binary(cells[1], where)))
    return items


def _paraphrases(path: Path, _: int) -> list[Item]:
    """A header, then class, two ids, two sentences; quotes are literal, a byte order mark goes."""
    items = []
    for number, cells in tab_rows(path):
        where = f"{path}:{number}"
        if len(cells) != 5:
            raise DataError(
                f"{where}: {len(cells)} columns instead of quality, two ids, two sentences"
            )
        if number > 1:
            items.append(Item((_tidy(cells[3]), _tidy(cells[4])), _binary(cells[0], where)))
        elif cells[0].strip() in ("0", "1"):
            raise DataError(f"{where}: expected MRPC's header line, found a pair")
    return items


_READERS: dict[str, Callable[[Path, int], list[Item]]] = {
    "sst2": _sentiments,
    "trec": _questions,
    "mrpc": _paraphrases,
}


def _tidy(text: str) -> str:
    return " ".join(text.split())


def _binary(text: str, where: str) -> int:
    if text.strip() not in ("0", "1"):
        raise DataError(f"{where}: the class must be 0 or 1, not {text.strip()!r}")
    return int(text)


def _refuse_one_class(path: Path, items: Sequence[Item]) -> None:
    classes = {item.label for item in items}
    if len(classes) < 2:
        raise DataError(f"{path}: {len(items)} sentences of {len(classes)} classes; 2 are needed")


def sorted_part(items: Sequence[Item]) -> Part:
    """In SentEval's order: by words of the first, then the second sentence, then by class."""

    def order(item: Item) -> tuple[int, ...]:
        return (*(len(text.split()) for text in item.texts), item.label)

    items = sorted(items, key=order)
    texts = tuple(text for side in zip(*(i.texts for i in items), strict=True) for text in side)
    return Part(texts, np.array([item.label for item in items], dtype=np.int64))
