"""One benchmark of speed, from what the contestants are to what they reached."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import options
from benchmarks.flops import Model
from benchmarks.material import Material, gathered
from benchmarks.remote import Contestant, Process, Spec, Start, started
from benchmarks.results import Entry, Result
from contrasent.errors import ConfigError

WARM_UP = 1
"""Rounds of each contestant that are not counted: caches fill and kernels are compiled."""
_PEAK = "matrix products alone"


@dataclass(frozen=True, slots=True)
class Race:
    """What is measured."""

    title: str  # of the table
    setting: dict[str, Any]  # for the table
    specs: Sequence[Spec]
    references: Sequence[str]  # the peer's contestants, its default first
    rounds: int  # counted ones of each
    flops: Callable[[int], float] | None = None  # that the sentences of a round need
    shapes: Sequence[tuple[int, int, int]] = field(default=())  # of products: their peak is taken
    profiled: Sequence[str] = ()  # one more round of these under the profiler
    parts: bool = False  # how long the parts of a training step take, from that round
    compared: str | None = None  # with whose embeddings those of all are compared


def main(
    given: argparse.Namespace,
    sentences: int,
    race: Callable[[argparse.Namespace, Material], Race],
    start: Start = Process,
) -> Result:
    """Find what contestants work on, run a race, and tell its result."""
    with gathered(given.encoder, given.data, sentences) as material:
        result = run(race(given, material), material.place, start)
    options.publish(result, given.json)
    return result


def run(race: Race, place: Path, start: Start = Process) -> Result:
    """Run it: contestants, each in a process of its own, take turns, and write into ``place``.

    ConfigError if there are no rounds, or nobody can take part; ContrasentError if one failed.
    """
    if race.rounds < 1:
        raise ConfigError(f"--rounds must be at least 1, not {race.rounds}")
    bits = {spec.name: spec.bits for spec in race.specs}
    peak = [Spec(_PEAK, "benchmarks.jobs.peak:Peak", {"shapes": race.shapes})] * bool(race.shapes)
    with started([*peak, *race.specs], start) as (contestants, left_out):
        if not any(contestant.name in bits for contestant in contestants):
            raise ConfigError(f"no contestant can take part: {left_out}")
        entries = [Entry(contestant.name) for contestant in contestants]
        for number in range(WARM_UP + race.rounds):
            for contestant, entry in zip(contestants, entries, strict=True):
                tell = f"round {number} of {race.rounds}: {contestant.name}"
                print(tell, file=sys.stderr, flush=True)
                found = contestant.ask("round", number=number)
                entry.rounds += [found] * (number >= WARM_UP)
        for contestant, entry in zip(contestants, entries, strict=True):
            if contestant.name in race.profiled:
                found = contestant.ask("profile", number=WARM_UP + race.rounds)
                entry.kinds, entry.parts = found["kinds"], found["parts"] if race.parts else {}
            memory = contestant.ask("peak_memory")
            entry.memory, entry.device_memory = memory["bytes"], memory["device_bytes"]
            entry.versions = contestant.versions
            entry.facts |= {"bits": bit} if (bit := bits.get(entry.name)) else {}
        if race.compared is not None:
            _compare([c for c in contestants if c.name != _PEAK], entries, race.compared, place)
    taking_part = [entry for entry in entries if entry.name != _PEAK]
    names = {entry.name for entry in taking_part}
    counted = range(WARM_UP, WARM_UP + race.rounds)
    return Result(
        title=race.title,
        setting={**race.setting, "rounds": race.rounds},
        references=[name for name in race.references if name in names],
        entries=taking_part,
        flops=[race.flops(number) for number in counted] if race.flops else [],
        peaks=[found for entry in entries if entry.name == _PEAK for found in entry.rounds],
        left_out=left_out,
    )


def shapes_of(model: Model, rows: int, *, backward: bool) -> list[tuple[int, int, int]]:
    """The products whose speed is the peak of a benchmark; its batches have about ``rows``."""
    return model.products(max(64, rows // 64 * 64), backward=backward)


def _compare(
    contestants: Sequence[Contestant], entries: Sequence[Entry], compared: str, place: Path
) -> None:
    """Note the lowest cosine of every contestant's embeddings with those of ``compared``."""
    rows = {}
    for contestant in contestants:
        contestant.ask("rows", path=str(place / "rows.npy"))
        rows[contestant.name] = np.load(place / "rows.npy")
    exact = rows.get(compared)
    for entry in entries:
        if entry.name in rows and exact is not None:
            found = rows[entry.name]
            lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(exact, axis=1)
            entry.facts["lowest cosine"] = float(((found * exact).sum(axis=1) / lengths).min())
