"""Training files: kinds of examples, counts of what was left out, and their writing."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any, TextIO, cast

import numpy as np
from numpy.typing import NDArray

from contrasent import __version__
from contrasent.data.readers import Trouble, stop
from contrasent.data.rows import SourceRows, as_text
from contrasent.errors import ConfigError, DataError
from contrasent.files import refuse_existing, sha256_of, writing

_SHOWN = 3


@dataclass(slots=True)
class Counts:
    """How many rows were read, and how many of what were left out."""

    rows: int = 0
    labels: dict[str, int] = field(default_factory=dict)  # rows with each label that was understood
    unreadable: int = 0  # rows that were skipped, with the messages of the first in ``messages``
    messages: list[str] = field(default_factory=list)
    unlabelled: int = 0
    empty: int = 0
    other: int = 0  # rows that are not of the kind that was asked for
    identical: int = 0  # pairs of a sentence with itself
    contested: int = 0  # hypotheses that the same premise is said to entail, too
    incomplete: int = 0  # groups that lack what an example needs
    repeated: int = 0  # what was there already, letter by letter
    unsampled: int = 0

    def add(self, name: str, count: int = 1) -> None:
        """Count what was left out, by the name of its field."""
        setattr(self, name, getattr(self, name) + count)

    def label(self, name: str) -> None:
        """Count a label."""
        self.labels[name] = self.labels.get(name, 0) + 1

    def skip(self, error: DataError) -> None:
        """Count a row that cannot be read."""
        self.unreadable += 1
        if len(self.messages) < _SHOWN:
            self.messages.append(str(error))


class LeftOutError(Exception):
    """A row is not used; the argument is the field of :class:`Counts` that counts it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a source is read: ``progress`` is told now and then how many further rows were read."""

    counts: Counts
    trouble: Trouble
    progress: Callable[[int], None] | None = None


Example = tuple[str, ...]
PAIR = ("sent0", "sent1")
TRIPLET = (*PAIR, "hard_neg")
_TOLD_EVERY = 1000


@dataclass(kw_only=True)
class DataKind:
    """Examples of one kind, made from the rows of its sources."""

    sources: Sequence[SourceRows]
    contents: str  # what the examples are, in words
    # from the number of a source, the cells of a row, and where it stands: an example, or the key
    # of a group and a member of it; LeftOutError for a row that is not used
    parse: Callable[[int, Sequence[Any], str, Counts], Any]
    # makes examples of all members of a group, which need not stand together
    group: Callable[[Any, list[Any], Counts], Iterator[Example]] | None = None
    header: tuple[str, ...] = PAIR  # names of the V sentences: anchor, positive, hard negatives
    labels: Sequence[str] = ()  # a line for each source saying what its labels are taken for
    # what a group is called, and words for the fields of :class:`Counts`
    wording: Mapping[str, str] = field(default_factory=dict)
    _groups: dict[Any, list[Any]] | None = None

    def examples(self, reading: Reading) -> Iterator[Example]:
        """Examples in the order of the sources, the same in every pass."""
        if self.group is None:
            yield from self._rows(reading)
            return
        if self._groups is None:
            self._groups = {}
            for key, member in self._rows(reading):
                self._groups.setdefault(key, []).append(member)
        for key, members in self._groups.items():
            yield from self.group(key, members, reading.counts)

    def _rows(self, reading: Reading) -> Iterator[Any]:
        """What ``parse`` makes of each row; those that it refuses are left to ``trouble``."""
        counts = reading.counts
        for number, source in enumerate(self.sources):
            for where, cells in source.rows(reading.trouble):
                counts.rows += 1
                if reading.progress is not None and not counts.rows % _TOLD_EVERY:
                    reading.progress(_TOLD_EVERY)
                try:
                    value = self.parse(number, cells, where, counts)
                except DataError as error:
                    reading.trouble(error)
                except LeftOutError as reason:
                    counts.add(str(reason))
                else:
                    yield value


def pair(first: object, second: object, where: str) -> Example:
    """Two sentences that are there and differ; others are left out."""
    a, b = as_text(first, where), as_text(second, where)
    if not (a and b):
        raise LeftOutError("empty")
    if a == b:
        raise LeftOutError("identical")
    return a, b


def draw_key(seed: int, *sentences: str) -> int:
    """64 bits that are the same for the same seed and sentences, and random otherwise.

    What has the lowest keys is a random sample. It follows from seed and content alone: not from
    the order of the rows, nor from the version of a library that makes random numbers.
    """
    text = "\x1f".join(sentences).encode()
    digest = hashlib.blake2b(text, digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest, "little")


_WORD = re.compile(r"\w+")


def f1(first: str, second: str) -> float | None:
    """``2 |A & B| / (|A| + |B|)`` of the bags of words A and B; None if both are empty.

    The lexical overlap of SimCSE, section 4. The paper does not say what a word is; here it is a
    run of letters and digits, in lower case.
    """
    words, others = (Counter(_WORD.findall(text.lower())) for text in (first, second))
    total = words.total() + others.total()
    return 2 * (words & others).total() / total if total else None


_KINDS = (".csv", ".tsv", ".jsonl")


@dataclass(frozen=True, slots=True)
class Source:
    """A file or data set that was read, its ``labels`` as they were understood."""

    name: str
    columns: str
    labels: str | None
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """What was written, and from what."""

    made: str
    output: str
    sha256: str  # of the bytes of ``output``
    header: tuple[str, ...]
    examples: int
    sources: tuple[Source, ...]
    counts: Counts
    # mean of `f1` of anchor and positive, over pairs with words; None without
    overlap: float | None
    sample: int | None  # how many examples were asked for; None for all
    seed: int  # of the sample, and of what else is drawn
    shown: tuple[Example, ...]
    version: str = __version__


def require_output(output: Path, sources: Sequence[str], overwrite: bool) -> None:
    """Make sure that a file may be written."""
    if Path(output.name.lower().removesuffix(".gz")).suffix not in _KINDS:
        raise ConfigError(
            f"{output}: unknown kind of file to write; end its name in {', '.join(_KINDS)}, "
            "each also with .gz"
        )
    if output.is_dir():
        raise ConfigError(f"{output} is a folder; name a file in it")
    if any(
        output.exists() and Path(source).exists() and output.samefile(source) for source in sources
    ):
        raise ConfigError(f"{output} is one of the sources; name another file to write")
    if not overwrite:
        refuse_existing(output, "name another file, or replace it with --overwrite")


def build(
    kind: DataKind,
    output: Path,
    *,
    sample: int | None = None,
    seed: int = 0,
    skip_unreadable: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Built:
    """Write the examples of a kind, in the order of their sources, each once.

    The sources are read twice: to know which examples repeat and which the sample holds, in memory
    of 8 bytes per example, and to write them. ``sample`` draws so many, all equally likely;
    ``skip_unreadable`` leaves rows out that cannot be read; ``progress`` is told now and then how
    many further rows were read. DataError if a row cannot be read, no example is left, or a source
    changed meanwhile; ConfigError if there are fewer examples than ``sample``.
    """
    counts = Counts()
    reading = Reading(counts, counts.skip if skip_unreadable else stop, progress)
    keys = array("Q", (draw_key(seed, *example) for example in kind.examples(reading)))
    written = _chosen(keys, sample, counts)
    overlaps = array("d")
    shown: list[Example] = []
    with writing(output) as partial:
        with example_writer(partial, output.name, kind.header) as write:
            for example in _chosen_examples(kind, written):
                write(example)
                if (overlap := f1(*example[:2])) is not None:
                    overlaps.append(overlap)
                if len(shown) < _SHOWN:
                    shown.append(example)
        sha256 = sha256_of(partial)
    return Built(
        made=kind.contents,
        output=str(output),
        sha256=sha256,
        header=kind.header,
        examples=int(written.sum()),
        sources=tuple(
            Source(source.source, source.described, labels, source.sha256)
            for source, labels in zip_longest(kind.sources, kind.labels)
        ),
        counts=counts,
        overlap=sum(overlaps) / len(overlaps) if overlaps else None,
        sample=sample,
        seed=seed,
        shown=tuple(shown),
    )


def _chosen(keys: array[int], sample: int | None, counts: Counts) -> NDArray[np.bool_]:
    """For each example whether it is written: the first of its like, and in the sample."""
    # Sorted by their keys, which are random: so the first ones are a sample.
    unique, first = np.unique(np.frombuffer(keys, dtype=np.uint64), return_index=True)
    counts.repeated += len(keys) - len(unique)
    if not len(unique):
        raise DataError(_nothing(counts))
    if sample is not None:
        if sample > len(unique):
            raise ConfigError(
                f"--sample {sample} is more than the {len(unique)} different examples there are; "
                "ask for fewer, or give more sources"
            )
        counts.unsampled = len(unique) - sample
        first = first[:sample]
    written = np.zeros(len(keys), dtype=np.bool_)
    written[first] = True
    return written


def _nothing(counts: Counts) -> str:
    labels = ", ".join(f"{count} {label}" for label, count in sorted(counts.labels.items()))
    with_labels = f" ({labels})" if labels else ""
    first = f"; the first that cannot be read: {counts.messages[0]}" if counts.messages else ""
    return (
        f"no example is left of {counts.rows} row{'s' if counts.rows != 1 else ''}{with_labels}: "
        f"{counts.unlabelled} without label or score, {counts.empty} with an empty sentence, "
        f"{counts.other} of another kind, {counts.identical} with two equal sentences, "
        f"{counts.incomplete} incomplete groups, {counts.unreadable} that cannot be read; "
        f"look at what was asked for and at the columns{first}"
    )


def _chosen_examples(kind: DataKind, written: NDArray[np.bool_]) -> Iterator[Example]:
    again = Reading(Counts(), lambda _: None)
    count = 0
    for example in kind.examples(again):
        if count < len(written) and written[count]:
            yield example
        count += 1
    if count != len(written):
        names = ", ".join(source.source for source in kind.sources)
        raise DataError(f"{names} changed while being read; run the command again")


@contextmanager
def example_writer(
    path: Path, name: str, header: Sequence[str]
) -> Iterator[Callable[[Example], object]]:
    """A function that writes an example to ``path``, in the form that ``name`` ends in."""
    kind = Path(name.lower().removesuffix(".gz")).suffix
    with _text(path, zipped=name.lower().endswith(".gz")) as file:
        if kind == ".jsonl":
            yield lambda example: file.write(
                json.dumps(dict(zip(header, example, strict=True)), ensure_ascii=False) + "\n"
            )
        elif kind == ".csv":
            table = csv.writer(file, lineterminator="\n")
            table.writerow(header)
            yield table.writerow
        else:
            file.write("\t".join(header) + "\n")
            yield lambda example: file.write("\t".join(example) + "\n")


@contextmanager
def _text(path: Path, *, zipped: bool) -> Iterator[TextIO]:
    if not zipped:
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file
        return
    # Neither name nor time go into the file, so that equal content is equal bytes.
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        io.TextIOWrapper(cast("IO[bytes]", packed), encoding="utf-8", newline="") as text,
    ):
        yield text
