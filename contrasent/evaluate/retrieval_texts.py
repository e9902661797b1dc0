"""Queries and documents by their ids, from tables, JSON lines, Parquet and the hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from contrasent.data.build.columns import Wanted
from contrasent.data.build.records import as_text, open_records
from contrasent.data.readers import comma_rows, json_rows, tab_rows
from contrasent.errors import DataError

IDS = (
    *("_id", "id", "query-id", "query_id", "qid", "corpus-id", "corpus_id", "document_id"),
    *("doc_id", "docid", "did", "pid", "passage_id"),
)
TEXTS = ("text", "query", "question", "document", "passage", "contents", "content", "sentence")
_WANTED = Wanted(
    roles=("id", "text", "title"),
    names=(IDS, TEXTS, ("title",)),
    ranked=("id", "text"),
    optional=1,
)

Row = tuple[str, str, str]
"""Where a row stands (``path:line``), its id and its text."""


def read_texts(source: str, layout: str) -> dict[str, str]:
    """Texts by their ids, in the order of the source; a title is put before its text.

    Args:
        source: ``.jsonl`` of objects with id and text; ``.tsv``, ``.csv`` of id and text, with or
            without a header; each also ``.gz``; ``.parquet``; or a data set of the hub.
        layout: what is expected, for the message about an empty file.

    Raises:
        DataError: there is no text, an id is empty or comes twice, or a row is not what it should
            be; the message names file and line.
        MissingExtraError: a data set is asked for, but ``datasets`` is not installed.
    """
    found: dict[str, str] = {}
    lines: dict[str, str] = {}
    for where, number, text in _rows(source):
        if not number:
            raise DataError(f"{where}: the id is empty")
        if number in found:
            raise DataError(f"{where}: the id {number!r} is that of {lines[number]} too")
        found[number], lines[number] = text, where
    if not found:
        raise DataError(f"{source} is empty; {layout}")
    return found


def id_of(cell: Any) -> str | None:
    """An id as text; None if the cell holds neither text nor a whole number."""
    if isinstance(cell, bool) or not isinstance(cell, str | int):
        return None
    return str(cell).strip()


def _rows(source: str) -> Iterator[Row]:
    path = Path(source)
    kind = Path(path.name.lower().removesuffix(".gz")).suffix
    if not path.is_file() or kind == ".parquet":
        return _named_rows(source)
    if kind == ".jsonl":
        return _json_rows(path)
    return _cell_rows(path, commas=kind == ".csv")


def _json_rows(path: Path) -> Iterator[Row]:
    for line, value in json_rows(path):
        where = f"{path}:{line}"
        if not isinstance(value, dict):
            raise DataError(f"{where}: expected an object with _id and text")
        number = next((id_of(value[name]) for name in IDS if name in value), None)
        text = next((value[name] for name in TEXTS if name in value), None)
        if number is None or not any(name in value for name in TEXTS):
            raise DataError(f"{where}: expected an object with _id, a text or a number, and text")
        yield where, number, _joined(value.get("title"), text, where)


def _cell_rows(path: Path, *, commas: bool) -> Iterator[Row]:
    columns: tuple[int, int, int | None] = (0, 1, None)
    width = 2
    first = True
    for line, cells in comma_rows(path) if commas else tab_rows(path):
        where = f"{path}:{line}"
        names = [cell.strip().lower() for cell in cells]
        if not any(names):
            continue
        number = next((names.index(name) for name in IDS if name in names), None)
        text = next((names.index(name) for name in TEXTS if name in names), None)
        if first and number is not None and text is not None:
            title = names.index("title") if "title" in names else None
            columns, width, first = (number, text, title), len(cells), False
            continue
        first = False
        if len(cells) != width:
            raise DataError(
                f"{where}: {len(cells)} {'comma' if commas else 'tab'}-separated columns instead "
                f"of {width}; a row is an id and a text, unless a header names _id, text and title"
            )
        title_cell = None if columns[2] is None else cells[columns[2]]
        told = _joined(title_cell, cells[columns[1]], where)
        yield where, cells[columns[0]].strip(), told


def _named_rows(source: str) -> Iterator[Row]:
    for where, (cell, text, *title) in open_records(source, _WANTED).rows():
        number = id_of(cell)
        if number is None:
            raise DataError(f"{where}: the id must be a text or a number, not {cell!r}")
        yield where, number, _joined(title[0] if title else None, text, where)


def _joined(title: Any, text: Any, where: str) -> str:
    """Title and text as one, as BEIR joins them; may be empty, as some documents of BEIR are."""
    return f"{as_text(title, where)} {as_text(text, where)}".strip()
