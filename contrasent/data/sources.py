"""Sources of examples: a text file, or a data set on the hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from contrasent.data.cache import default_cache
from contrasent.data.examples import Examples, SourceExamples
from contrasent.data.hub_datasets import Dataset, dataset_parts
from contrasent.data.rows import HubSource, JsonSource, ParquetSource, TableSource
from contrasent.errors import ConfigError, DataError

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
