"""Rows of text files, streamed; whatever is wrong with one is told with file and line."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from contrasent.errors import DataError

T = TypeVar("T")
Trouble = Callable[[DataError], None]
"""Is told of every row that cannot be read; the row is left out if it returns."""

_LONGEST_LINE = 1 << 24
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def stop(error: DataError) -> None:
    """The usual :data:`Trouble`: the first bad row ends the reading."""
    raise error


def lines(path: Path, trouble: Trouble = stop) -> Iterator[tuple[int, str]]:
    r"""Numbered lines of a UTF-8 file, gzipped if its name ends in ``.gz``.

    A byte order mark is dropped, line ends stay. Only ``\n`` ends a line: separators that Unicode
    knows besides are part of a sentence.
    """
    for number, raw in enumerate(_raw_lines(path), start=1):
        where = f"{path}:{number}"
        line = _unmarked(raw, where) if number == 1 else raw
        if len(line) > _LONGEST_LINE:
            raise DataError(f"{where}: longer than {_LONGEST_LINE >> 20} MiB, so no line of text")
        if b"\0" in line:
            trouble(DataError(f"{where}: holds a NUL byte, so it is no text; is it UTF-16?"))
            continue
        try:
            yield number, line.decode("utf-8")
        except UnicodeDecodeError as error:
            trouble(
                DataError(
                    f"{where}: not UTF-8: byte 0x{line[error.start]:02x} at {error.start}; "
                    "convert the file, for example with iconv -f latin1 -t utf-8"
                )
            )


def _raw_lines(path: Path) -> Iterator[bytes]:
    try:
        with _opened(path) as file:
            while line := file.readline(_LONGEST_LINE + 1):
                yield line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path}: damaged or truncated gzip ({error}); fetch the file again"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _opened(path: Path) -> IO[bytes] | gzip.GzipFile:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")


def _unmarked(line: bytes, where: str) -> bytes:
    if line.startswith(_UTF16_MARKS):
        raise DataError(f"{where}: UTF-16 text; convert the file with iconv -f utf-16 -t utf-8")
    return line.removeprefix(_UTF8_MARK)


def line_rows(path: Path, trouble: Trouble = stop) -> Iterator[tuple[int, list[str]]]:
    """One cell per line."""
    for number, line in lines(path, trouble):
        yield number, [line]


def tab_rows(path: Path, trouble: Trouble = stop) -> Iterator[tuple[int, list[str]]]:
    """Cells between tabs; quotes are letters like any other, as in SentEval's files."""
    for number, line in lines(path, trouble):
        yield number, line.rstrip("\r\n").split("\t")


def comma_rows(path: Path, trouble: Trouble = stop) -> Iterator[tuple[int, list[str]]]:
    """Cells of quoted CSV; a row is numbered by its first line, as a cell may hold line ends."""
    first = 0

    def text() -> Iterator[str]:
        nonlocal first
        for number, line in lines(path, trouble):
            first = first or number
            yield line

    reader = csv.reader(text(), strict=True)
    while True:
        first = 0
        try:
            cells = next(reader)
            yield first, cells
        except StopIteration:
            return
        except csv.Error as error:
            trouble(
                DataError(
                    f"{path}:{first}: not a row of quoted CSV: {error}; put cells that hold "
                    'commas, quotes or line ends in "..." and write a quote inside as ""'
                )
            )


def json_rows(path: Path, trouble: Trouble = stop) -> Iterator[tuple[int, Any]]:
    """One JSON value per line; blank lines are left out."""
    for number, line in lines(path, trouble):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            trouble(
                DataError(
                    f"{path}:{number}: not JSON: {error}; "
                    "a .jsonl file holds one object or one array per line"
                )
            )


def first_row(rows: Iterator[tuple[int, T]], path: Path) -> tuple[int, T]:
    """The first of ``rows`` with its line number.

    Raises:
        DataError: there is none, or it cannot be read.
    """
    for number, row in rows:
        return number, row
    raise DataError(f"{path} is empty; it needs at least one sentence per line or row")
