"""Readers of text files: their lines, cells and kinds, and their text without its dirt."""

import csv
import gzip
import html
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from contrasent.errors import DataError

Trouble = Callable[[DataError], None]
"""Is told of every row that cannot be read; the row is left out if it returns."""

_LONGEST_LINE = 1 << 24
csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_LINE))  # of the whole process
_NOT_UTF8 = re.compile("[\udc80-\udcff]")


def stop(error: DataError) -> None:
    """The usual :data:`Trouble`: the first bad row ends the reading."""
    raise error


def lines(path: Path, trouble: Trouble = stop) -> Iterator[tuple[int, str]]:
    r"""Numbered lines of a UTF-8 file, gzipped if its name says so.

    ``\n``, ``\r\n`` and a lone ``\r`` end a line, and stay: separators that Unicode knows besides
    are part of a sentence. A byte order mark is dropped.
    """
    zipped = path.suffix.lower() == ".gz"
    # Bytes that are no UTF-8 become surrogates, so that a line is told by its own error.
    how: Any = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
    try:
        with gzip.open(path, "rt", **how) if zipped else path.open(**how) as text:
            number = 0
            while line := text.readline(_LONGEST_LINE + 1):
                number += 1
                where = f"{path}:{number}"
                line = line.removeprefix("\ufeff") if number == 1 else line
                if len(line) > _LONGEST_LINE:
                    raise DataError(f"{where}: longer than {_LONGEST_LINE >> 20} MiB, so no line")
                problem = ""
                if "\0" in line:
                    problem = "holds a NUL byte, so no UTF-8; convert UTF-16, unpack .zip or .gz"
                elif not line.isascii() and (wrong := _NOT_UTF8.search(line)):
                    byte, place = ord(wrong[0]) & 0xFF, len(line[: wrong.start()].encode())
                    problem = f"not UTF-8: byte 0x{byte:02x} at {place}; convert it, as with iconv"
                if problem:
                    trouble(DataError(f"{where}: {problem}"))
                else:
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:
        what = "damaged or truncated gzip" if zipped else "cannot be read"
        raise DataError(f"{path}: {what}: {error}") from error


def tab_rows(path: Path, trouble: Trouble = stop) -> Iterator[tuple[int, list[str]]]:
    """Cells between tabs; quotes are letters like any other, as in SentEval's files."""
    for number, line in lines(path, trouble):
        yield number, line.rstrip("\r\n").split("\t")


def quoted_rows(
    path: Path, trouble: Trouble = stop, delimiter: str = ","
) -> Iterator[tuple[int, list[str]]]:
    """Cells of quoted CSV; a row is numbered by its first line, as a cell may hold line ends."""
    first = 0

    def text() -> Iterator[str]:
        nonlocal first
        for number, line in lines(path, trouble):
            first = first or number
            yield line

    reader = csv.reader(text(), delimiter=delimiter, strict=True)
    while True:
        first = 0
        try:
            cells = next(reader)
            yield first, cells
        except StopIteration:
            return
        except csv.Error as error:
            remedy = 'commas, quotes or line ends in "..." and write a quote inside as ""'
            what = f"not a row of quoted CSV: {error}; put cells that hold {remedy}"
            trouble(DataError(f"{path}:{first}: {what}"))


_HEAD = 200
_MOSTLY = 0.9
_QUOTED = re.compile(r'(?<![^\t\r\n])"((?:[^"]|"")*)("(?![^\t\r\n])|\Z)')
_EXCEL = re.compile(r"\"?sep=([^\w\s\"]|\t)\"?\s*", re.IGNORECASE)
# Commas of numbers and of prose, which no table has between its cells alone.
_IN_CELLS = re.compile(r"(?<=\d),(?=\d)|[,;|](?=[ \u00a0])")


def find_delimiter(path: Path, known: str) -> tuple[str | None, int]:
    """The delimiter of nearly every row; the number of Excel's line ``sep=;``."""
    head = [row for row in islice(lines(path, lambda _: None), _HEAD) if row[1].strip()]
    if head and (stated := _EXCEL.fullmatch(head[0][1])):
        return stated[1], head[0][0]

    def splits_evenly(text: list[str], delimiter: str) -> bool:
        widths = [len(cells) for cells in csv.reader(text, delimiter=delimiter)]
        return widths[:1] > [1] and widths.count(widths[0]) >= _MOSTLY * len(widths)

    text = [line.strip() for _, line in head]
    for rows in (text, [_IN_CELLS.sub(" ", line) for line in text]):
        fitting = [it for it in known if splits_evenly(rows, it)]
        if len(fitting) == 1:
            return fitting[0], 0
    return None, 0


def has_quotes(path: Path) -> bool:
    """True if cells between tabs are quoted as in CSV: all of them, or some that need to be."""
    head = "".join(line for _, line in islice(lines(path, lambda _: None), 50 * _HEAD))
    rest = _QUOTED.sub("\0", head)
    even = len({row.count("\t") for row in rest.split("\n")[:-1] if row.strip()}) == 1
    needed = any(end and re.search(r'""|[\t\r\n]', it) for it, end in _QUOTED.findall(head))
    return even and '"' not in rest and (needed or not rest.strip("\0\t\r\n"))


_ID = re.compile(r"(?P<name>[\w-][\w.-]*/[\w.-]+)(?::(?P<config>[^@]+))?(?:@(?P<split>.+))?")
TEXT_KINDS = (".txt", ".csv", ".tsv", ".jsonl", ".parquet")


