"""Letting contestants take turns, and what comes out of it."""

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

WARM_UP = 1
"""Rounds of each contestant that are not counted: caches fill and kernels are compiled."""


class Takes(Protocol):
    """Whatever can do a round."""

    name: str

    def round(self, number: int) -> dict[str, Any]:
        """Do round ``number``; ``seconds`` and what else was measured."""


@dataclass(slots=True)
class Entry:
    """What one contestant did.

    Attributes:
        name: the contestant.
        rounds: what each counted round gave, in order.
        kinds: the share of each kind of work in a round under the profiler.
        parts: the share of each part of a training step in that round, where the benchmark is
            about them.
        memory: the most bytes its process has held.
        device_memory: the most bytes on an accelerator.
        facts: what else is known of it, such as how exact its embeddings are.
        versions: of the packages that its Python has.
    """

    name: str
    rounds: list[dict[str, Any]] = field(default_factory=list)
    kinds: dict[str, float] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    memory: int | None = None
    device_memory: int | None = None
    facts: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def rates(self) -> list[float]:
        """Sentences per second of each round."""
        return [float(found["sentences"] / found["seconds"]) for found in self.rounds]


@dataclass(frozen=True, slots=True)
class Speed:
    """Sentences per second over the rounds."""

    median: float
    slowest: float
    fastest: float


def take_turns(contestants: Sequence[Takes], rounds: int) -> list[Entry]:
    """Let each contestant do a round in turn, ``rounds`` times, after those that do not count."""
    entries = [Entry(contestant.name) for contestant in contestants]
    for number in range(WARM_UP + rounds):
        for contestant, entry in zip(contestants, entries, strict=True):
            _tell(f"round {number} of {rounds}: {contestant.name}")
            found = contestant.round(number)
            if number >= WARM_UP:
                entry.rounds.append(found)
    return entries


def speed(entry: Entry) -> Speed:
    """Median, slowest and fastest round."""
    rates = entry.rates
    return Speed(statistics.median(rates), min(rates), max(rates))


def ratio(entry: Entry, reference: Entry) -> float:
    """Median over the rounds of how many times as fast as ``reference`` in the same round."""
    pairs = zip(entry.rates, reference.rates, strict=True)
    return statistics.median(mine / theirs for mine, theirs in pairs)


def fraction(entry: Entry, flops: Sequence[float], peak: Sequence[float]) -> float:
    """Median over the rounds of needed operations per second, as a fraction of the peak.

    Args:
        entry: the contestant.
        flops: operations that each round's sentences need.
        peak: operations per second that the machine reached in each round.
    """
    seconds = [float(found["seconds"]) for found in entry.rounds]
    parts = zip(flops, seconds, peak, strict=True)
    return statistics.median(needed / took / best for needed, took, best in parts)


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
