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

from contrasent.errors import DataError, MissingExtraError, first_line, install_command

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
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path}: damaged or truncated gzip ({error}); fetch the file again"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def lines(path: Path, trouble: Trouble = stop) -> Iterator[tuple[int, str]]:
    """Numbered lines of a UTF-8 file, gzipped if its name ends in ``.gz``; as :func:`text_lines`.

    DataError if the file cannot be read, or is a damaged archive.
    """
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
            if number == 1:
                line = line.removeprefix("\ufeff")
                if line.startswith(("\udcff\udcfe", "\udcfe\udcff")):
                    to_utf8 = "iconv -f utf-16 -t utf-8"
                    raise DataError(f"{where}: UTF-16 text; convert the file with {to_utf8}")
            if len(line) > _LONGEST_LINE:
                raise DataError(f"{where}: longer than {_LONGEST_LINE >> 20} MiB, so no line")
            if "\0" in line:
                trouble(DataError(f"{where}: holds a NUL byte, so it is no text; is it UTF-16?"))
            elif not line.isascii() and (wrong := _NOT_UTF8.search(line)):
                byte, place = ord(wrong[0]) & 0xFF, len(line[: wrong.start()].encode())
                trouble(
                    DataError(
                        f"{where}: not UTF-8: byte 0x{byte:02x} at {place}; "
                        "convert the file, for example with iconv -f latin1 -t utf-8"
                    )
                )
            else:
                yield number, line


def tab_rows(path: Path, trouble: Trouble = stop) -> Iterator[tuple[int, list[str]]]:
    """Cells between tabs; quotes are letters like any other, as in SentEval's files."""
    for number, line in lines(path, trouble):
        yield number, line.rstrip("\r\n").split("\t")


def quoted_rows(
    path: Path, trouble: Trouble, delimiter: str, after: int
) -> Iterator[tuple[int, list[str]]]:
    """Cells of quoted CSV below the line ``after``.

    A row is numbered by its first line, as a cell may hold line ends.
    """
    first = 0

    def text() -> Iterator[str]:
        nonlocal first
        for number, line in lines(path, trouble):
            if number > after:
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


def find_delimiter(path: Path) -> tuple[str | None, int]:
    """The character between the cells of quoted CSV, and the number of Excel's ``sep=;`` line.

    Without that line, the number is 0, and the character is the only one of ``,;|`` at which nearly
    every row splits into the same number of cells, of two or more; None if there is none.
    """
    head = [row for row in islice(lines(path, lambda _: None), _HEAD) if row[1].strip()]
    if head and (stated := _EXCEL.fullmatch(head[0][1])):
        return stated[1], head[0][0]

    def splits_evenly(text: list[str], delimiter: str) -> bool:
        rows, widths = csv.reader(text, delimiter=delimiter, strict=True), []
        while True:
            try:
                widths.append(len(next(rows)))
            except StopIteration:
                first = widths[0] if widths else 0
                return first > 1 and widths.count(first) >= _MOSTLY * len(widths)
            except csv.Error:
                # The last quoted cell may go on below.
                widths += [0] if rows.line_num < len(text) else []

    text = [line for _, line in head]
    for rows in (text, [_IN_CELLS.sub(" ", line) for line in text]):
        fitting = [it for it in ",;|" if splits_evenly(rows, it)]
        if len(fitting) == 1:
            return fitting[0], 0
    return None, 0


_ID = re.compile(r"(?P<name>[\w-][\w.-]*/[\w.-]+)(?::(?P<config>[^@]+))?(?:@(?P<split>.+))?")
_FILES = {".txt", ".csv", ".tsv", ".jsonl", ".parquet", ".gz"}


def is_url(source: str) -> bool:
    """Whether a source lies on object storage, or on another filesystem of pyarrow."""
    return re.match("[a-z][a-z0-9+]*://", source) is not None


def dataset_parts(source: str) -> re.Match[str] | None:
    """Name, config and split of ``org/name[:config][@split]``; None if it looks like a file."""
    path = Path(source)
    if _FILES & {suffix.lower() for suffix in path.suffixes} or path.parent.is_dir():
        return None
    return _ID.fullmatch(source)


