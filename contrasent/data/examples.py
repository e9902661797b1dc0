"""Examples of V sentences each, streamed from the sentence columns of a source."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path

from typing_extensions import override

from contrasent.data.columns import ColumnLayout, named_columns, table_layout
from contrasent.data.readers import Trouble, stop
from contrasent.data.rows import (
    HubSource,
    JsonSource,
    ParquetSource,
    Row,
    RowSource,
    TableSource,
)
from contrasent.errors import ConfigError, DataError

# A portion is bounded both ways: short sentences are many, long ones are large.
_SENTENCES_AT_ONCE = 4096
_CHARACTERS_AT_ONCE = 1 << 20


class Examples(ABC):
    """Examples of V sentences each, read anew from the source by every iteration.

    Attributes:
        source: what was opened.
        views: V, sentences per example: anchor, positive, hard negatives.
        columns: one line saying which columns were understood, and how.
        skipped: rows with an empty sentence, which are left out; known after a whole pass.
        blank: blank lines, which are left out too; known after a whole pass over a table or lines.
        labels: the number of the class of each example, known after a whole pass; None where they
            have none.
        unlabelled: rows that were left out because they have no label, known after a whole pass.
    """

    def __init__(self, source: str, views: int, columns: str) -> None:
        self.source = source
        self.views = views
        self.columns = columns
        self.skipped = 0
        self.blank = 0
        self.labels: Sequence[int] | None = None
        self.unlabelled = 0

    @property
    @abstractmethod
    def sha256(self) -> str:
        """Hexadecimal hash of the source's content and of the chosen columns."""

    @abstractmethod
    def rows(self, trouble: Trouble) -> Iterator[Row]:
        """Rows as they stand in the source; ``trouble`` is told of those that cannot be read."""

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        """Yield V sentences at a time, without white space around them.

        Raises:
            DataError: a row cannot be read; the message names file and line.
        """
        for _, sentences in self.read(stop):
            yield sentences

    def read(self, trouble: Trouble) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Examples with where they stand; unreadable rows are left to ``trouble``."""
        skipped = 0
        for where, cells in self.rows(trouble):
            sentences = tuple([(cell or "").strip() for cell in cells])
            if all(sentences):
                yield where, sentences
            else:
                skipped += 1
        self.skipped = skipped

    def require(self, minimum: int) -> None:
        """Make sure that there are enough examples, reading no more of them than needed.

        Raises:
            DataError: there are fewer than ``minimum``.
        """
        count = sum(1 for _ in islice(self, minimum))
        if count < minimum:
            raise DataError(
                f"{self.source} holds {count} example{'s' if count != 1 else ''} without an empty "
                f"sentence, but at least {minimum} are needed; an example is a line or row"
            )


class SourceExamples(Examples):
    """Examples of the sentence columns of a source; a null is an empty sentence.

    Attributes:
        path: of a file.
        is_lines: a ``.txt``, whose blank lines separate documents.
    """

    def __init__(self, rows: RowSource, columns: Sequence[str] | None, kind: str) -> None:
        self.is_lines = kind == ".txt"
        self._rows = rows
        self.path = Path(rows.source)
        self.layout = _layout(rows, columns, is_lines=self.is_lines)
        self._names = tuple(rows.first[position] for position in self.layout.positions)
        if isinstance(rows, ParquetSource):
            rows.require_text(self._names)
        super().__init__(rows.source, len(self.layout.positions), self.layout.described)

    @cached_property
    @override
    def sha256(self) -> str:
        content = self._rows.sha256(self._names)
        if isinstance(self._rows, HubSource):
            return content
        chosen: object = self._names if self._rows.named else self.layout.positions
        if isinstance(self._rows, TableSource):
            chosen = (self._rows.number if self.layout.header else 0, chosen)
        return hashlib.sha256(f"{content}\n{chosen!r}".encode()).hexdigest()

    @override
    def rows(self, trouble: Trouble) -> Iterator[Row]:
        layout, checked = self.layout, self._rows.checked
        for where, cells in self._rows.rows(layout.positions, trouble, header=layout.header):
            if checked or (error := _no_text(cells, where)) is None:
                yield where, cells
            else:
                trouble(error)
        self.blank = self._rows.blank


def _layout(rows: RowSource, columns: Sequence[str] | None, *, is_lines: bool) -> ColumnLayout:
    if is_lines:
        if columns is not None and list(columns) != ["0"]:
            raise ConfigError(
                f"{rows.source} holds one sentence per line, so columns={','.join(columns)} has "
                "nothing to choose from; leave it out, or name a table .csv or .tsv"
            )
        return ColumnLayout((0,), False, 1, "1 sentence per line")
    if rows.named:
        names, described = named_columns(rows.first, columns, rows.where)
        positions = tuple([*rows.first].index(name) for name in names)
        return ColumnLayout(positions, False, len(rows.first), described)
    is_array = isinstance(rows, JsonSource)
    if is_array and columns is not None and not all(column.isdecimal() for column in columns):
        raise ConfigError(f"{rows.where}: arrays have no column names; choose by number from 0")
    return table_layout(rows.first, columns, rows.where)


def _no_text(cells: Sequence[object], where: str) -> DataError | None:
    """What is wrong with the first cell that is no text; None if nothing is."""
    for cell in cells:
        if cell is not None and not isinstance(cell, str):
            return DataError(f"{where}: {cell!r} is no text; sentences are strings")
        if cell and not cell.isascii() and re.search("[\ud800-\udfff]", cell):
            return DataError(f"{where}: half of a surrogate pair in {cell!r}; escape the whole")
    return None


def portions(examples: Iterable[tuple[str, ...]]) -> Iterator[list[str]]:
    """Sentences of whole examples, one example after the other, a bounded number at once."""
    portion: list[str] = []
    characters = 0
    for sentences in examples:
        portion += sentences
        characters += sum(map(len, sentences))
        if len(portion) >= _SENTENCES_AT_ONCE or characters >= _CHARACTERS_AT_ONCE:
            yield portion
            portion, characters = [], 0
    if portion:
        yield portion
