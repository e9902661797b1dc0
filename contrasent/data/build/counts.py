"""What became of the rows that were read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from contrasent.errors import DataError

_SHOWN = 3


@dataclass(slots=True)
class Counts:
    """How many rows were read, and how many of what were left out.

    Attributes:
        rows: rows that were read.
        labels: rows with each label that was understood.
        unreadable: rows that were skipped, with the messages of the first in ``messages``.
        unlabelled: rows without a label or score.
        empty: rows with an empty sentence.
        other: rows that are not of the kind that was asked for.
        identical: pairs of a sentence with itself.
        contested: hypotheses that the same premise is said to entail, too.
        incomplete: groups that lack what an example needs.
        repeated: what was there already, letter by letter.
        unsampled: examples that the sample does not hold.
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
    """How a source is read.

    Attributes:
        counts: what is found is counted here.
        trouble: told of every row that cannot be read; the row is left out if it returns.
        progress: told now and then how many further rows were read.
    """

    counts: Counts
    trouble: Callable[[DataError], None]
    progress: Callable[[int], None] | None = None
