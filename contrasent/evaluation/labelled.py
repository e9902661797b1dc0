"""A user's own labelled sentences, or pairs of sentences, as a task for classifiers."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

from contrasent.data.columns import RATED_PAIRS, SENTENCE_PAIRS, SENTENCES, ColumnSpec
from contrasent.data.readers import labelled_splits
from contrasent.data.rows import SourceRows, as_text, open_rows_of
from contrasent.errors import ConfigError, DataError
from contrasent.evaluation.protocols import HELD_OUT, TransferProtocol
from contrasent.evaluation.task_names import (
    CLASSIFY,
    TaskName,
    joined_sources,
    names_own_data,
    require_source,
)
from contrasent.evaluation.task_types import Options
from contrasent.evaluation.transfer import SPLITS, Transfer
from contrasent.evaluation.transfer_data import Item, TransferData, sorted_part

_MEND = "mend the row or take it out"
_PARTS = {1: ("all",), 2: ("train", "test"), 3: ("train", "dev", "test")}
_SHARES = 1 / HELD_OUT


@dataclass(frozen=True, slots=True)
class _Row:
    """One sentence or the two of a pair, and their class, as read at ``path:line``."""

    where: str
    texts: tuple[str, ...]
    label: str


def holds_labels(source: str, columns: Sequence[str] | None) -> bool:
    """Whether a file or data set without a prefix holds labelled sentences and no scored pairs.

    It does if two ``columns`` are chosen, or if a sentence and a class are known by their names
    and a pair with a score is not. What cannot be read holds none.
    """
    if columns is not None:
        return len(columns) == len(SENTENCES.roles)
    return _known(source, RATED_PAIRS) is None and _known(source, SENTENCES) is not None


def read_labelled(name: str, columns: Sequence[str] | None = None) -> TransferData:
    """Read labelled sentences, or labelled pairs of sentences.

    One file is judged by nested folds, as SentEval judges MR. ``TRAIN+TEST`` and
    ``TRAIN+DEV+TEST`` are judged as TREC and SST-2 are. A data set of the hub without ``@split`` is
    judged by its own splits, if it has a train and a test split.

    ``name`` may stand after :data:`CLASSIFY`; ``columns`` are a sentence or two, and the class, as
    of :func:`contrasent.evaluation.sts_data.read_pairs`. ConfigError if ``columns`` does not fit.
    DataError if a row has no sentence or class, there is one class only, or a class is not in the
    training part; the message names file and line.
    """
    sources = joined_sources(name.removeprefix(CLASSIFY))
    if len(sources) == 1:
        sources = labelled_splits(sources[0]) or sources
    if len(sources) not in _PARTS:
        raise ConfigError(
            f"{name} names {len(sources)} files; a task of labelled sentences is one file, "
            "train+test or train+dev+test"
        )
    opened = [_open(source, columns) for source in sources]
    if len({records.width for records in opened}) > 1:
        widths = " and ".join(f"{records.source} {records.width - 1}" for records in opened)
        raise DataError(f"sentences in a row differ between files: {widths}; choose with --columns")
    read = [_rows(records, columns) for records in opened]
    classes = _classes(sources[0], read[0])
    _refuse_headings(opened, read)
    unknown = next((row for rows in read[1:] for row in rows if row.label not in classes), None)
    if unknown is not None:
        raise DataError(
            f"{unknown.where}: class {unknown.label!r} is not in {sources[0]}, so it cannot be "
            f"learned; {_MEND}"
        )
    codes = {label: code for code, label in enumerate(classes)}
    parts = {
        part: sorted_part([Item(row.texts, codes[row.label]) for row in rows])
        for part, rows in zip(_PARTS[len(read)], read, strict=True)
    }
    sha256 = " ".join(records.sha256 for records in opened)
    if len(opened) > 1:
        sha256 = hashlib.sha256(sha256.encode()).hexdigest()
    return TransferData(
        name=name,
        parts=parts,
        classes=len(classes),
        sha256=sha256,
        class_names=classes,
        given=tuple(row.texts for rows in read for row in rows),
        description=_describe(dict(zip(parts, read, strict=True))),
        note="\n".join(
            f"{records.source}: {records.described}"
            for records in opened
            if records.chosen.by == "name"
        ),
    )


def require_enough(task: TransferData, protocol: TransferProtocol) -> None:
    """Refuse a task with a class of too few rows for the folds, before anything is encoded.

    Nested folds need K rows of each class in what is left beside a fold.
    """
    part = task.parts.get("all", task.parts.get("train"))
    if part is None or "dev" in task.parts:
        return
    folds = protocol.settings.folds
    nested = "all" in task.parts
    counts = Counter(part.labels.tolist())
    code, count = min(counts.items(), key=lambda it: (it[1], it[0]))
    needed = next(n for n in range(folds, 3 * folds) if n - nested * -(-n // folds) >= folds)
    if count < needed:
        raise DataError(
            f"class {task.class_names[code]!r} has {count} "
            f"{_things(task.of_pairs, count)}, but {folds} {'nested ' if nested else ''}folds need "
            f"{needed} of each class; give more, take the class out, or choose --preset fasttest "
            "with 5 folds"
        )
    total = len(part.labels)
    trained = total - nested * -(-total // folds)
    if protocol.classifier == "senteval" and trained < _SHARES:
        raise DataError(
            f"{trained} rows to train on are too few to hold out 5 % of them; give "
            f"{_SHARES:.0f} or more, or choose --classifier sklearn"
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


def _rows(records: SourceRows, columns: Sequence[str] | None) -> list[_Row]:
    rows = []
    for where, (*cells, label) in records.rows():
        texts = tuple(as_text(cell, where) for cell in cells)
        if not all(texts):
            raise DataError(f"{where}: a sentence is empty; {_MEND}")
        rows.append(_Row(where, texts, _class(label, where, records.label_names)))
    if not rows:
        chosen = "" if columns is None else f" below the names {', '.join(columns)}"
        raise DataError(f"{records.source} has no row{chosen}")
    return rows


def _refuse_headings(opened: Sequence[SourceRows], read: Sequence[Sequence[_Row]]) -> None:
    """Refuse a first row whose class is in no row below, where the columns have no known names."""
    below = {row.label for rows in read for row in rows[1:]}
    for records, (first, *_) in zip(opened, read, strict=True):
        if not (records.chosen.header or first.label in below or first.label.isdecimal()):
            raise DataError(
                f"{first.where}: {first.label!r} looks like a heading, as no other row has this "
                "class; name the columns with --columns, or move the row down if it is a sentence's"
            )


def _class(cell: Any, where: str, names: Sequence[str] | None) -> str:
    """The class in a cell, by its name where the source has names for numbers."""
    if isinstance(cell, float) and cell.is_integer():
        cell = int(cell)  # pandas makes floats of whole numbers beside an empty cell
    if cell is None or (isinstance(cell, float) and isnan(cell)):
        raise DataError(f"{where}: the label is missing; {_MEND}")
    if names is not None and isinstance(cell, int):
        if not 0 <= cell < len(names):
            raise DataError(
                f"{where}: the label {cell} is none of the {len(names)} that the data set names; "
                "where the labels of a split are hidden, choose others with org/name:config@split"
            )
        return names[cell]
    if not isinstance(cell, str | int):
        raise DataError(
            f"{where}: the label must be a name or a whole number, not {cell!r}; a score belongs "
            "to two sentences: sentence1, sentence2, score"
        )
    label = " ".join(str(cell).split())
    if not label:
        raise DataError(f"{where}: the label is missing; {_MEND}")
    return label


def _classes(source: str, rows: Sequence[_Row]) -> tuple[str, ...]:
    """By number where all are numbers, else by name."""
    labels = {row.label for row in rows}
    if len(labels) < 2:
        raise DataError(
            f"{source}: the label of all {len(rows)} rows is {rows[0].label!r}; 2 classes or more "
            "are needed; is the right column taken as the label?"
        )
    numbers = all(label.isdecimal() for label in labels)
    return tuple(sorted(labels, key=lambda label: (int(label) if numbers else 0, label)))


def _describe(read: dict[str, Sequence[_Row]]) -> str:
    """Rows, classes, and what is reached by always saying the most frequent class."""
    judged = read.get("test", read.get("all", ()))
    counts = Counter(row.label for row in judged)
    (most, count), *_ = sorted(counts.items(), key=lambda it: (-it[1], it[0]))
    things = _things(len(judged[0].texts) == 2, 2)
    sizes = " + ".join(f"{len(rows):,}" for rows in read.values())
    text = f"{sizes} {things}" + ("" if "all" in read else f" ({', '.join(read)})")
    classes = len({row.label for rows in read.values() for row in rows})
    of_test = "" if "all" in read else " of the test part"
    return (
        f"{text} of {classes} classes; the most frequent, {most!r}, is "
        f"{100 * count / len(judged):.2f} %{of_test}"
    )


def _things(of_pairs: bool, count: int) -> str:
    return ("pair" if of_pairs else "sentence") + "s" * (count != 1)


class LabelledTask(Transfer):
    """Accuracy and macro-F1 of classifiers on frozen embeddings."""

    name = "labelled"

    def names(self, text: str, options: Options) -> list[TaskName] | None:
        """What follows :data:`CLASSIFY`, or a file or data set that :func:`holds_labels` knows.

        Splits other than dev and test are left out; a ConfigError if none is left.
        """
        text = text.strip()
        if text.startswith(CLASSIFY):
            require_source(text, CLASSIFY, "FILE or classify:TRAIN+TEST")
        elif not (names_own_data(text) and holds_labels(text, options.columns)):
            return None
        splits = [split for split in SPLITS[::-1] if split in options.splits]
        if not splits:
            raise ConfigError(
                f"{text!r}: labelled sentences have no score on {', '.join(options.splits)}, "
                "only on dev and test"
            )
        return [TaskName(text, split) for split in splits]

    def data(self, name: str, options: Options) -> TransferData:
        """The parts of one task, whose classes have rows for the folds."""
        task = read_labelled(name, options.columns)
        require_enough(task, options.learning)
        return task


TASK_TYPE = LabelledTask()
