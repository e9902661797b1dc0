"""Examples of V sentences each, from a file, a data set or Python."""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from typing_extensions import override

from contrasent.data.cache import default_cache
from contrasent.data.columns import ColumnLayout, named_columns, table_layout
from contrasent.data.readers import Dataset, Trouble, dataset_parts, stop
from contrasent.data.rows import HubSource, JsonSource, ParquetSource, Row, RowSource, TableSource
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


_TEXT_KINDS = (".txt", ".csv", ".tsv", ".jsonl")
_KNOWN = f"{', '.join(_TEXT_KINDS)} (each also with .gz) and .parquet"


def open_examples(source: str, columns: Sequence[str] | None = None) -> Examples:
    r"""Understand a text file or a Hugging Face data set as examples.

    ========== ====================================================================================
    ``.txt``   a sentence per line; blank lines separate documents and are left out
    ``.csv``   comma separated, cells quoted with ``"``
    ``.tsv``   tab separated, quotes are literal
    ``.jsonl`` an object or an array of strings per line
    .parquet   text columns
    org/name   ``org/name[:config][@split]`` on the Hugging Face hub, split ``train`` if not said
    ========== ====================================================================================

    The text files may be gzipped, with ``.gz`` after the name's end. UTF-8 with or without byte
    order mark, lines ended by ``\n`` or ``\r\n``.

    Args:
        source: a path, or a data set's id; what exists as a file is a file.
        columns: the sentence columns in the order anchor, positive, hard negatives: header names,
            or numbers counted from 0. None picks them by well-known names (``sent0, sent1,
            hard_neg``; ``anchor, positive, negative``; ``sentence1, sentence2``; ``text``; ...) or,
            in a table without header, takes every column.

    Raises:
        DataError: the source is missing, empty, of unknown kind, or its first row cannot be
            understood; further rows are checked when they are read.
        ConfigError: ``columns`` does not fit the source.
        MissingExtraError: a data set is asked for, but ``datasets`` is not installed.
    """
    kind, path = source_kind(source), Path(source)
    if not kind and (parts := dataset_parts(source)):
        return SourceExamples(HubSource(Dataset(source, parts)), columns, kind)
    if kind == ".parquet":
        return SourceExamples(ParquetSource(path), columns, kind)
    if kind == ".jsonl":
        return SourceExamples(JsonSource(path), columns, kind)
    remedy = 'cells that hold a comma need "..."' if kind == ".csv" else "or tabs inside sentences"
    table = TableSource(path, kind, f"look for missing cells, {remedy}")
    return SourceExamples(table, columns, kind)


def source_kind(source: str) -> str:
    """The ending that tells how a file is read, ``.gz`` left out; empty for a data set of the hub.

    Raises:
        DataError: there is no such file, it is a folder, or its ending is unknown.
    """
    path = Path(source)
    if not path.exists() and dataset_parts(source):
        return ""
    if path.is_dir():
        raise DataError(f"{source} is a folder; give one file: {_KNOWN}")
    if not path.exists():
        raise DataError(f"there is no file {source}; look for a misspelling, or give a full path")
    name = path.name.lower()
    kind = Path(name.removesuffix(".gz")).suffix
    if kind in _TEXT_KINDS or (kind == ".parquet" and not name.endswith(".gz")):
        return kind
    raise DataError(f"{path}: unknown kind of file; known are {_KNOWN}; rename it to one of them")


Rows = Iterable[str | Sequence[str] | Mapping[str, Any]]
"""Examples given from Python: sentences, tuples of sentences, or mappings of columns."""


def keep_rows(rows: Rows) -> Path:
    r"""Write examples given from Python to a file, to be read as any other.

    The file lies in the cache and is named by its content, so that the same rows are the same file
    when a run is resumed.

    Args:
        rows: all of one kind. Strings become the lines of a ``.txt``, in which an empty one ends a
            document, and a line break is a space. Tuples and mappings, also those of a
            ``datasets.Dataset``, become the lines of a ``.jsonl``.

    Raises:
        DataError: there is no row, or a row cannot be written as JSON.
        ConfigError: there is no room in the cache.
    """
    remaining = iter(rows)
    first = next(remaining, None)
    if first is None:
        raise DataError("the data is empty; it needs at least one sentence, tuple or mapping")
    folder, digest = default_cache() / "rows", hashlib.sha256()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder) as partial:
            written = Path(partial) / "rows"
            with written.open("w", encoding="utf-8", newline="\n") as file:
                for line in _lines_of(chain([first], remaining), is_text=isinstance(first, str)):
                    file.write(line)
                    digest.update(line.encode())
            kind = "txt" if isinstance(first, str) else "jsonl"
            return written.replace(folder / f"{digest.hexdigest()[:16]}.{kind}")
    except OSError as error:
        raise ConfigError(
            f"cannot keep the data in {folder}: {error}; name a folder with room in the "
            "environment variable CONTRASENT_CACHE"
        ) from error


def _lines_of(rows: Rows, *, is_text: bool) -> Iterator[str]:
    for number, row in enumerate(rows, start=1):
        if isinstance(row, str) != is_text:
            raise DataError(f"row {number} of the data is {row!r}, unlike the first; give one kind")
        if isinstance(row, str):
            yield f"{' '.join(row.splitlines())}\n"
            continue
        try:
            plain = dict(row) if isinstance(row, Mapping) else list(row)
            yield f"{json.dumps(plain, ensure_ascii=False)}\n"
        except (TypeError, ValueError) as error:
            raise DataError(
                f"row {number} of the data cannot be written as JSON: {error}; give strings, "
                "tuples of strings or mappings of plain values"
            ) from error