def source_kind(source: str, instead_of_a_folder: str = "give the files in it") -> str | None:
    """The ending of a file's name, ``.gz`` left out; None for a data set of the hub.

    A URL stands for Parquet.
    """
    path = Path(source)
    if is_url(source):
        return ".parquet"
    if path.is_dir():
        raise DataError(f"{source} is a folder; {instead_of_a_folder}")
    if path.exists():
        return Path(path.name.lower().removesuffix(".gz")).suffix
    if dataset_parts(source):
        return None
    raise DataError(f"there is no file {source}; look for a misspelling, or give a full path")


class Dataset:
    """Records of ``org/name[:config][@split]``, of one revision, which is looked up once.

    DataError if the data set cannot be reached; MissingExtraError if ``datasets`` is not installed.
    """

    def __init__(self, source: str) -> None:
        parts: Any = dataset_parts(source)
        try:
            import datasets
        except ImportError as error:
            raise MissingExtraError(
                "reading a data set from the hub needs the package datasets: "
                f"{install_command('datasets')}"
            ) from error
        self.source, self._library = source, datasets
        self._name, self._config = parts["name"], parts["config"]
        self._split = parts["split"] or "train"
        with self._explain():
            self.revision = _revision(self._name)

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
                "config and split (org/name:config@split), the network and HF_HUB_OFFLINE, or give "
                "a file instead: no file has that name"
            ) from error


def _revision(name: str) -> str:
    """The commit that the data set stands at now."""
    from huggingface_hub import HfApi

    return str(HfApi().dataset_info(name).sha)


_SPLITS = {"train": ("train",), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}
"""Names of the splits of data sets."""


def _split(splits: Sequence[str], wanted: str) -> str | None:
    return next((name for name in _SPLITS[wanted] if name in splits), None)


def labelled_splits(source: str) -> tuple[str, ...]:
    """Train, dev (if there is one) and test split of a data set that is named without a split.

    As sources ``org/name[:config]@split``; none for a file, a source with a split, or a data set
    without a train or a test split. Errors are those of :class:`Dataset`.
    """
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
    ``org/name:de``, the configs are ``de-queries``, ``de-corpus`` and ``de-qrels``. DataError if
    the data set cannot be reached, or is laid out in another way; MissingExtraError if ``datasets``
    is not installed.
    """
    parts = dataset_parts(source)
    if parts is None or parts["split"]:
        raise DataError(
            f"{source} is neither a folder nor a data set of retrieval on the hub (org/name); a "
            "split is chosen with --splits"
        )
    name, prefix = parts["name"], f"{parts['config']}-" if parts["config"] else ""
    dataset = Dataset(source)
    configs = dataset.configs()
    queries, corpus, *judged = (f"{prefix}{it}" for it in ("queries", "corpus", "default", "qrels"))
    if not {queries, corpus} <= {*configs}:
        raise DataError(
            f"{source} has the configs {', '.join(configs)}; a data set of retrieval has queries "
            "and corpus, as BEIR's; or name three sources: retrieve:QUERIES+DOCUMENTS+RELEVANCE"
        )
    sources = []
    for config in (queries, corpus):
        splits = dataset.splits(config)
        chosen = splits[0] if len(splits) == 1 else config.removeprefix(prefix)
        if chosen not in splits:
            raise DataError(
                f"config {config} of {source} has the splits {', '.join(splits)}; one is expected"
            )
        sources.append(f"{name}:{config}@{chosen}")
    relevance = next((it for it in judged if it in configs), None)
    if relevance is None:
        name = f"{name}-qrels"
        dataset = Dataset(name)
    splits = dataset.splits(relevance)
    chosen_split = _split(splits, split)
    if chosen_split is None:
        raise DataError(
            f"{dataset.source} has relevance for {', '.join(splits)}, not for {split}; choose with "
            "--splits"
        )
    return (*sources, f"{name}{f':{relevance}' if relevance else ''}@{chosen_split}")
