"""What every kind of data gives: examples, and words for what was understood and left out."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from contrasent.data.build.counts import Reading
from contrasent.data.build.records import Record, Records, as_text
from contrasent.errors import DataError

Example = tuple[str, ...]
PAIR = ("sent0", "sent1")
TRIPLET = (*PAIR, "hard_neg")
_TOLD_EVERY = 1000


@dataclass(frozen=True, slots=True)
class Said:
    """How a kind of data speaks of what it leaves out.

    Attributes:
        unlabelled: what is said of rows without a label or score.
        other: what is said of rows that are not of the kind that was asked for.
        group: what a group is called.
        incomplete: what is said of groups that lack what an example needs.
    """

    unlabelled: str = "without a label"
    other: str = ""
    group: str = ""
    incomplete: str = ""


class Kind(ABC):
    """Examples of one kind, made from its sources.

    Attributes:
        sources: where the rows come from.
        header: names of the V sentences: anchor, positive, hard negatives.
        made: what the examples are, in words.
        said: words for what is left out.
        labels: a line for each source saying what its labels are taken for.
    """

    header: tuple[str, ...] = PAIR
    made: str
    said = Said()
    labels: Sequence[str] = ()

    def __init__(self, sources: Sequence[Records]) -> None:
        self.sources = sources

    @abstractmethod
    def examples(self, reading: Reading) -> Iterator[Example]:
        """Examples in the order of the sources, the same in every pass."""


def watched(source: Records, reading: Reading) -> Iterator[Record]:
    """Rows of a source, counted."""
    counts = reading.counts
    for record in source.rows(reading.trouble):
        counts.rows += 1
        if reading.progress is not None and not counts.rows % _TOLD_EVERY:
            reading.progress(_TOLD_EVERY)
        yield record


def pair(first: object, second: object, where: str, reading: Reading) -> Example | None:
    """Two sentences that are there and differ; None, counted, if they are not or do not."""
    try:
        a, b = as_text(first, where), as_text(second, where)
    except DataError as error:
        reading.trouble(error)
        return None
    if not (a and b):
        reading.counts.empty += 1
        return None
    if a == b:
        reading.counts.identical += 1
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
