"""Rows of any source: where they stand, and their cells.

Training text, NLI, captions, scored and labelled pairs, retrieval data and search all read through
here; the columns that they look for are rows of :mod:`contrasent.data.columns`.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import cached_property
from itertools import islice
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import Any, Self

from contrasent.data.columns import ColumnMap, ColumnSpec, choose_columns
from contrasent.data.readers import (
    Dataset,
    Trouble,
    find_delimiter,
    is_url,
    lines,
    open_bytes,
    quoted_rows,
    source_kind,
    stop,
    tab_rows,
)
from contrasent.errors import DataError, shown
from contrasent.files import sha256_of

Row = tuple[str, Sequence[Any]]
"""Where a row stands (``path:line``), and a cell for each chosen column."""

_NAMED_KINDS = (None, ".csv", ".tsv", ".jsonl", ".parquet")
_ROWS_AT_ONCE = 4096
_SAMPLE, _NAMED_SAMPLE = 50, 1000
_EMPTY = "{} is empty; it needs at least one sentence per line or row"


class SourceRows(ABC):
    """Rows of a source, cells of the columns that a kind of data needs, read anew by every pass.

    ``first`` are the names of the columns, or the cells of the first row where none are certain,
    and ``where`` is its place; ``chosen`` are the columns that were understood, ``names`` their
    names, and ``described`` says how, in a line.
    """

    named = True  # `first` certainly holds names
    checked = False  # every cell is text that can be written, so that nobody need look again
    layout = ""  # how it is read, in words, where that is unusual
    blank = 0  # blank lines, which are left out; known after a whole pass, as is `later`
    chosen: ColumnMap

    def __init__(self, source: str, first: Sequence[str], where: str) -> None:
        self.source, self.first, self.where = source, first, where
        # names that come first below the rows that the names are taken from, with their place
        self.later: dict[str, str] = {}

    def choose(self, chosen: ColumnMap) -> Self:
        """Give the cells of these columns from now on."""
        self.chosen = chosen
        self.described = chosen.described + (f"; {self.layout}" if self.layout else "")
        self.names = tuple(self.first[position] for position in chosen.positions)
        return self

    @property
    def width(self) -> int:
        """Cells in every row."""
        return len(self.names)

    @abstractmethod
    def rows(self, trouble: Trouble = stop) -> Iterator[Row]:
        """Rows in the order of the source; ``trouble`` is told of those that cannot be read."""

    @cached_property
    def sha256(self) -> str:
        """Hexadecimal hash that stands for the content of the columns."""
        return sha256_of(Path(self.source))

    @cached_property
    def label_names(self) -> Sequence[str] | None:
        """Names that the source gives to the numbers in its last column; None without."""
        return None


class TableSource(SourceRows):
    """Lines, or cells between commas, tabs and the like; blank lines are left out.

    ``quoted`` says that quotes around cells are no part of them.
    """

    named, checked = False, True

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        self.quoted, self.is_lines = kind == ".csv", kind == ".txt"
        delimiter, self._after = (None, 0) if self.is_lines else find_delimiter(path)
        self._delimiter = delimiter or ","
        rows = (row for row in self._read(stop) if not _is_blank(row[1]))
        self.number, cells = next(rows, (0, []))
        if not cells:
            raise DataError(_EMPTY.format(path))
        super().__init__(str(path), cells, f"{path}:{self.number}")
        if self._delimiter != "," and self.quoted:
            self.layout = f"cells between {self._delimiter!r}"
        elif self._delimiter != "," and len(cells) == 1 and not self.is_lines:
            raise DataError(f"{self.where}: cells between {delimiter!r}; name such a file .csv")

    def _read(self, trouble: Trouble) -> Iterator[tuple[int, list[str]]]:
        if self.quoted:
            return quoted_rows(self.path, trouble, self._delimiter, self._after)
        if self.is_lines:
            return ((number, [line]) for number, line in lines(self.path, trouble))
        return tab_rows(self.path, trouble)

    def sample(self) -> list[Sequence[str]]:
        """The cells of some rows below the first one that can be read."""
        rows = self.choose(ColumnMap.every(self.first)).rows(lambda _: None)
        return [cells for _, cells in islice(rows, _SAMPLE)]

    def rows(self, trouble: Trouble = stop) -> Iterator[Row]:
        width, after = len(self.first), self.number if self.chosen.header else 0
        blank = 0
        for number, cells in self._read(trouble):
            if _is_blank(cells):
                blank += 1
            elif number <= after:
                continue
            elif len(cells) == width:
                yield f"{self.path}:{number}", [cells[it] for it in self.chosen.positions]
            else:
                given = f"{len(cells)} column{'s' * (len(cells) != 1)}"
                trouble(
                    DataError(
                        f"{self.path}:{number}: {given}, but the first row has {width}; mend the "
                        "row or take it out"
                    )
                )
        self.blank = blank

    @cached_property
    def sha256(self) -> str:
        """Of the bytes, and of how they are read where earlier releases read them otherwise.

        Up to 0.9, a carriage return alone was white space, and ended no line.
        """
        content, reading = sha256_of(self.path), self.layout
        last = b""
        with open_bytes(self.path) as file:
            while not (self.quoted or reading) and (block := file.read(1 << 20)):
                reading = "lone returns" if re.search(rb"\r[^\n]", last + block) else ""
                last = block[-1:]
        return hashlib.sha256(f"{content} {reading}".encode()).hexdigest() if reading else content


class RecordSource(SourceRows):
    """Values by their names, which those of some rows, the first ones, are taken from."""

    complete = True  # a name that a row lacks is a mistake, and otherwise a null

    @abstractmethod
    def records(self, trouble: Trouble) -> Iterator[tuple[str, Any]]:
        """Records with where they stand."""

    def head_names(self) -> list[str]:
        """The names of the first records, in the order in which they come."""
        head = islice(self.records(lambda _: None), _NAMED_SAMPLE)
        return list({name: None for _, value in head if isinstance(value, dict) for name in value})

    def rows(self, trouble: Trouble = stop) -> Iterator[Row]:
        known, names = set(self.first), self.names
        required = names[: len(names) - self.chosen.optional] if self.complete else ()
        self.later.clear()
        for where, value in self.records(trouble):
            problem = ""
            if not self.named:
                if isinstance(value, list) and len(value) == len(self.first):
                    yield where, [value[position] for position in self.chosen.positions]
                    continue
                given = f"{len(value)} sentences" if isinstance(value, list) else "no array"
                problem = f"{given}, but the first line is an array of {len(self.first)}"
            elif not isinstance(value, dict):
                problem = "expected an object, as in the first line"
            elif not known.issuperset(value):
                problem = self._note_new([it for it in value if it not in known], where)
            if not problem and (missing := [name for name in required if name not in value]):
                problem = f"no {missing[0]!r}, which other rows have; write null where it has none"
            if problem:
                trouble(DataError(f"{where}: {problem}"))
            else:
                yield where, [value.get(name) for name in names]

    def _note_new(self, new: list[str], where: str) -> str:
        """Keep new names that change nothing; of one that would have been chosen, say so."""
        for name in new:
            if name not in self.later and self.chosen.would_take(self.first, name):
                return (
                    f"{name!r}, which the first {_NAMED_SAMPLE} rows lack, so that it would be "
                    "left out; write it in the first row too, or choose with --columns"
                )
            self.later.setdefault(name, where)
        return ""


class JsonSource(RecordSource):
    """JSON objects, or arrays of strings, one per line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        where, value = next(self.records(stop), ("", None))
        if not where:
            raise DataError(_EMPTY.format(path))
        self.named = isinstance(value, dict)
        is_array = isinstance(value, list) and all(isinstance(cell, str) for cell in value)
        if not value or not (self.named or is_array):
            raise DataError(f"{where}: expected an object or an array of strings in every line")
        super().__init__(str(path), self.head_names() if self.named else [""] * len(value), where)

    def records(self, trouble: Trouble) -> Iterator[tuple[str, Any]]:
        for number, line in lines(self.path, trouble):
            where = f"{self.path}:{number}"
            if line.strip():
                try:
                    yield where, json.loads(line)
                except (ValueError, RecursionError) as error:
                    remedy = "a .jsonl file holds one object or one array per line"
                    trouble(DataError(f"{where}: not JSON: {error}; {remedy}"))


