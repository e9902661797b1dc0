"""Pairs of sentences with a label or a score, and the columns that hold them."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from contrasent.data.batch import Need
from contrasent.data.columns import NLI, RATED_PAIRS, ColumnSpec
from contrasent.data.examples import Examples
from contrasent.data.readers import Trouble
from contrasent.data.rows import SourceRows, as_text, open_rows_of, score_of
from contrasent.errors import ConfigError, DataError

ENTAILMENT, NEUTRAL, CONTRADICTION = LABELS = ("entailment", "neutral", "contradiction")
CLASSES = (CONTRADICTION, ENTAILMENT, NEUTRAL)
"""In the order of their numbers, which is that of sentence-transformers' NLI examples."""

_NLI = {
    **dict.fromkeys(("entailment", "entails", "entailed", "e"), ENTAILMENT),
    **dict.fromkeys(("neutral", "n"), NEUTRAL),
    **dict.fromkeys(("contradiction", "contradicts", "contradictory", "c"), CONTRADICTION),
}
_YES_OR_NO = {"1": True, "true": True, "1.0": True, "0": False, "false": False, "0.0": False}
_NONE = {"", "-", "-1", "none", "nan"}


class NliLabels:
    """Understands the labels of one source.

    Words are known; numbers need names, the data set's own or the user's ``order`` from 0: data
    sets count the three labels in different orders, and a wrong guess would train contradictions
    as positives. ConfigError if ``order`` lacks a label or differs from ``own_names``.
    """

    def __init__(
        self, source: str, own_names: Sequence[str] | None, order: Sequence[str] | None = None
    ) -> None:
        own, asked = (
            [_NLI.get(name.strip().lower(), "") for name in names or ()]
            for names in (own_names, order)
        )
        if order is not None and sorted(asked) != sorted(LABELS):
            raise ConfigError(
                f"--labels {','.join(order)} does not name each of {', '.join(LABELS)} once; "
                "give them in the order of their numbers, from 0"
            )
        own = [] if "" in own else own
        if own and asked and own != asked:
            raise ConfigError(
                f"{source}: --labels {','.join(asked)} is not the data set's own order, "
                f"{','.join(own)}; leave --labels out"
            )
        self._source = source
        self.numbers = own or asked
        self.described = "words such as entailment, or their first letters"
        if self.numbers:
            listed = ", ".join(f"{number} = {name}" for number, name in enumerate(self.numbers))
            self.described = f"{listed} ({'the data set says so' if own else 'as asked for'})"

    def understood(self, label: Any, where: str) -> str | None:
        """One of :data:`LABELS`; None if the row has none, and an error if it is not known."""
        word = "" if label is None else str(label).strip().lower()
        if word in _NLI or word in _NONE:
            return _NLI.get(word)
        is_number = word.isascii() and word.isdecimal()
        if is_number and not self.numbers:
            raise ConfigError(
                f"{where}: the label is the number {word}, and {self._source} does not say what "
                "it stands for; name the numbers from 0 on, as --labels "
                "entailment,neutral,contradiction, after the data set's description"
            )
        if not is_number or int(word) >= len(self.numbers):
            raise DataError(
                f"{where}: unknown label {label!r}; known are {', '.join(LABELS)}, "
                "their first letters, the numbers that have a name, and - for none"
            )
        return self.numbers[int(word)]


def yes_or_no(label: Any, where: str) -> bool | None:
    """Whether two questions are duplicates; None if the row does not say."""
    word = "" if label is None else str(label).strip().lower()
    if word not in _YES_OR_NO and word not in _NONE:
        raise DataError(
            f"{where}: unknown label {label!r}; 1 or true says that the two mean the same, "
            "0 or false that they do not"
        )
    return _YES_OR_NO.get(word)


@dataclass(frozen=True, slots=True, kw_only=True)
class SideColumn:
    """A number beside the two sentences of each row, to be kept with their tokens."""

    need: Need
    kind: str  # of the numbers in memory, as :class:`array.array` names it
    spec: ColumnSpec  # both sentences, then the cell of the number
    # makes a function from a cell of a source and its place to the number, or None for a row that
    # has none and is left out
    parser: Callable[[SourceRows], Callable[[Any, str], float | None]]
    content: str  # stands for the meaning of the numbers in the hash of the content
    read: str  # by an objective that needs it, in words
    wrongly: str  # would be taken by one that does not


