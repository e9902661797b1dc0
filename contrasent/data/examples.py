"""Examples of V sentences each, streamed from text files, tables, JSON lines and Parquet."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from typing_extensions import override

from contrasent.data.columns import ColumnLayout, named_columns, table_layout
from contrasent.data.readers import (
    Trouble,
    comma_rows,
    first_row,
    json_rows,
    line_rows,
    stop,
    tab_rows,
)
from contrasent.errors import ConfigError, DataError
from contrasent.files import sha256_of

Row = tuple[str, Sequence[str | None]]
"""Where a row stands (``path:line``), and its V sentences as they are in the file."""

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


class FileExamples(Examples):
    """Examples of one file."""

    def __init__(self, path: Path, views: int, columns: str, chosen: object) -> None:
        super().__init__(str(path), views, columns)
        self.path = path
        self._chosen = chosen

    @cached_property
    @override
    def sha256(self) -> str:
        return hashlib.sha256(f"{sha256_of(self.path)}\n{self._chosen!r}".encode()).hexdigest()


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


Reader = Callable[[Path, Trouble], Iterator[tuple[int, list[str]]]]
_READERS = MappingProxyType({".txt": line_rows, ".csv": comma_rows, ".tsv": tab_rows})


class TableExamples(FileExamples):
    """Examples of a ``.txt``, ``.csv`` or ``.tsv`` file.

    Attributes:
        is_lines: a ``.txt``, whose blank lines separate documents.
    """

    def __init__(self, path: Path, kind: str, columns: Sequence[str] | None) -> None:
        self.is_lines = kind == ".txt"
        self._reader: Reader = _READERS[kind]
        rows = self._reader(path, stop)
        first, row = first_row((it for it in rows if not _is_blank(it[1])), path)
        self.layout = (
            _line_layout(path, columns)
            if kind == ".txt"
            else table_layout(row, columns, f"{path}:{first}")
        )
        self._after = first if self.layout.header else 0
        chosen = (self._after, self.layout.positions)
        super().__init__(path, len(self.layout.positions), self.layout.described, chosen)

    @override
    def rows(self, trouble: Trouble) -> Iterator[Row]:
        width, positions = self.layout.width, self.layout.positions
        blank = 0
        for number, cells in self._reader(self.path, trouble):
            if _is_blank(cells):
                blank += 1
            elif number <= self._after:
                continue
            elif len(cells) == width:
                yield f"{self.path}:{number}", [cells[position] for position in positions]
            else:
                trouble(self._ragged(number, len(cells)))
        self.blank = blank

    def _ragged(self, number: int, width: int) -> DataError:
        csv = self._reader is comma_rows
        remedy = 'cells that hold a comma need "..."' if csv else "or tabs inside sentences"
        return DataError(
            f"{self.path}:{number}: {width} column{'s' if width != 1 else ''}, but the first row "
            f"has {self.layout.width}; look for missing cells, {remedy}"
        )


def _line_layout(path: Path, columns: Sequence[str] | None) -> ColumnLayout:
    if columns is not None and list(columns) != ["0"]:
        raise ConfigError(
            f"{path} holds one sentence per line, so columns={','.join(columns)} has nothing to "
            "choose from; leave it out, or name a table .csv or .tsv"
        )
    return ColumnLayout((0,), False, 1, "1 sentence per line")


def _is_blank(cells: list[str]) -> bool:
    return not cells or (len(cells) == 1 and not cells[0].strip())


class JsonExamples(FileExamples):
    """Examples of a ``.jsonl`` file."""

    def __init__(self, path: Path, columns: Sequence[str] | None) -> None:
        first, value = first_row(json_rows(path), path)
        where = f"{path}:{first}"
        self._names: tuple[str, ...] | None = None
        self._layout: ColumnLayout | None = None
        if isinstance(value, dict):
            self._names, told = named_columns([*value], columns, where)
        elif isinstance(value, list) and value and all(isinstance(cell, str) for cell in value):
            if columns is not None and not all(column.isdecimal() for column in columns):
                raise ConfigError(f"{where}: arrays have no column names; choose by number from 0")
            self._layout = table_layout([""] * len(value), columns, where)
            told = self._layout.described
        else:
            raise DataError(f"{where}: expected an object or an array of strings in every line")
        chosen = self._names or (self._layout and self._layout.positions) or ()
        super().__init__(path, len(chosen), told, chosen)

    @override
    def rows(self, trouble: Trouble) -> Iterator[Row]:
        for number, value in json_rows(self.path, trouble):
            try:
                yield f"{self.path}:{number}", self._sentences(value, f"{self.path}:{number}")
            except DataError as error:
                trouble(error)

    def _sentences(self, value: Any, where: str) -> list[str | None]:
        if self._names is not None:
            if not isinstance(value, dict):
                raise DataError(f"{where}: expected an object, as in the first line")
            missing = [name for name in self._names if name not in value]
            if missing:
                raise DataError(f"{where}: no {missing[0]!r}, which the first line has")
            cells = [value[name] for name in self._names]
        else:
            cells = self._of_array(value, where)
        for cell in cells:
            if cell is not None and not isinstance(cell, str):
                raise DataError(f"{where}: {cell!r} is no text; sentences are strings")
            if cell and not _encodable(cell):
                raise DataError(f"{where}: half of a surrogate pair in {cell!r}; escape the whole")
        return cells

    def _of_array(self, value: Any, where: str) -> list[Any]:
        layout = self._layout
        width = layout.width if layout else 0
        if not isinstance(value, list) or len(value) != width:
            told = f"{len(value)} sentences" if isinstance(value, list) else "no array"
            raise DataError(f"{where}: {told}, but the first line is an array of {width}")
        return [value[position] for position in layout.positions] if layout else value


def _encodable(text: str) -> bool:
    return text.isascii() or not re.search("[\ud800-\udfff]", text)


_ROWS_AT_ONCE = 4096


class ParquetExamples(FileExamples):
    """Examples of a ``.parquet`` file; a null is an empty sentence, and rows count from 1."""

    def __init__(self, path: Path, columns: Sequence[str] | None) -> None:
        with opened(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
        self._names, told = named_columns(schema.names, columns, str(path))
        if not rows:
            raise DataError(f"{path} is empty; it needs at least one row")
        for name in self._names:
            if not _is_text(schema.field(name).type):
                raise DataError(
                    f"{path}: column {name!r} holds {schema.field(name).type}, not text; "
                    "choose text columns with columns="
                )
        super().__init__(path, len(self._names), told, self._names)

    @override
    def rows(self, trouble: Trouble) -> Iterator[Row]:
        for number, cells in table_rows(self.path, self._names):
            yield f"{self.path}:{number}", cells


def table_rows(path: Path, names: Sequence[str]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Rows of the named columns, counted from 1.

    Raises:
        DataError: the file is damaged.
    """
    import pyarrow

    number = 0
    with opened(path) as file:
        try:
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=list(names)):
                cells = [batch.column(name).to_pylist() for name in names]
                for row in zip(*cells, strict=True):
                    number += 1
                    yield number, row
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: damaged after row {number}: {error}") from error


def opened(path: Path) -> Any:
    """The file as pyarrow opens it.

    Raises:
        DataError: it is no Parquet file.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path, memory_map=False, pre_buffer=False)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file: {error}") from error


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    plain = kind.value_type if types.is_dictionary(kind) else kind
    return bool(
        types.is_string(plain) or types.is_large_string(plain) or types.is_string_view(plain)
    )