class HubSource(RecordSource):
    """A data set on the Hugging Face hub at one revision, whose rows count from 1."""

    complete = False

    def __init__(self, source: str) -> None:
        self._dataset = Dataset(source)
        super().__init__(source, [], f"{source}:1")
        self.first = self.head_names()
        if not self.first:
            raise DataError(_EMPTY.format(source))

    def records(self, trouble: Trouble) -> Iterator[tuple[str, Any]]:
        rows = enumerate(self._dataset.records(), start=1)
        return ((f"{self.source}:{number}", record) for number, record in rows)

    @cached_property
    def sha256(self) -> str:
        return self._dataset.sha256(self.names)

    @cached_property
    def label_names(self) -> Sequence[str] | None:
        return self._dataset.label_names(self.names[-1])


class ParquetSource(SourceRows):
    """Rows of a Parquet file, or of a file or folder on object storage; they count from 1.

    ``source`` is a path or a URL of pyarrow's filesystems: ``s3://``, ``gs://``, ``hdfs://``, ...
    """

    def __init__(self, source: str) -> None:
        import pyarrow
        from pyarrow import fs

        try:
            local = fs.LocalFileSystem(), source
            self._system, path = fs.FileSystem.from_uri(source) if is_url(source) else local
            found = [self._system.get_file_info(path)]
            if found[0].type == fs.FileType.Directory:
                inside = self._system.get_file_info(fs.FileSelector(path, recursive=True))
                found = [file for file in inside if file.path.endswith(".parquet")]
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{source} cannot be reached: {error}") from error
        self._files = sorted((it for it in found if it.is_file), key=lambda file: str(file.path))
        if not self._files:
            raise DataError(f"{source}: there is no Parquet file; look for a misspelling")
        self.count = 0
        self._schema: Any = None
        for file in self._files:
            with self._open(file.path) as opened:
                self._schema = self._schema or opened.schema_arrow
                self.count += opened.metadata.num_rows
                if not opened.schema_arrow.equals(self._schema):
                    first = self._files[0].path
                    raise DataError(f"{file.path} has other columns than {first}; give one kind")
        super().__init__(source, self._schema.names, source)

    def _open(self, path: str) -> Any:
        import pyarrow
        from pyarrow import parquet

        try:
            system = self._system
            return parquet.ParquetFile(path, filesystem=system, memory_map=False, pre_buffer=False)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{path}: not a readable Parquet file: {error}") from error

    @cached_property
    def sha256(self) -> str:
        """Of the bytes; of a URL, of the names, sizes and times of its files."""
        if not is_url(self.source):
            return sha256_of(Path(self.source))
        known = [(file.path, file.size, file.mtime_ns) for file in self._files]
        return hashlib.sha256(repr(known).encode()).hexdigest()

    def require_text(self, names: Sequence[str]) -> None:
        """Make sure that there are rows, and text in the columns ``names``."""
        from pyarrow import types

        if not self.count:
            raise DataError(_EMPTY.format(self.source))
        for name in names:
            kind = self._schema.field(name).type
            plain = kind.value_type if types.is_dictionary(kind) else kind
            text = (types.is_string, types.is_large_string, types.is_string_view)
            if not any(is_one(plain) for is_one in text):
                raise DataError(
                    f"{self.source}: column {name!r} holds {kind}, not text; "
                    "choose text columns with --columns"
                )
        self.checked = True

    def rows(self, trouble: Trouble = stop) -> Iterator[Row]:
        import pyarrow

        number = 0
        for part in self._files:
            with self._open(part.path) as file:
                try:
                    for batch in file.iter_batches(_ROWS_AT_ONCE, columns=[*self.names]):
                        columns = [batch.column(name).to_pylist() for name in self.names]
                        for cells in zip(*columns, strict=True):
                            number += 1
                            yield f"{self.source}:{number}", cells
                except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
                    raise DataError(
                        f"{self.source}: damaged after row {number}: {error}"
                    ) from error


