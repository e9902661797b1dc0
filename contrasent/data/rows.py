"""Rows of any source: sentences with a label or a score."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from typing_extensions import override

from contrasent.data.columns import ColumnMap, ColumnSpec, choose_columns
from contrasent.data.examples import opened, table_rows
from contrasent.data.hub_datasets import Dataset, dataset_parts
from contrasent.data.readers import Trouble, comma_rows, first_row, json_rows, lines, stop, tab_rows
from contrasent.errors import DataError
from contrasent.files import sha256_of

Record = tuple[str, Sequence[Any]]
"""Where a row stands (``path:line``), and a cell for each role."""


class SourceRows(ABC):
    """Rows of one source, read anew by every iteration.

    Attributes:
        source: what was opened.
        described: one line saying which columns were understood, and how.
        width: cells in every row.
        label_names: names that the source gives to the numbers in its last column; None without.
    """

    def __init__(self, source: str, described: str, width: int) -> None:
        self.source = source
        self.described = described
        self.width = width
        self.label_names: Sequence[str] | None = None

    @property
    @abstractmethod
    def sha256(self) -> str:
        """Hexadecimal hash that stands for the content."""

    @abstractmethod
    def rows(self, trouble: Trouble = stop) -> Iterator[Record]:
        """Rows in the order of the source; ``trouble`` is told of those that cannot be read."""


def open_rows_of(
    source: str, wanted: ColumnSpec, columns: Sequence[str] | None = None
) -> SourceRows:
    """Understand a file or a Hugging Face data set as rows of a kind.

    ``.csv``, ``.jsonl`` and ``.parquet`` are what they are called; any other file holds cells
    between tabs, as SNLI's ``.txt`` and Flickr30k's ``.token``. The text files may be gzipped.
    Where a label is wanted, ``s1.NAME`` stands for the parallel lines of ``s1.NAME``, ``s2.NAME``
    and ``labels.NAME``, as InferSent's.

    Raises:
        DataError: the source is missing, empty, or its first row cannot be understood.
        ConfigError: ``columns`` does not fit the source.
        MissingExtraError: a data set is asked for, but ``datasets`` is not installed.
    """
    path = Path(source)
    if not path.exists() and (parts := dataset_parts(source)):
        return HubRecords(Dataset(source, parts), wanted, columns)
    if path.is_dir():
        raise DataError(f"{source} is a folder; give the files in it")
    if not path.exists():
        raise DataError(f"there is no file {source}; look for a misspelling, or give a full path")
    kind = Path(path.name.lower().removesuffix(".gz")).suffix
    if kind == ".parquet":
        return ParquetRecords(path, wanted, columns)
    if kind == ".jsonl":
        return JsonRecords(path, wanted, columns)
    if path.name.startswith("s1.") and "label" in wanted.roles and kind not in (".csv", ".tsv"):
        return ParallelRecords(path)
    return TableRecords(path, kind, wanted, columns)


class FileRecords(SourceRows):
    """Rows of one file."""

    def __init__(self, path: Path, chosen: ColumnMap) -> None:
        super().__init__(str(path), chosen.described, len(chosen.positions))
        self._path = path
        self._chosen = chosen

    @property
    @override
    def sha256(self) -> str:
        return sha256_of(self._path)


class TableRecords(FileRecords):
    """Rows of comma- or tab-separated cells; blank lines are left out."""

    def __init__(
        self, path: Path, kind: str, wanted: ColumnSpec, columns: Sequence[str] | None
    ) -> None:
        self._reader = comma_rows if kind == ".csv" else tab_rows
        rows = self._reader(path, stop)
        self._first, cells = first_row((it for it in rows if not _is_blank(it[1])), path)
        where = f"{path}:{self._first}"
        self._columns = len(cells)
        self._mend = wanted.mend
        if len(cells) == 1 and kind != ".csv":
            raise DataError(
                f"{where}: no tab in the first row, so there are no columns; "
                "a file with commas between its cells is to be named .csv"
            )
        super().__init__(path, choose_columns(cells, wanted, columns, where, named=False))

    @override
    def rows(self, trouble: Trouble = stop) -> Iterator[Record]:
        positions = self._chosen.positions
        for number, cells in self._reader(self._path, trouble):
            if _is_blank(cells) or (number == self._first and self._chosen.header):
                continue
            if len(cells) == self._columns:
                yield f"{self._path}:{number}", [cells[position] for position in positions]
            else:
                trouble(self._ragged(number, len(cells)))

    def _ragged(self, number: int, found: int) -> DataError:
        return DataError(
            f"{self._path}:{number}: {found} column{'s' if found != 1 else ''}, but the first row "
            f"has {self._columns}; {self._mend}"
        )


class JsonRecords(FileRecords):
    """Rows of JSON objects, one per line."""

    def __init__(self, path: Path, wanted: ColumnSpec, columns: Sequence[str] | None) -> None:
        number, first = first_row(json_rows(path), path)
        where = f"{path}:{number}"
        if not isinstance(first, dict):
            raise DataError(f"{where}: expected an object with named values in every line")
        chosen = choose_columns([*first], wanted, columns, where, named=True)
        self._names = [[*first][position] for position in chosen.positions]
        super().__init__(path, chosen)

    @override
    def rows(self, trouble: Trouble = stop) -> Iterator[Record]:
        for number, value in json_rows(self._path, trouble):
            where = f"{self._path}:{number}"
            if not isinstance(value, dict):
                trouble(DataError(f"{where}: expected an object, as in the first line"))
            elif missing := [name for name in self._names if name not in value]:
                trouble(DataError(f"{where}: no {missing[0]!r}, which the first line has"))
            else:
                yield where, [value[name] for name in self._names]


class ParquetRecords(FileRecords):
    """Rows of a Parquet file, counted from 1."""

    def __init__(self, path: Path, wanted: ColumnSpec, columns: Sequence[str] | None) -> None:
        with opened(path) as file:
            names = file.schema_arrow.names
        chosen = choose_columns(names, wanted, columns, str(path), named=True)
        self._names = [names[position] for position in chosen.positions]
        super().__init__(path, chosen)

    @override
    def rows(self, trouble: Trouble = stop) -> Iterator[Record]:
        for number, cells in table_rows(self._path, self._names):
            yield f"{self._path}:{number}", cells


class HubRecords(SourceRows):
    """Rows of a data set on the Hugging Face hub, counted from 1, at one revision."""

    def __init__(self, dataset: Dataset, wanted: ColumnSpec, columns: Sequence[str] | None) -> None:
        self._dataset = dataset
        names = [*dataset.first()]
        chosen = choose_columns(names, wanted, columns, f"{dataset.source}:1", named=True)
        self._names = [names[position] for position in chosen.positions]
        super().__init__(dataset.source, chosen.described, len(self._names))
        self.label_names = dataset.label_names(self._names[-1])

    @property
    @override
    def sha256(self) -> str:
        return self._dataset.sha256(tuple(self._names))

    @override
    def rows(self, trouble: Trouble = stop) -> Iterator[Record]:
        for number, record in enumerate(self._dataset.records(), start=1):
            yield f"{self.source}:{number}", [record.get(name) for name in self._names]


class ParallelRecords(SourceRows):
    """Rows of three files with a line each: premise, hypothesis and label."""

    def __init__(self, path: Path) -> None:
        end = path.name.removeprefix("s1.")
        self._paths = [path, path.with_name(f"s2.{end}"), path.with_name(f"labels.{end}")]
        for other in self._paths[1:]:
            if not other.exists():
                raise DataError(
                    f"there is no file {other}, which belongs to the lines of {path}; "
                    "give a table, or put the three files beside one another"
                )
        told = f"lines of {path.name} as premise, s2.{end} as hypothesis, labels.{end} as label"
        super().__init__(str(path), told, 3)

    @property
    @override
    def sha256(self) -> str:
        return " ".join(map(sha256_of, self._paths))

    @override
    def rows(self, trouble: Trouble = stop) -> Iterator[Record]:
        # Without the lines that cannot be read the files would no longer be parallel.
        files = [(line.rstrip("\r\n") for _, line in lines(path)) for path in self._paths]
        for number, cells in enumerate(zip_longest(*files), start=1):
            if None in cells:
                short = self._paths[cells.index(None)]
                raise DataError(f"{short}: ends before line {number}, which the others have")
            if any(cells):
                yield f"{self._paths[0]}:{number}", cells


def as_text(cell: Any, where: str) -> str:
    """The sentence in a cell, with one space wherever there is white space; empty for a null.

    Raises:
        DataError: the cell is no text that can be written.
    """
    if cell is None:
        return ""
    if not isinstance(cell, str):
        raise DataError(f"{where}: {cell!r} is no text; sentences are strings")
    if not cell.isascii() and re.search("[\ud800-\udfff]", cell):
        raise DataError(f"{where}: half of a surrogate pair in {cell!r}; escape the whole")
    if "\0" in cell:
        raise DataError(f"{where}: a NUL character in {cell!r}, so it is no text")
    return " ".join(cell.split())


def _is_blank(cells: list[str]) -> bool:
    return not cells or (len(cells) == 1 and not cells[0].strip())
