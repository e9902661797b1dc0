"""Data that training files are made from: examples, counts, and what was left out."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from contrasent.data.readers import Trouble
from contrasent.data.rows import SourceRows, as_text
from contrasent.errors import DataError

T = TypeVar("T")

_SHOWN = 3


@dataclass(slots=True)
class Counts:
    """How many rows were read, and how many of what were left out.

    Attributes:
        labels: rows with each label that was understood.
        unreadable: rows that were skipped, with the messages of the first in ``messages``.
        other: rows that are not of the kind that was asked for.
        identical: pairs of a sentence with itself.
        contested: hypotheses that the same premise is said to entail, too.
        incomplete: groups that lack what an example needs.
        repeated: what was there already, letter by letter.
    """

    rows: int = 0
    labels: dict[str, int] = field(default_factory=dict)
    unreadable: int = 0
    messages: list[str] = field(default_factory=list)
    unlabelled: int = 0
    empty: int = 0
    other: int = 0
    identical: int = 0
    contested: int = 0
    incomplete: int = 0
    repeated: int = 0
    unsampled: int = 0

    def label(self, name: str) -> None:
        """Count a label."""
        self.labels[name] = self.labels.get(name, 0) + 1

    def skip(self, error: DataError) -> None:
        """Count a row that cannot be read."""
        self.unreadable += 1
        if len(self.messages) < _SHOWN:
            self.messages.append(str(error))


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


@dataclass(frozen=True, slots=True)
class SourceDescription:
    """How a kind of data speaks of a group, and of what :class:`Counts` counts."""

    unlabelled: str = "without a label"
    other: str = ""
    group: str = ""
    incomplete: str = ""


class DataKind(ABC):
    """Examples of one kind, made from its sources.

    Attributes:
        header: names of the V sentences: anchor, positive, hard negatives.
        made: what the examples are, in words.
        said: words for what is left out.
        labels: a line for each source saying what its labels are taken for.
    """

    header: tuple[str, ...] = PAIR
    made: str
    said = SourceDescription()
    labels: Sequence[str] = ()

    def __init__(self, sources: Sequence[SourceRows]) -> None:
        self.sources = sources

    @abstractmethod
    def examples(self, reading: Reading) -> Iterator[Example]:
        """Examples in the order of the sources, the same in every pass."""


Parse = Callable[[Sequence[Any], str, Counts], T | None]
"""From the cells of a row and where it stands; None, counted, for a row that is left out."""


def parse_rows(source: SourceRows, reading: Reading, parse: Parse[T]) -> Iterator[T]:
    """What ``parse`` makes of each row; those that it refuses are left to ``trouble``."""
    counts = reading.counts
    for where, cells in source.rows(reading.trouble):
        counts.rows += 1
        if reading.progress is not None and not counts.rows % _TOLD_EVERY:
            reading.progress(_TOLD_EVERY)
        try:
            value = parse(cells, where, counts)
        except DataError as error:
            reading.trouble(error)
            continue
        if value is not None:
            yield value


def pair(first: object, second: object, where: str, counts: Counts) -> Example | None:
    """Two sentences that are there and differ; None, counted, if they are not or do not."""
    a, b = as_text(first, where), as_text(second, where)
    if not (a and b):
        counts.empty += 1
        return None
    if a == b:
        counts.identical += 1
        return None
    return a, b


def draw_key(seed: int, *sentences: str) -> int:
    """64 bits that are the same for the same seed and sentences, and random otherwise.

    What has the lowest keys is a random sample. It follows from seed and content alone: not from
    the order of the rows, nor from the version of a library that makes random numbers.
    """
    text = "\x1f".join(sentences).encode()
    digest = hashlib.blake2b(text, digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest, "little")