class PairExamples(Examples):
    """Both sentences of each row, and the number of a side column."""

    def __init__(self, rows: SourceRows, side: SideColumn) -> None:
        super().__init__(rows, views=2)
        self.parse = side.parser(rows)
        self._side = side

    @property
    def sha256(self) -> str:
        # The same bytes may be read as quoted cells or as cells between tabs.
        quoted = "\nquoted" if getattr(self.rows, "quoted", False) else ""
        content = f"{self.rows.sha256}\n{self.columns}\n{self._side.content}{quoted}"
        return hashlib.sha256(content.encode()).hexdigest()

    def read(self, trouble: Trouble) -> Iterator[tuple[str, tuple[str, ...]]]:
        numbers: array[Any] = array(self._side.kind)
        skipped = without = 0
        for where, (first, second, cell) in self.rows.rows(trouble):
            try:
                number = self.parse(cell, where)
                sentences = as_text(first, where), as_text(second, where)
            except DataError as error:
                trouble(error)
                continue
            if number is None:
                without += 1
            elif all(sentences):
                numbers.append(number)
                yield where, sentences
            else:
                skipped += 1
        self.skipped, self.unlabelled = skipped, without
        self.numbers = {self._side.need: numbers}

    def require(self, minimum: int) -> None:
        """Make sure that there are enough examples and, of labels, some of each class."""
        super().require(minimum)
        if isinstance(self.parse, NliClasses):
            classes: set[int] = set()
            for where, (_, _, cell) in self.rows.rows():
                number = self.parse(cell, where)
                classes |= set() if number is None else {number}
                if len(classes) == len(CLASSES):
                    return
            require_classes(self.source, classes)


class NliClasses:
    """The number of the class that a cell names.

    Words, and numbers that the source explains, are numbered as in :data:`CLASSES`. Other numbers
    are taken as they are: a classifier of three classes does not ask for their order.
    """

    def __init__(self, rows: SourceRows) -> None:
        self._words = NliLabels(rows.source, rows.label_names)
        self._numbers: bool | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each number, known once a row was read; the number itself if none says so."""
        return tuple(map(str, range(len(CLASSES)))) if self._numbers else CLASSES

    def __call__(self, cell: object, where: str) -> int | None:
        """The number; None for a row without a class."""
        word = "" if cell is None else str(cell).strip()
        is_number = word.isascii() and word.isdecimal() and not self._words.numbers
        understood = word if is_number else self._words.understood(cell, where)
        if understood is None:
            return None
        if self._numbers not in (None, is_number):
            raise DataError(
                f"{where}: the label is {cell!r}, but those before are "
                f"{'numbers' if self._numbers else 'words'}; use one of the two"
            )
        self._numbers = is_number
        if not is_number:
            return CLASSES.index(understood)
        if int(word) >= len(CLASSES):
            raise DataError(
                f"{where}: the label is the number {word}, but a pair is of one of "
                f"{len(CLASSES)} classes, 0 to {len(CLASSES) - 1}"
            )
        return int(word)


def require_classes(source: str, classes: Collection[int]) -> None:
    """Make sure that there are pairs of all classes."""
    if len(classes) == len(CLASSES):
        return
    listed = ", ".join(f"{number} ({CLASSES[number]})" for number in sorted(classes))
    raise DataError(
        f"{source} has pairs of the classes {listed} only, but three are needed: "
        f"{', '.join(CLASSES)}; give natural language inference with three labels, such as "
        "SNLI or MultiNLI"
    )


SIDE_COLUMNS = {
    "nli": SideColumn(
        need=Need.LABELS,
        kind="B",
        spec=NLI,
        parser=NliClasses,
        content=f"labels {CLASSES}",
        read="labels: premise, hypothesis, label",
        wrongly="contradictions for positives",
    ),
    "scores": SideColumn(
        need=Need.SCORES,
        kind="f",
        spec=RATED_PAIRS,
        parser=lambda _: score_of,
        content="scores",
        read="scores: sentence1, sentence2, score",
        wrongly="every pair for a positive",
    ),
}
"""The values of ``data.labels`` beside none; `settings` has their names and help."""


def open_pairs(source: str, labels: str, columns: Sequence[str] | None = None) -> PairExamples:
    """Understand a file or a Hugging Face data set as pairs with a number of :data:`SIDE_COLUMNS`.

    ``columns`` are those of both sentences and of the number; None knows them by name. The errors
    are those of :func:`contrasent.data.rows.open_rows_of`.
    """
    side = SIDE_COLUMNS[labels]
    return PairExamples(open_rows_of(source, side.spec, columns), side)