def open_rows_of(
    source: str, wanted: ColumnSpec, columns: Sequence[str] | None = None
) -> SourceRows:
    """Understand a file or a Hugging Face data set as rows of a kind.

    ``.csv``, ``.jsonl`` and ``.parquet`` are what they are called; any other file holds cells
    between tabs, as SNLI's ``.txt`` and Flickr30k's ``.token``. The text files may be gzipped.
    DataError if the source is missing, empty, or its first row cannot be understood; ConfigError
    if ``columns`` does not fit the source; MissingExtraError if a data set is asked for, but
    ``datasets`` is not installed.
    """
    kind = source_kind(source)
    rows = open_source(source, kind if kind in _NAMED_KINDS else ".tsv")
    if isinstance(rows, JsonSource) and not rows.named:
        raise DataError(f"{rows.where}: expected an object with named values in every line")
    if isinstance(rows, TableSource) and len(rows.first) == 1 and kind != ".csv":
        raise DataError(
            f"{rows.where}: no tab in the first row, so there are no columns; "
            "a file with commas between its cells is to be named .csv"
        )
    return rows.choose(choose_columns(rows.first, wanted, columns, rows.where, named=rows.named))


def open_source(source: str, kind: str | None) -> SourceRows:
    """Open a source of a known ``kind``."""
    if kind is None:
        return HubSource(source)
    if kind == ".parquet":
        return ParquetSource(source)
    return JsonSource(Path(source)) if kind == ".jsonl" else TableSource(Path(source), kind)