def is_url(source: str) -> bool:
    """True if a source lies on object storage, or on another filesystem of pyarrow."""
    return re.match("[a-z][a-z0-9+]*://", source) is not None


def dataset_parts(source: str) -> re.Match[str] | None:
    """Name, config and split of ``org/name[:config][@split]``; None if it looks like a file."""
    path = Path(source)
    if {*TEXT_KINDS, ".gz"} & {it.lower() for it in path.suffixes} or path.parent.is_dir():
        return None
    return _ID.fullmatch(source)


def source_kind(source: str, known: Sequence[str] = ()) -> str | None:
    """The ending of a file's name, ``.gz`` left out; None for a data set of the hub.

    A URL stands for Parquet. DataError if there is no such file, or its kind is not ``known``.
    """
    path = Path(source)
    kind = Path(path.name.lower().removesuffix(".gz")).suffix
    if is_url(source):
        return ".parquet"
    if not path.exists() and dataset_parts(source):
        return None
    problem = ""
    if path.exists() and not path.is_file():  # a pipe cannot be read twice
        problem = f"{source} is a {'folder' if path.is_dir() else 'pipe or device'}; give one file"
    elif not path.exists():
        problem = f"there is no file {source}; look for a misspelling, or give a full path"
    elif known and kind not in known:
        problem = f"{source}: unknown kind of file; known are {', '.join(known)}, or .gz of them"
    if problem:
        raise DataError(problem)
    return kind


Example = tuple[str, tuple[str, ...]]  # where it stands, and its texts

# C0 and C1 without tab and line ends, zero-width space and joiner, byte order mark. C1 usually is
# Windows-1252 that was read as Latin-1.
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u200b\u2060\ufeff]")
# Scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana, Chinese characters.
CHARACTERS = r"\u0e01-\u0edf\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u3400-\u9fff"
_COUNTED = re.compile(rf"[{CHARACTERS}]|[^\s{CHARACTERS}]+")
# Without its semicolon, `&copy` may be part of an address.
_ENTITY = re.compile(r"&(?:[a-z][a-z0-9]{1,30}|#[0-9]{1,7}|#x[0-9a-f]{1,6});", re.IGNORECASE)
# Tags within a text, and those around a block of text.
_TAGS = Path(__file__).with_name("html_tags.txt").read_text(encoding="utf-8")
_NAMES, _BLOCKS = "|".join(_TAGS.split()), _TAGS.split("\n\n")[1].split()
# Comments and the like, scripts and styles with all they hold, and tags of HTML: `List<String>` has
# none, and in a quoted attribute `>` ends no tag.
_MARKUP = re.compile(
    r"<(?:!--(?:(?!<!--).)*?-->|[!?][a-z][^<>]*>|(script|style)\b.*?(?=</\1\s*>|\Z)"
    rf"|/?({_NAMES})\b(?:=\s*\"[^\"]*\"|=\s*'[^']*'|[^<>])*+>)",
    re.IGNORECASE | re.DOTALL,
)


def without_markup(text: str) -> tuple[str, bool, bool]:
    """A text without HTML's tags and entities; True if it had tags, if it had entities."""
    shown = text
    if "<" in text:
        shown = _MARKUP.sub(lambda it: " " * ((it[1] or it[2] or "").lower() in _BLOCKS), text)
    plain = _ENTITY.sub(lambda it: html.unescape(it[0]), shown) if "&" in shown else shown
    return plain, shown != text, plain != shown


def clean(rows: Iterable[Example], texts: int) -> tuple[Iterator[Example], Counter[str]]:
    """Rows whose first ``texts`` cells are clean, each of these once, and counts that grow.

    Of every kind of dirt, counted are the rows that had it. Rows that become empty, or that an
    earlier one equals, are left out; of those that were read, a hash is kept.
    """
    counts, seen = Counter[str](), set[int]()

    def cleaned() -> Iterator[Example]:
        for where, cells in rows:
            clean_cells, dirt = list[str](), set[str]()
            for cell in cells[:texts]:
                text, tags, entities = without_markup(cell)
                shown = CONTROL.sub("", text)
                plain = " ".join(shown.split())
                kinds = {"tags": tags, "entities": entities, "control": shown != text}
                kinds["spaces"] = plain != shown and not tags
                dirt |= {name for name, is_there in kinds.items() if is_there}
                clean_cells.append(plain)
            counts.update(dirt)
            key = hash(tuple(clean_cells))
            if not all(clean_cells):
                counts["empty"] += 1
            elif key in seen:
                counts["repeated"] += 1
            else:
                seen.add(key)
                yield where, (*clean_cells, *cells[texts:])

    return cleaned(), counts


def n_words(text: str) -> int:
    """Words between white space; of scripts without spaces the characters."""
    return len(text.split() if text.isascii() else _COUNTED.findall(text))


def first_words(text: str, count: int) -> str:
    """So many of its words, as they are counted, with one space where white space is."""
    return "".join(re.findall(rf" ?(?:{_COUNTED.pattern})", " ".join(text.split()))[:count])


def counted(counts: Mapping[str, int]) -> str:
    """What was cleaned, in words."""
    return ", ".join(f"{name} {count:,}" for name, count in counts.items()) or "nothing"
