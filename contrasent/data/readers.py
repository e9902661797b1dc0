"""Readers of text files, and of data sets on the Hugging Face hub at one pinned revision."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

from contrasent.errors import DataError, first_line, require_extra

Trouble = Callable[[DataError], None]
"""Is told of every row that cannot be read; the row is left out if it returns."""

_LONGEST_LINE = 1 << 24
_NOT_UTF8 = re.compile("[\udc80-\udcff]")


def stop(error: DataError) -> None:
    """The usual :data:`Trouble`: the first bad row ends the reading."""
    raise error


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a file, unzipped if its name says so; errors name the file."""
    zipped = path.suffix.lower() == ".gz"
    try:
        with cast("IO[bytes]", gzip.open(path)) if zipped else path.open("rb") as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        what = "damaged or truncated gzip" if zipped else "cannot be read"
        raise DataError(f"{path}: {what}: {error}") from error


def lines(path: Path, trouble: Trouble = stop) -> Iterator[tuple[int, str]]:
    """Numbered lines of a UTF-8 file, gzipped if its name says so; as :func:`text_lines`."""
    with open_bytes(path) as file:
        yield from text_lines(file, str(path), trouble)


def text_lines(file: IO[bytes], source: str, trouble: Trouble = stop) -> Iterator[tuple[int, str]]:
    r"""Numbered lines of an open file of UTF-8; ``source`` is its name in messages.

    ``\n``, ``\r\n`` and a lone ``\r`` end a line, and stay: separators that Unicode knows besides
    are part of a sentence. A byte order mark is dropped.
    """
    # Bytes that are no UTF-8 become surrogates, so that a line is told by its own error.
    with io.TextIOWrapper(file, "utf-8", errors="surrogateescape", newline="") as text:
        number = 0
        while line := text.readline(_LONGEST_LINE + 1):
            number += 1
            where = f"{source}:{number}"
            line = line.removeprefix("\ufeff") if number == 1 else line
            if len(line) > _LONGEST_LINE:
                raise DataError(f"{where}: longer than {_LONGEST_LINE >> 20} MiB, so no line")
            problem = ""
            if "\0" in line:
                problem = "holds a NUL byte, so it is no text; is it UTF-16?"
            elif not line.isascii() and (wrong := _NOT_UTF8.search(line)):
                byte, place = ord(wrong[0]) & 0xFF, len(line[: wrong.start()].encode())
                problem = f"not UTF-8: byte 0x{byte:02x} at {place}; convert it, as with iconv"
            if problem:
                trouble(DataError(f"{where}: {problem}"))
            else:
                yield number, line


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

    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_LINE))  # of the whole process
    reader = csv.reader(text(), delimiter=delimiter, strict=True)
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


_HEAD = 200
_MOSTLY = 0.9
_EXCEL = re.compile(r"\"?sep=([^\w\s\"]|\t)\"?\s*", re.IGNORECASE)
# Commas of numbers and of prose, which no table has between its cells alone.
_IN_CELLS = re.compile(r"(?<=\d),(?=\d)|[,;|](?=[ \u00a0])")


def find_delimiter(path: Path, known: str) -> tuple[str | None, int]:
    """The delimiter of nearly every row; the number of Excel's line ``sep=;``."""
    head = [row for row in islice(lines(path, lambda _: None), _HEAD) if row[1].strip()]
    if head and (stated := _EXCEL.fullmatch(head[0][1])):
        return stated[1], head[0][0]

    def splits_evenly(text: list[str], delimiter: str) -> bool:
        try:
            widths = [len(cells) for cells in csv.reader(text, delimiter=delimiter)]
        except csv.Error:  # a cell is too long
            return False
        return widths[:1] > [1] and widths.count(widths[0]) >= _MOSTLY * len(widths)

    text = [line.strip() for _, line in head]
    for rows in (text, [_IN_CELLS.sub(" ", line) for line in text]):
        fitting = [it for it in known if splits_evenly(rows, it)]
        if len(fitting) == 1:
            return fitting[0], 0
    return None, 0


_ID = re.compile(r"(?P<name>[\w-][\w.-]*/[\w.-]+)(?::(?P<config>[^@]+))?(?:@(?P<split>.+))?")
_FILES = {".txt", ".csv", ".tsv", ".jsonl", ".parquet", ".gz"}


def is_url(source: str) -> bool:
    """True if a source lies on object storage, or on another filesystem of pyarrow."""
    return re.match("[a-z][a-z0-9+]*://", source) is not None


def dataset_parts(source: str) -> re.Match[str] | None:
    """Name, config and split of ``org/name[:config][@split]``; None if it looks like a file."""
    path = Path(source)
    if _FILES & {suffix.lower() for suffix in path.suffixes} or path.parent.is_dir():
        return None
    return _ID.fullmatch(source)