_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def as_number(cell: Any) -> float | None:
    """A finite number, from a value that is one or from text in decimal digits; None of others.

    What only Python takes for a number is none: ``4_5``, ``nan``, digits of other scripts.
    """
    if isinstance(cell, str):
        plain = _NUMBER.fullmatch(cell.strip()) is not None
    else:
        plain = isinstance(cell, Real | Decimal) and not isinstance(cell, bool)
    try:
        return number if plain and isfinite(number := float(cell)) else None
    except (OverflowError, ValueError):
        return None


def score_of(score: Any, where: str) -> float:
    """The number in a cell; DataError if it holds none."""
    number = as_number(score)
    if number is None:
        cell = score.strip() if isinstance(score, str) else score
        raise DataError(f"{where}: the score must be a number, not {shown(cell)}")
    return number


def as_text(cell: Any, where: str) -> str:
    """The sentence in a cell, with one space wherever there is white space; empty for a null."""
    require_text(cell, where)
    if cell and "\0" in cell:
        raise DataError(f"{where}: a NUL character in {shown(cell)}, so it is no text")
    return " ".join(cell.split()) if cell else ""


def require_text(cell: Any, where: str) -> None:
    """Make sure that a cell is null or text that can be written as UTF-8."""
    if cell is None:
        return
    if not isinstance(cell, str):
        raise DataError(f"{where}: {shown(cell)} is no text; sentences are strings")
    if not cell.isascii() and re.search("[\ud800-\udfff]", cell):
        raise DataError(f"{where}: half of a surrogate pair in {shown(cell)}; escape the whole")


def _is_blank(cells: list[str]) -> bool:
    return not cells or (len(cells) == 1 and not cells[0].strip())
