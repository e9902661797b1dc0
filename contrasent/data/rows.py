"""Rows of any source: where they stand, and their cells."""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from decimal import Decimal
from functools import cached_property, partial
from itertools import islice
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import Any, Self

from contrasent.data import readers
from contrasent.data.columns import ColumnMap, choose_columns
from contrasent.errors import DataError, first_line, require_extra, shown
from contrasent.files import sha256_of

Row = tuple[str, Sequence[Any]]  # where it stands (``path:line``), a cell of each chosen column

_ROWS_AT_ONCE = 4096
_SAMPLE, _NAMED_SAMPLE = 50, 1000


class SourceRows(ABC):
    """Rows of a source, cells of the columns that a kind of data needs, read anew by every pass.

    ``first`` are the names of the columns, or the cells of the first row, at ``where``; ``chosen``
    are the columns that were understood, ``names`` theirs, and ``described`` says how, in a line.
    """

    named = True  # `first` certainly holds names
    layout = ""  # how it is read, in words, where that is unusual
    blank = 0  # blank lines, which are left out, up to the row that a pass has come to

    def __init__(self, source: str, first: Sequence[str], where: str) -> None:
        if not first:
            raise DataError(f"{source} is empty; it needs at least one sentence per line or row")
        self.source, self.first, self.where = source, first, where

    def choose(self, chooser: Callable[[Sequence[str]], ColumnMap]) -> Self:
        """Give the cells of the columns that are chosen by :attr:`first` from now on."""
        self._chooser, self.chosen = chooser, chooser(self.first)
        self.described = self.chosen.described + (f"; {self.layout}" if self.layout else "")
        self.names = tuple(self.first[position] for position in self.chosen.positions)
        return self

    def beside(self, taken: Collection[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Where each row stands, and its cells of named columns that were not chosen.

        A ``taken`` name gets ``row_`` before it, a repeated one its number; without embeddings.
        """
        header, own = self.chosen.header, self.chosen.positions
        names = [it.strip() for it in (self.first if self.named or header else ())]
        rest = dict[int, str]()
        for n, it in enumerate(names):
            name = f"row_{it}" if it in taken else it
            if it and n not in own:
                rest[n] = f"{n}_{name}" if it in names[:n] or name in rest.values() else name
        wide = copy(self).choose(lambda x: ColumnMap((*range(len(x)),), header, "", "name", len(x)))
        for where, cells in wide.rows():
            kept = ((name, cells[n]) for n, name in rest.items() if not _is_bulk(cells[n]))
            yield where, {name: None if cell == "" else cell for name, cell in kept}

    @abstractmethod
    def rows(self, trouble: readers.Trouble = readers.stop) -> Iterator[Row]:
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
    """Lines, or cells between commas, tabs and the like; blank lines are left out."""

    named = False

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        self.is_lines = kind == ".txt"
        delimiter, after = readers.find_delimiter(path, "\t" if self.is_lines else ",;|")
        if kind == ".tsv" and readers.has_quotes(path):
            kind, delimiter = ".csv", "\t"
        self.quoted, self._delimiter = kind == ".csv", delimiter or ","
        rows = (it for it in self._read(readers.stop) if it[0] > after and not _is_blank(it[1]))
        self.number, cells = next(rows, (0, []))
        super().__init__(str(path), cells, f"{path}:{self.number}")
        if self._delimiter != "," and self.quoted:
            self.layout = f"cells between {self._delimiter!r}"
        elif self._delimiter != "," and len(cells) == 1:
            kind = ".tsv" if delimiter == "\t" else ".csv"
            raise DataError(f"{self.where}: cells between {delimiter!r}; name such a file {kind}")

    def _read(self, trouble: readers.Trouble) -> Iterator[tuple[int, list[str]]]:
        if self.quoted:
            return readers.quoted_rows(self.path, trouble, self._delimiter)
        if self.is_lines:
            return ((number, [line]) for number, line in readers.lines(self.path, trouble))
        return readers.tab_rows(self.path, trouble)

    def sample(self) -> list[Sequence[str]]:
        """The cells of some rows below the first one that can be read."""
        rows = self.choose(ColumnMap.every).rows(lambda _: None)
        return [cells for _, cells in islice(rows, _SAMPLE)]

    def rows(self, trouble: readers.Trouble = readers.stop) -> Iterator[Row]:
        width, self.blank = len(self.first), 0
        after = self.number if self.chosen.header else self.number - 1
        for number, cells in self._read(trouble):
            if _is_blank(cells):
                self.blank += 1
            elif number <= after:
                continue
            elif len(cells) == width:
                yield f"{self.path}:{number}", [cells[it] for it in self.chosen.positions]
            else:
                given = f"{len(cells)} column{'s' * (len(cells) != 1)}"
                what = f"{given}, but the first row has {width}; mend the row or take it out"
                trouble(DataError(f"{self.path}:{number}: {what}"))

    @cached_property
    def sha256(self) -> str:
        """Of the bytes, and of how they are read where they tell it."""
        content = sha256_of(self.path)
        identity = f"{content} {self.layout}".encode()
        return hashlib.sha256(identity).hexdigest() if self.layout else content


class RecordSource(SourceRows):
    """Values by their names, which those of some rows, the first ones, are taken from."""

    @abstractmethod
    def records(self, trouble: readers.Trouble) -> Iterator[tuple[str, Any]]:
        """Records with where they stand."""

    def head_names(self) -> list[str]:
        """The names of the first records, in the order in which they come."""
        head = islice(self.records(lambda _: None), _NAMED_SAMPLE)
        return list({name: None for _, value in head if isinstance(value, dict) for name in value})

    def rows(self, trouble: readers.Trouble = readers.stop) -> Iterator[Row]:
        known, names = set(self.first), self.names
        required = names[: len(names) - self.chosen.optional]
        for where, value in self.records(trouble):
            problem = ""
            if not self.named:
                if isinstance(value, list) and len(value) == len(self.first):
                    yield where, [value[position] for position in self.chosen.positions]
                    continue
                problem = f"expected an array of {len(self.first)} sentences, as in the first line"
            elif not isinstance(value, dict):
                problem = "expected an object, as in the first line"
            elif missing := [name for name in required if name not in value]:
                problem = f"no {missing[0]!r}, which other rows have; write null where it has none"
            elif self.chosen.by == "name" and not known.issuperset(value):
                new = [name for name in value if name not in known]
                if taken := next(filter(self._counts, new), None):
                    problem = f"{taken!r} would be left out; write it in the first row too"
                known.update(() if problem else new)
            if problem:
                trouble(DataError(f"{where}: {problem}"))
            else:
                yield where, [value.get(name) for name in names]

    def _counts(self, name: str) -> bool:
        """True if other columns had been chosen if this name had stood behind the others."""
        try:
            return self._chooser([*self.first, name]).positions != self.chosen.positions
        except DataError:
            return True


class JsonSource(RecordSource):
    """JSON objects, or arrays of strings, one per line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        where, value = next(self.records(readers.stop), ("", None))
        self.named = isinstance(value, dict)
        is_array = isinstance(value, list) and all(isinstance(cell, str) for cell in value)
        if where and not (value and (self.named or is_array)):
            raise DataError(f"{where}: expected an object or an array of strings in every line")
        first = self.head_names() if self.named else [""] * len(value or ())
        super().__init__(str(path), first, where)

    def records(self, trouble: readers.Trouble) -> Iterator[tuple[str, Any]]:
        for number, line in readers.lines(self.path, trouble):
            where = f"{self.path}:{number}"
            if line.strip():
                try:
                    yield where, json.loads(line)
                except (ValueError, RecursionError) as error:
                    remedy = "a .jsonl file holds one object or one array per line"
                    trouble(DataError(f"{where}: not JSON: {error}; {remedy}"))


class HubSource(RecordSource):
    """A data set on the Hugging Face hub at one revision, whose rows count from 1."""

    def __init__(self, source: str) -> None:
        parts: Any = readers.dataset_parts(source)
        require_extra("a data set of the hub", "datasets", "datasets")
        from huggingface_hub import HfApi

        self.source = source
        self._name, self._config, split = parts["name"], parts["config"], parts["split"]
        self._split = split or "train"
        with self._explain():
            self.revision = str(HfApi().dataset_info(self._name).sha)
        super().__init__(source, self.head_names(), f"{source}:1")

    def records(self, trouble: readers.Trouble) -> Iterator[tuple[str, Any]]:
        with self._explain():
            for number, record in enumerate(self._load(), start=1):
                yield f"{self.source}:{number}", record

    @cached_property
    def sha256(self) -> str:
        """Hash of the revision and of the chosen columns, which stands for the content."""
        content = (self._name, self._config, self._split, self.revision, self.names)
        return hashlib.sha256(repr(content).encode()).hexdigest()

    @cached_property
    def label_names(self) -> Sequence[str] | None:
        with self._explain():
            features = getattr(self._load(), "features", None) or {}
        return getattr(features.get(self.names[-1]), "names", None)

    def _load(self) -> Any:
        import datasets

        settings = {"split": self._split, "revision": self.revision, "streaming": True}
        return datasets.load_dataset(self._name, self._config, **settings)

    @contextmanager
    def _explain(self) -> Iterator[None]:
        """Name the data set in whatever goes wrong; its libraries raise all kinds of errors."""
        try:
            yield
        except Exception as error:
            raise DataError(
                f"cannot read the data set {self.source!r}: {first_line(error)}; check the name, "
                "org/name:config@split, the network and HF_HUB_OFFLINE: no file has that name"
            ) from error


class ParquetSource(SourceRows):
    """Rows of a Parquet file, or of a URL of pyarrow's filesystems; they count from 1."""

    def __init__(self, source: str) -> None:
        import pyarrow
        from pyarrow import dataset, fs

        try:
            how: Any = {"format": "parquet", "exclude_invalid_files": readers.is_url(source)}
            local = fs.LocalFileSystem(), source
            system, path = fs.FileSystem.from_uri(source) if readers.is_url(source) else local
            self._data: Any = dataset.dataset(path, filesystem=system, **how)
            parts = list(self._data.get_fragments())
            names = self._data.schema.names if self._data.count_rows() else []
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{source}: not a readable Parquet file: {error}") from error
        if other := next((it for it in parts if it.physical_schema != self._data.schema), None):
            raise DataError(f"{other.path} has other columns than {parts[0].path}")
        super().__init__(source, names, source)

    @cached_property
    def sha256(self) -> str:
        """Of the bytes; of a URL, of the names, sizes and times of its files."""
        if not readers.is_url(self.source):
            return sha256_of(Path(self.source))
        files = self._data.filesystem.get_file_info(self._data.files)
        known = [(file.path, file.size, file.mtime_ns) for file in files]
        return hashlib.sha256(repr(known).encode()).hexdigest()

    def rows(self, trouble: readers.Trouble = readers.stop) -> Iterator[Row]:
        import pyarrow

        number, names = 0, list(dict.fromkeys(self.names))
        try:
            for batch in self._data.to_batches(columns=names, batch_size=_ROWS_AT_ONCE):
                columns = [batch.column(name).to_pylist() for name in self.names]
                for cells in zip(*columns, strict=True):
                    number += 1
                    yield f"{self.source}:{number}", cells
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{self.source}: damaged after row {number}: {error}") from error


def open_rows_of(
    source: str, kind: str, columns: Sequence[str] | None = None, *, named: bool = False
) -> SourceRows:
    """Understand a file or a Hugging Face data set as rows of a kind, one of ``SPECS``.

    ``.csv``, ``.jsonl`` and ``.parquet`` are what they are called; any other file holds cells
    between tabs, as SNLI's ``.txt`` and Flickr30k's ``.token``. ``named`` says that a table's first
    row certainly is a header. Errors: :func:`open_examples`.
    """
    file = readers.source_kind(source)
    rows = open_source(source, file if file in (None, *readers.TEXT_KINDS[1:]) else ".tsv")
    how: Any = {"where": rows.where, "named": named or rows.named}
    return rows.choose(partial(choose_columns, kind=kind, columns=columns, **how))


def open_source(source: str, kind: str | None) -> SourceRows:
    """Open a source of a known ``kind``."""
    if kind is None:
        return HubSource(source)
    if kind == ".parquet":
        return ParquetSource(source)
    return JsonSource(Path(source)) if kind == ".jsonl" else TableSource(Path(source), kind)


_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def as_number(cell: Any) -> float | None:
    """A finite decimal number, as a value or as text; None of others, as ``4_5`` and ``nan``."""
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
        raise DataError(f"{where}: the score must be a number, not {shown(score)}")
    return number


def scores_of(cell: Any, where: str, count: int) -> list[float]:
    """The ``count`` numbers of a list, which in a table is written as JSON; DataError of others."""
    try:
        listed = json.loads(cell) if isinstance(cell, str) else cell
    except ValueError:
        listed = None
    if not isinstance(listed, list | tuple) or len(listed) != count:
        raise DataError(f"{where}: the scores are {shown(cell)}; there are {count} candidates")
    return [score_of(it, where) for it in listed]


def as_text(cell: Any, where: str) -> str:
    """The sentence in a cell, with one space wherever there is white space; empty for a null."""
    require_cell(cell, where)
    return " ".join(cell.split()) if cell else ""


def require_cell(cell: Any, where: str) -> None:
    """Make sure that a cell is null or text that can be written as UTF-8."""
    is_text = cell is None or isinstance(cell, str)
    if is_text and (not cell or cell.isascii() or not re.search("[\ud800-\udfff]", cell)):
        return
    what = "half of a surrogate pair in " if is_text else ""
    raise DataError(f"{where}: {what}{shown(cell)} is no text; sentences are strings")


def _is_bulk(cell: Any) -> bool:
    """True of an embedding, and of the bytes of an image or a sound."""
    parts = [*cell.values()] if isinstance(cell, dict) else [cell]
    return bytes in map(type, parts) or (isinstance(cell, list) and float in map(type, cell[:1]))


def _is_blank(cells: list[str]) -> bool:
    return not cells or (len(cells) == 1 and not cells[0].strip())