TEXT_KINDS = (".txt", ".csv", ".tsv", ".jsonl", ".parquet")


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
    if path.is_dir():
        problem = f"{source} is a folder; give one file"
    elif not path.exists():
        problem = f"there is no file {source}; look for a misspelling, or give a full path"
    elif known and kind not in known:
        problem = f"{source}: unknown kind of file; known are {', '.join(known)}, or .gz of them"
    if problem:
        raise DataError(problem)
    return kind


class Dataset:
    """Records of ``org/name[:config][@split]``, of one revision, which is looked up once."""

    def __init__(self, source: str) -> None:
        parts: Any = dataset_parts(source)
        require_extra("a data set of the hub", "datasets", "datasets")
        import datasets
        from huggingface_hub import HfApi

        self.source, self._library = source, datasets
        self._name, self._config = parts["name"], parts["config"]
        self._split = parts["split"] or "train"
        with self._explain():
            self.revision = str(HfApi().dataset_info(self._name).sha)

    def sha256(self, names: tuple[str, ...]) -> str:
        """Hash of the revision and of the chosen columns, which stands for the content."""
        content = (self._name, self._config, self._split, self.revision, names)
        return hashlib.sha256(repr(content).encode()).hexdigest()

    def records(self) -> Iterator[dict[str, Any]]:
        """Records from the first on, streamed."""
        with self._explain():
            yield from self._load()

    def label_names(self, column: str) -> Sequence[str] | None:
        """Names of the numbers in a column of labels; None if the data set does not say."""
        with self._explain():
            features = getattr(self._load(), "features", None) or {}
        return getattr(features.get(column), "names", None)

    def configs(self) -> Sequence[str]:
        """The names of its configs."""
        with self._explain():
            names = self._library.get_dataset_config_names(self._name, revision=self.revision)
        return [str(name) for name in names]

    def splits(self, config: str | None) -> Sequence[str]:
        """The names of the splits of a config, of the only one if that is None."""
        with self._explain():
            names = self._library.get_dataset_split_names(
                self._name, config, revision=self.revision
            )
        return [str(name) for name in names]

    def _load(self) -> Any:
        settings = {"split": self._split, "revision": self.revision, "streaming": True}
        return self._library.load_dataset(self._name, self._config, **settings)

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


_SPLITS = {"train": ("train",), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}


def _split(splits: Sequence[str], wanted: str) -> str | None:
    return next((name for name in _SPLITS[wanted] if name in splits), None)


def labelled_splits(source: str) -> tuple[str, ...]:
    """Sources of the train, dev and test split of a data set that is named without a split."""
    parts = None if Path(source).exists() else dataset_parts(source)
    if parts is None or parts["split"]:
        return ()
    splits = Dataset(source).splits(parts["config"])
    chosen = [_split(splits, wanted) for wanted in _SPLITS]
    return tuple(f"{source}@{it}" for it in chosen if it) if chosen[0] and chosen[-1] else ()


def retrieval_sources(source: str, split: str) -> tuple[str, ...]:
    """Queries, documents and relevance of a data set laid out as BEIR's or MTEB's.

    Queries and documents are the configs ``queries`` and ``corpus``. Relevance is the ``split`` of
    the config ``default`` or ``qrels``, or of a data set of its own, ``org/name-qrels``. With
    ``org/name:de``, the configs are ``de-queries``, ``de-corpus`` and ``de-qrels``.
    """
    parts = dataset_parts(source)
    dataset = Dataset(source) if parts and not parts["split"] else None
    name, config = (parts["name"], parts["config"]) if parts else (source, None)
    configs = dataset.configs() if dataset else ()
    prefix = f"{config}-" if config else ""
    queries, corpus, *judged = (f"{prefix}{it}" for it in ("queries", "corpus", "default", "qrels"))
    if dataset is None or not {queries, corpus} <= {*configs}:
        raise DataError(
            f"{source} is neither a folder nor a data set of retrieval on the hub, org/name with "
            f"the configs queries and corpus ({', '.join(configs) or 'none'}); a split is chosen "
            "with --splits; or name three sources: retrieve:QUERIES+DOCUMENTS+RELEVANCE"
        )
    sources = []
    for config in (queries, corpus):
        splits = dataset.splits(config)
        own = splits[0] if len(splits) == 1 else config.removeprefix(prefix)
        sources.append(f"{name}:{config}@{own}")
    relevance = next((it for it in judged if it in configs), None)
    if relevance is None:
        name = f"{name}-qrels"
        dataset = Dataset(name)
    splits = dataset.splits(relevance)
    chosen = _split(splits, split)
    if chosen is None:
        known = ", ".join(splits)
        raise DataError(f"{dataset.source} has relevance for {known}: choose with --splits")
    return (*sources, f"{name}{f':{relevance}' if relevance else ''}@{chosen}")
