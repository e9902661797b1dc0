"""Labelled sentences: SentEval's transfer tasks as SentEval reads them, and a user's own.

Order matters: the folds are drawn over the sentences sorted by length, as SentEval's are.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan
from pathlib import Path

import numpy as np

from contrasent.data.columns import RATED_PAIRS, SENTENCE_PAIRS, SENTENCES, ColumnSpec
from contrasent.data.readers import labelled_splits, tab_rows
from contrasent.data.rows import SourceRows, as_text, open_rows_of
from contrasent.data.senteval import MissingDataError, senteval_root
from contrasent.errors import ConfigError, DataError, shown
from contrasent.evaluation.protocols import Rows
from contrasent.evaluation.task_names import (
    CLASSIFY,
    DEV_PART,
    NESTED_FOLDS,
    TRAIN_FOLDS,
    TRANSFER_TASKS,
    RowLayout,
    TaskName,
    TaskText,
    joined_sources,
)

_QUESTIONS = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")

Item = tuple[tuple[str, ...], int]
"""A sentence or the two of a pair, empty where the file has a blank line; a class from 0."""


@dataclass(frozen=True, slots=True)
class Part:
    """Items of one file, or of several that are split into folds together."""

    # N sentences, or twice as many for pairs: all first ones, then all second ones
    texts: tuple[str, ...]
    labels: Rows  # ``(N,)``


def _polar(path: Path, number: int, _: int) -> Iterator[Item]:
    """A sentence per line, of class 1 in the first file and of class 0 in the second.

    Blank lines count. Read as latin-1, whose letters are single bytes.
    """
    for line in path.read_bytes().decode("latin-1").splitlines():
        yield (_tidy(line),), int(number == 0)


def _questions(path: Path, _: int, __: int) -> Iterator[Item]:
    """``COARSE:fine question`` in latin-1; the fine class is left out."""
    with path.open(encoding="latin-1") as file:
        for number, line in enumerate(file, start=1):
            coarse, _colon, rest = line.strip().partition(":")
            if coarse not in _QUESTIONS or " " not in rest:
                raise DataError(
                    f"{path}:{number}: {line.strip()[:40]!r} instead of CLASS:fine question, with "
                    f"a class of {', '.join(_QUESTIONS)}"
                )
            yield (_tidy(rest.split(" ", 1)[1]),), _QUESTIONS.index(coarse)


def _table(
    path: Path, _: int, classes: int, *, width: int, texts: Sequence[int], label: int, header: bool
) -> Iterator[Item]:
    """Cells between tabs, classes being whole numbers from 0; quotes are literal."""
    for number, cells in tab_rows(path):
        where = f"{path}:{number}"
        if len(cells) != width:
            raise DataError(f"{where}: {len(cells)} columns instead of {width}")
        if number == 1 and header:
            continue
        known, given = [str(code) for code in range(classes)], cells[label].strip()
        if given not in known:
            raise DataError(f"{where}: the class must be {' or '.join(known)}, not {given!r}")
        yield tuple(_tidy(cells[place]) for place in texts), int(given)


def _tidy(text: str) -> str:
    return " ".join(text.split())


READERS: dict[str, Callable[[Path, int, int], Iterator[Item]]] = {
    "polar": _polar,
    "questions": _questions,
    "sentiments": partial(_table, width=2, texts=(0,), label=1, header=False),
    # quality, two ids, two sentences
    "paraphrases": partial(_table, width=5, texts=(3, 4), label=0, header=True),
}
"""Readers of a file by its form, given its path, its number from 0, and the number of classes."""


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

    def judged_part(self, split: str) -> str:
        """The part that a split's accuracy is of: the one of that name, or what stands for it."""
        choices = ("test", "all") if split == "test" else ("dev", "train", "all")
        return next(part for part in choices if part in self.parts)

    def over_folds(self, split: str) -> bool:
        """Whether the accuracy of a split is the mean over folds."""
        return "all" in self.parts or (split == "dev" and "dev" not in self.parts)

    def texts(self) -> Iterator[TaskText]:
        """The parts that the accuracies are of."""
        for name in dict.fromkeys(map(self.judged_part, self.splits)):
            texts = self.parts[name].texts
            half = len(texts) // 2
            pairs = zip(texts[:half], texts[half:], strict=True) if self.of_pairs else ()
            yield TaskText(self.name, name, texts, list(pairs))

    def row_layout(self) -> RowLayout:
        """The sentences of all files; of pairs all first ones, then all second ones."""
        sides = tuple(zip(*self.given, strict=True))
        names = ("first sentences", "second sentences") if len(sides) == 2 else ("sentences",)
        return RowLayout(TaskName(self.name).heading, dict(zip(names, sides, strict=True)))


