"""Examples of V sentences each, from a file, a data set or Python."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contrasent.data.columns import ColumnMap, sentence_columns
from contrasent.data.readers import Trouble, source_kind, stop
from contrasent.data.rows import (
    HubSource,
    JsonSource,
    ParquetSource,
    SourceRows,
    TableSource,
    open_source,
    require_text,
)
from contrasent.data.tokenizer import sentences_of
from contrasent.errors import ConfigError, DataError, shown
from contrasent.files import default_cache, exclusive, writing

if TYPE_CHECKING:
    from contrasent.data.batch import Need

_PATIENCE = 600.0  # seconds that another process may take to keep its rows
# A portion is bounded both ways: short sentences are many, long ones are large.
_SENTENCES_AT_ONCE = 4096
_CHARACTERS_AT_ONCE = 1 << 20


class Examples:
    """Examples of V sentences each, read anew from the source by every iteration.

    A null is an empty sentence.

    Attributes:
        views: V, sentences per example: anchor, positive, hard negatives.
        columns: one line saying which columns were understood, and how.
        is_lines: blank lines separate documents.
        with_ids: the second column holds ids, which may be whole numbers.
        skipped: rows with an empty sentence, which are left out; known after a whole pass, as are
            ``blank`` lines, the ``unlabelled`` rows that were left out, and ``numbers``.
        numbers: numbers of each example that were read beside its sentences.
    """

    def __init__(
        self, rows: SourceRows, views: int, *, is_lines: bool = False, with_ids: bool = False
    ) -> None:
        self.source, self.columns = rows.source, rows.described
        self.rows, self.views = rows, views
        self.is_lines, self.with_ids = is_lines, with_ids
        self.skipped = self.blank = self.unlabelled = 0
        self.numbers: Mapping[Need, Sequence[float]] = {}

    @property
    def sha256(self) -> str:
        """Hexadecimal hash of the source's content, its reading and the chosen columns."""
        reader, layout, content = self.rows, self.rows.chosen, self.rows.sha256
        if isinstance(reader, HubSource):
            return content
        chosen: object = reader.names if reader.named else layout.positions
        if isinstance(reader, TableSource):
            chosen = (reader.number if layout.header else 0, chosen)
            # What else the same bytes may be read as: the first column alone of a table as lines.
            if reader.quoted or (len(reader.first) > 1 and layout.positions == (0,)):
                chosen = (*chosen, "quoted" if reader.quoted else "tabs")
        return hashlib.sha256(f"{content}\n{chosen!r}".encode()).hexdigest()

    def read(self, trouble: Trouble) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Examples with where they stand; unreadable rows are left to ``trouble``."""
        skipped, checked = 0, self.rows.checked and not self.with_ids
        for where, row in self.rows.rows(trouble):
            cells = row
            if self.with_ids and isinstance(row[1], int) and not isinstance(row[1], bool):
                cells = [row[0], str(row[1])]
            try:
                for cell in () if checked else cells:
                    require_text(cell, where)
            except DataError as error:
                trouble(error)
                continue
            sentences = tuple([(cell or "").strip() for cell in cells])
            if all(sentences):
                yield where, sentences
            else:
                skipped += 1
        self.skipped, self.blank = skipped, self.rows.blank

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        """Yield V sentences at a time, without white space around them."""
        for _, sentences in self.read(stop):
            yield sentences

    def require(self, minimum: int) -> None:
        """Make sure that there are enough examples, reading no more of them than needed."""
        count = sum(1 for _ in islice(self, minimum))
        if count < minimum:
            raise DataError(
                f"{self.source} holds {count} example{'s' if count != 1 else ''} without an empty "
                f"sentence, but at least {minimum} are needed; an example is a line or row"
            )


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


def open_examples(
    source: str, columns: Sequence[str] | None = None, *, with_ids: bool = False
) -> Examples:
    """Understand a text file or a Hugging Face data set as examples.

    ``.txt`` holds a sentence per line, with blank lines between documents; ``.csv`` quoted cells
    between commas (or ``;``, ``|``); ``.tsv`` literal cells; ``.jsonl`` an object or an array of
    strings per line; each may be gzipped, in UTF-8. ``.parquet`` and a URL as ``s3://bucket/folder``
    hold text columns; ``org/name[:config][@split]`` is on the hub. What exists as a file is a file.
    DataError if the source is missing, empty or of unknown kind, or its first row cannot be
    understood; further rows are checked when they are read. ConfigError if ``columns`` does not
    fit. MissingExtraError if a data set is asked for, but ``datasets`` is not installed.

    Args:
        source: a path, a URL, or a data set's id.
        columns: the sentence columns in the order anchor, positive, hard negatives: header names,
            or numbers counted from 0. None picks them by well-known names or, in a table without
            header, takes every column.
        with_ids: the second of the columns holds ids, which are text or whole numbers.
    """
    kind = text_kind(source)
    if kind == ".txt" and columns is not None and list(columns) != ["0"]:
        raise ConfigError(
            f"{source} holds one sentence per line, so --columns {','.join(columns)} has nothing "
            "to choose from; leave it out, or name a table .csv or .tsv"
        )
    rows = open_source(source, kind)
    if kind == ".txt":
        chosen = ColumnMap((0,), False, "1 sentence per line", "order")
    else:
        numbers = columns is None or all(map(str.isdecimal, columns))
        if isinstance(rows, JsonSource) and not rows.named and not numbers:
            raise ConfigError(f"{rows.where}: arrays have no column names; choose by number from 0")
        below = rows.sample() if isinstance(rows, TableSource) and not with_ids else ()
        chosen = sentence_columns(rows.first, columns, rows.where, named=rows.named, below=below)
    if isinstance(rows, ParquetSource):
        texts = chosen.positions[:1] if with_ids else chosen.positions
        rows.require_text([rows.first[position] for position in texts])
    rows.choose(chosen)
    return Examples(rows, rows.width, is_lines=kind == ".txt", with_ids=with_ids)


def text_kind(source: str) -> str | None:
    """The ending of a source of text, ``.gz`` left out; None for a data set of the hub."""
    kind = source_kind(source, f"give one file: {_KNOWN}")
    if kind is None or kind in _TEXT_KINDS:
        return kind
    if kind == ".parquet" and not source.lower().endswith(".gz"):
        return kind
    raise DataError(f"{source}: unknown kind of file; known are {_KNOWN}; rename it to one of them")


Rows = Iterable[str | Sequence[str] | Mapping[str, Any]]
"""Examples given from Python: sentences, tuples of sentences, or mappings of columns."""


def keep_rows(rows: Rows) -> Path:
    r"""Write examples given from Python to a file, to be read as any other.

    The file lies in the cache and is named by its content, so that the same rows are the same file
    when a run is resumed. All ``rows`` are of one kind. Strings become the lines of a ``.txt``, in
    which an empty one ends a document, and a line break is a space. Tuples and mappings, also those
    of a ``datasets.Dataset``, become the lines of a ``.jsonl``. DataError if there is no row, or a
    row cannot be written as JSON or as UTF-8; ConfigError if there is no room in the cache.
    """
    remaining = iter(sentences_of(rows, "the data", rows=True))
    first = next(remaining, None)
    if first is None:
        raise DataError("the data is empty; it needs at least one sentence, tuple or mapping")
    is_text, folder, digest = isinstance(first, str), default_cache() / "rows", hashlib.sha256()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder, patience=_PATIENCE):
            written = folder / "rows"
            with writing(written) as part, part.open("w", encoding="utf-8", newline="\n") as file:
                for number, row in enumerate(chain([first], remaining), start=1):
                    line = f"{_line_of(row, f'row {number} of the data', is_text=is_text)}\n"
                    file.write(line)
                    digest.update(line.encode())
            kind = "txt" if is_text else "jsonl"
            return written.replace(folder / f"{digest.hexdigest()[:16]}.{kind}")
    except OSError as error:
        raise ConfigError(
            f"cannot keep the data in {folder}: {error}; name a folder with room in the "
            "environment variable CONTRASENT_CACHE"
        ) from error


def _line_of(row: Any, where: str, *, is_text: bool) -> str:
    if isinstance(row, str) != is_text:
        raise DataError(f"{where}, {shown(row)}, is of another kind than the first")
    try:
        if is_text:
            line = " ".join(row.splitlines())
        else:
            plain = dict(row) if isinstance(row, Mapping) else list(row)
            line = json.dumps(plain, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"{where} cannot be written as JSON: {error}; give strings, tuples of strings or "
            "mappings of plain values"
        ) from error
    require_text(line, where)
    return line
