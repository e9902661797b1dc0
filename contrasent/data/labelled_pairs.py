"""Pairs of sentences with a label or a score, and the columns that hold them."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from contrasent.data.build.nli import CONTRADICTION, ENTAILMENT, NEUTRAL, WANTED, NliLabels
from contrasent.data.columns import ColumnSpec
from contrasent.data.examples import Examples
from contrasent.data.readers import Trouble, stop
from contrasent.data.rows import SourceRows, as_text, open_rows_of, score_of
from contrasent.errors import DataError

T = TypeVar("T", int, float)

CLASSES = (CONTRADICTION, ENTAILMENT, NEUTRAL)
"""In the order of their numbers, which is that of sentence-transformers' NLI examples."""

_WANTED = replace(
    WANTED,
    mend="mend the row, or take it out",
    option="--data.columns '[{}]'",
)


class _PairExamples(Examples):
    """Both sentences of each row, beside something that is read of its third cell."""

    def __init__(self, records: SourceRows, beside: str) -> None:
        super().__init__(records.source, 2, records.described)
        self._records, self._beside = records, beside
        self.layout, self.later = records.reader.layout, records.reader.later

    @property
    def sha256(self) -> str:
        # The same bytes may be read as quoted cells or as cells between tabs.
        quoted = "\nquoted" if getattr(self._records.reader, "quoted", False) else ""
        content = f"{self._records.sha256}\n{self.columns}\n{self._beside}{quoted}"
        return hashlib.sha256(content.encode()).hexdigest()

    def _rows(
        self, trouble: Trouble, understand: Callable[[Any, str], T | None], kept: array[T]
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Rows with two sentences, what ``understand`` makes of the others' cell in ``kept``."""
        skipped = without = 0
        for where, (first, second, cell) in self._records.rows(trouble):
            try:
                value = understand(cell, where)
                sentences = as_text(first, where), as_text(second, where)
            except DataError as error:
                trouble(error)
                continue
            if value is None:
                without += 1
            elif all(sentences):
                kept.append(value)
                yield where, sentences
            else:
                skipped += 1
        self.skipped, self.unlabelled = skipped, without


class LabelledExamples(_PairExamples):
    """Premise and hypothesis of each row that has a label, and the number of its class.

    Words, and numbers that the source explains, are numbered as in :data:`CLASSES`. Other numbers
    are taken as they are: a classifier of three classes does not ask for their order.
    """

    def __init__(self, records: SourceRows) -> None:
        super().__init__(records, f"labels {CLASSES}")
        self._words = NliLabels(records.source, records.label_names, None)
        self._explained = records.label_names is not None and "=" in self._words.described
        self._numbers: bool | None = None

    def read(self, trouble: Trouble) -> Iterator[tuple[str, tuple[str, ...]]]:
        labels = array("B")
        yield from self._rows(trouble, self._class, labels)
        self.labels = labels

    def require(self, minimum: int) -> None:
        """Make sure that there are enough examples, and some of each class."""
        super().require(minimum)
        classes: set[int] = set()
        for where, (_, _, mark) in self._records.rows(stop):
            label = self._class(mark, where)
            classes |= set() if label is None else {label}
            if len(classes) == len(CLASSES):
                return
        require_classes(self.source, classes)

    @property
    def class_names(self) -> tuple[str, ...]:
        """What each number stands for, known once a row was read; it itself if none says so."""
        return tuple(map(str, range(len(CLASSES)))) if self._numbers else CLASSES

    def _class(self, mark: object, where: str) -> int | None:
        word = "" if mark is None else str(mark).strip()
        is_number = word.isascii() and word.isdecimal() and not self._explained
        if not is_number:
            understood = self._words.understood(mark, where)
            if understood is None:
                return None
        if self._numbers not in (None, is_number):
            raise DataError(
                f"{where}: the label is {mark!r}, but those before are "
                f"{'numbers' if self._numbers else 'words'}; use one of the two"
            )
        self._numbers = is_number
        if not is_number:
            return CLASSES.index(str(understood))
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


def open_labelled(source: str, columns: Sequence[str] | None = None) -> LabelledExamples:
    """Understand a file or a Hugging Face data set as labelled pairs.

    ``columns`` are those of premise, hypothesis and label; None knows them by name. The errors are
    those of :func:`contrasent.data.rows.open_rows_of`.
    """
    return LabelledExamples(open_rows_of(source, _WANTED, columns))


PAIRS = ColumnSpec(
    roles=("first sentence", "second sentence", "score"),
    names=(
        (
            *("sentence1", "sentence_1", "sentence_a", "text1", "text_a", "sent0", "first"),
            *("question1", "premise", "anchor", "query"),
        ),
        (
            *("sentence2", "sentence_2", "sentence_b", "text2", "text_b", "sent1", "second"),
            *("question2", "hypothesis", "positive", "document"),
        ),
        (
            *("score", "similarity", "similarity_score", "relatedness_score", "gold", "rating"),
            *("label", "is_duplicate"),
        ),
    ),
    ranked=("score",),
    bare=(3,),
    numeric=True,
    mend="mend the row or take it out",
    otherwise="if it holds sentences with labels, name it classify:FILE",
)
"""Two sentences and how alike they are."""


class ScoredExamples(_PairExamples):
    """The two sentences of each row, and their score.

    ``scores`` is known after a whole pass.
    """

    def __init__(self, records: SourceRows) -> None:
        super().__init__(records, "scores")
        self.scores: Sequence[float] | None = None

    def read(self, trouble: Trouble) -> Iterator[tuple[str, tuple[str, ...]]]:
        scores = array("f")
        yield from self._rows(trouble, score_of, scores)
        self.scores = scores


def open_scored(source: str, columns: Sequence[str] | None = None) -> ScoredExamples:
    """Understand a file or a Hugging Face data set as pairs with a score.

    ``columns`` are those of both sentences and of the score; None knows them by name. The errors
    are those of :func:`contrasent.data.rows.open_rows_of`.
    """
    wanted = replace(PAIRS, option="--data.columns '[{}]'", otherwise="")
    return ScoredExamples(open_rows_of(source, wanted, columns))