def load_transfer(name: str, data_dir: str | Path | None = None) -> TransferData:
    """Read one of :data:`TRANSFER_TASKS`; a DataError, such as a MissingDataError, if it cannot."""
    task = TRANSFER_TASKS[name]
    paths = [senteval_root(data_dir) / file for file in task.files]
    digest = hashlib.sha256()
    for path in paths:
        if not path.is_file():
            raise MissingDataError(path)
        digest.update(path.read_bytes())
    read = READERS[task.form]
    groups = [list(read(path, number, task.classes)) for number, path in enumerate(paths)]
    if task.split == NESTED_FOLDS:
        groups = [[item for group in groups for item in group]]
    for path, items in zip(paths, groups, strict=False):
        if len({label for _, label in items}) < 2:
            raise DataError(f"{path}: {len(items)} sentences of fewer than 2 classes")
    parts = dict(zip(task.split, map(sorted_part, groups), strict=True))
    given = tuple(texts for items in groups for texts, _ in items)
    return TransferData(name, parts, task.classes, digest.hexdigest(), given)


def sorted_part(items: Sequence[Item]) -> Part:
    """In SentEval's order: by words of the first, then the second sentence, then by class."""
    ordered = sorted(items, key=lambda it: (*(len(text.split()) for text in it[0]), it[1]))
    texts = tuple(text for side in zip(*(it[0] for it in ordered), strict=True) for text in side)
    return Part(texts, np.array([label for _, label in ordered], dtype=np.int64))


_MEND = "mend the row or take it out"

Row = tuple[str, tuple[str, ...], str]
"""``path:line``, one sentence or the two of a pair, and their class."""


def holds_labels(source: str, columns: Sequence[str] | None) -> bool:
    """Whether a file or data set without a prefix holds labelled sentences and no scored pairs.

    By two ``columns`` that are chosen, or the names of a sentence and a class, and of no scored
    pair.
    """
    if columns is not None:
        return len(columns) == len(SENTENCES.roles)
    return _known(source, RATED_PAIRS) is None and _known(source, SENTENCES) is not None


def read_labelled(name: str, columns: Sequence[str] | None = None) -> TransferData:
    """Read labelled sentences, or labelled pairs of sentences.

    One file is judged by nested folds, as SentEval judges MR; ``TRAIN+TEST`` and ``TRAIN+DEV+TEST``
    as TREC and SST-2 are; a data set of the hub without ``@split`` by its own splits, if it has a
    train and a test split. ``columns`` are a sentence or two, and the class. DataError if a row
    lacks one, there is one class only, or a class is not in the training part.
    """
    sources = joined_sources(name.removeprefix(CLASSIFY))
    if len(sources) == 1:
        sources = labelled_splits(sources[0]) or sources
    named = next(
        (it for it in (NESTED_FOLDS, TRAIN_FOLDS, DEV_PART) if len(it) == len(sources)), ()
    )
    if not named:
        raise ConfigError(
            f"{name} names {len(sources)} files; a task of labelled sentences is one file, "
            "train+test or train+dev+test"
        )
    opened = [_open(source, columns) for source in sources]
    if len({records.width for records in opened}) > 1:
        widths = " and ".join(f"{records.source} {records.width - 1}" for records in opened)
        raise DataError(f"sentences in a row differ between files: {widths}; choose with --columns")
    read = [list(_rows(records)) for records in opened]
    labels = {label for _, _, label in read[0]}
    if len(labels) < 2:
        raise DataError(
            f"{sources[0]}: the label of all {len(read[0])} rows is {next(iter(labels), '')!r}; 2 "
            "classes or more are needed; is the right column taken as the label?"
        )
    below = {label for rows in read for _, _, label in rows[1:]}
    for records, ((where, _, label), *_) in zip(opened, read, strict=True):
        if not (records.chosen.header or label in below or label.isdecimal()):
            raise DataError(
                f"{where}: {label!r} looks like a heading, as no other row has this class; name "
                "the columns with --columns, or move the row down if it is a sentence's"
            )
    for where, _, label in (row for rows in read for row in rows):
        if label not in labels:
            raise DataError(
                f"{where}: class {label!r} is not in {sources[0]}, so it cannot be learned; {_MEND}"
            )
    numbers = all(label.isdecimal() for label in labels)
    classes = sorted(labels, key=lambda label: (int(label) if numbers else 0, label))
    codes = {label: code for code, label in enumerate(classes)}
    parts = dict(zip(named, read, strict=True))
    sha256 = " ".join(records.sha256 for records in opened)
    return TransferData(
        name=name,
        parts={
            part: sorted_part([(texts, codes[label]) for _, texts, label in rows])
            for part, rows in parts.items()
        },
        classes=len(classes),
        sha256=sha256 if len(opened) == 1 else hashlib.sha256(sha256.encode()).hexdigest(),
        class_names=tuple(classes),
        given=tuple(texts for rows in read for _, texts, _ in rows),
        description=_describe(parts, len(classes)),
        note="\n".join(
            f"{records.source}: {records.described}"
            for records in opened
            if records.chosen.by == "name"
        ),
    )


