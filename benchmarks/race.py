"""One benchmark of speed, from what the contestants are to what they reached."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.flops import Model
from benchmarks.remote import Contestant, Process, Spec, Start, started
from benchmarks.results import Result
from benchmarks.rounds import WARM_UP, Entry, take_turns
from contrasent.errors import ConfigError

_PEAK = "matrix products alone"


@dataclass(frozen=True, slots=True)
class Race:
    """What is measured.

    Attributes:
        title: of the table.
        setting: what it is run with, for the table.
        specs: the contestants.
        references: the peer's contestants, its default first.
        rounds: counted rounds of each.
        flops: operations that the sentences of a round need, given its number.
        shapes: the matrix products whose speed is the peak; none if empty.
        profiled: run one more round of these under the profiler.
        parts: tell how long the parts of a training step take, from that round.
        compared: read all embeddings of every contestant and compare them with this one's.
    """

    title: str
    setting: dict[str, Any]
    specs: Sequence[Spec]
    references: Sequence[str]
    rounds: int
    flops: Callable[[int], float] | None = None
    shapes: Sequence[tuple[int, int, int]] = field(default=())
    profiled: Sequence[str] = ()
    parts: bool = False
    compared: str | None = None


def run(race: Race, place: Path, start: Start = Process) -> Result:
    """Run it.

    Args:
        race: what is measured.
        place: a folder for what contestants write.
        start: where contestants run; by default each in a process of its own.

    Raises:
        ConfigError: there are no rounds, or no contestant can take part.
        ContrasentError: a contestant failed.
    """
    if race.rounds < 1:
        raise ConfigError(f"--rounds must be at least 1, not {race.rounds}")
    bits = {spec.name: spec.bits for spec in race.specs}
    with started([*_peak(race), *race.specs], start) as (contestants, left_out):
        if not any(contestant.name in bits for contestant in contestants):
            raise ConfigError(f"no contestant can take part: {left_out}")
        entries = take_turns(contestants, race.rounds)
        for contestant, entry in zip(contestants, entries, strict=True):
            if contestant.name in race.profiled:
                found = contestant.profile(WARM_UP + race.rounds)
                entry.kinds, entry.parts = found["kinds"], found["parts"] if race.parts else {}
            memory = contestant.peak_memory()
            entry.memory, entry.device_memory = memory["bytes"], memory["device_bytes"]
            entry.versions = contestant.versions
            entry.facts |= {"bits": bit} if (bit := bits.get(entry.name)) else {}
        if race.compared is not None:
            _compare([c for c in contestants if c.name != _PEAK], entries, race.compared, place)
    peaks = [found for entry in entries if entry.name == _PEAK for found in entry.rounds]
    taking_part = [entry for entry in entries if entry.name != _PEAK]
    names = {entry.name for entry in taking_part}
    counted = range(WARM_UP, WARM_UP + race.rounds)
    return Result(
        title=race.title,
        setting={**race.setting, "rounds": race.rounds},
        references=[name for name in race.references if name in names],
        entries=taking_part,
        flops=[race.flops(number) for number in counted] if race.flops else [],
        peaks=peaks,
        left_out=left_out,
    )


def shapes_of(model: Model, rows: int, *, backward: bool) -> list[tuple[int, int, int]]:
    """The products whose speed is the peak of a benchmark; its batches have about ``rows``."""
    rounded = max(64, rows // 64 * 64)
    return model.products(rounded, backward=backward)


def lowest_cosine(found: np.ndarray, exact: np.ndarray) -> float:
    """The lowest cosine of any row of ``found (N, D)`` with that of ``exact (N, D)``."""
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(exact, axis=1)
    return float(((found * exact).sum(axis=1) / lengths).min())


def _peak(race: Race) -> list[Spec]:
    job = "benchmarks.jobs.peak:Peak"
    return [Spec(_PEAK, job, {"shapes": race.shapes})] if race.shapes else []


def _compare(
    contestants: Sequence[Contestant], entries: Sequence[Entry], compared: str, place: Path
) -> None:
    """Note how near every contestant's embeddings are to those of the one called ``compared``."""
    rows = {}
    for contestant in contestants:
        path = place / "rows.npy"
        contestant.rows(path)
        rows[contestant.name] = np.load(path)
    for entry in entries:
        if entry.name in rows and compared in rows:
            entry.facts["lowest cosine"] = lowest_cosine(rows[entry.name], rows[compared])