def _open(source: str, columns: Sequence[str] | None) -> SourceRows:
    """Pairs where two sentences are known or chosen, else single sentences."""
    if columns is not None:
        both = {len(wanted.roles): wanted for wanted in (SENTENCES, SENTENCE_PAIRS)}
        if len(columns) not in both:
            raise ConfigError(
                f"--columns {','.join(columns)} names {len(columns)} columns; labelled sentences "
                "have a sentence and a class (--columns text,label), or two sentences and a class"
            )
        return open_rows_of(source, both[len(columns)], columns)
    known = _known(source, SENTENCE_PAIRS) or _known(source, SENTENCES)
    if known is not None:
        return known
    try:
        return open_rows_of(source, SENTENCE_PAIRS)
    except DataError:
        return open_rows_of(source, SENTENCES)


def _known(source: str, wanted: ColumnSpec) -> SourceRows | None:
    """The rows of a source whose columns are known by their names; None of any other."""
    try:
        rows = open_rows_of(str(Path(source).expanduser()), wanted)
    except DataError:
        return None
    return rows if rows.chosen.by == "name" else None


def _rows(records: SourceRows) -> Iterator[Row]:
    """Rows with their class, by its name where the source has names for numbers."""
    names, empty = records.label_names, True
    for where, (*cells, given) in records.rows():
        texts = tuple(as_text(cell, where) for cell in cells)
        # pandas makes floats of whole numbers beside an empty cell
        is_whole = isinstance(given, float) and given.is_integer()
        label = int(given) if is_whole else given
        missing = label is None or (isinstance(label, float) and isnan(label))
        if missing or not all(texts) or not str(label).strip():
            raise DataError(f"{where}: a sentence or the label is missing; {_MEND}")
        if not isinstance(label, str | int):
            raise DataError(
                f"{where}: the label must be a name or a whole number, not {shown(label)}; a score "
                "belongs to two sentences: sentence1, sentence2, score"
            )
        if names is not None and isinstance(label, int):
            if not 0 <= label < len(names):
                raise DataError(
                    f"{where}: the label {label} is none of the {len(names)} that the data set "
                    "names; where the labels of a split are hidden, choose others with "
                    "org/name:config@split"
                )
            label = names[label]
        empty = False
        yield where, texts, " ".join(str(label).split())
    if empty:
        raise DataError(f"{records.source} has no row below its header")


def _describe(parts: dict[str, list[Row]], classes: int) -> str:
    """Rows, classes, and what is reached by always saying the most frequent class."""
    judged = parts["test" if "test" in parts else "all"]
    counts = Counter(label for _, _, label in judged)
    most, count = min(counts.items(), key=lambda it: (-it[1], it[0]))
    things = "sentences" if len(judged[0][1]) == 1 else "pairs"
    sizes = " + ".join(f"{len(rows):,}" for rows in parts.values())
    of_parts, of_test = (
        ("", "") if "all" in parts else (f" ({', '.join(parts)})", " of the test part")
    )
    return (
        f"{sizes} {things}{of_parts} of {classes} classes; the most frequent, {most!r}, is "
        f"{100 * count / len(judged):.2f} %{of_test}"
    )
