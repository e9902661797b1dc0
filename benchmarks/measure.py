"""Measuring several ways to do the same work in one run, so that a noisy machine is fair to all."""

from __future__ import annotations

import gzip
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

from contrasent.files import write_text
from contrasent.records import installed_versions


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to do the work.

    Attributes:
        name: what the table calls it.
        work: does one round.
        sentences: sentences of one round.
    """

    name: str
    work: Callable[[], object]
    sentences: int


@dataclass(frozen=True, slots=True)
class Speed:
    """What one contestant reached.

    Attributes:
        name: the contestant.
        sentences_per_second: median over the rounds.
        slowest: of the rounds.
        fastest: of the rounds.
        ratio: median over the rounds of this one's speed divided by the reference's in the same
            round.
    """

    name: str
    sentences_per_second: float
    slowest: float
    fastest: float
    ratio: float


def interleaved(contestants: Sequence[Contestant], reference: str, rounds: int) -> list[Speed]:
    """Let each contestant do a round in turn, ``rounds`` times, after one that is not counted."""
    speeds: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for number in range(rounds + 1):
        for contestant in contestants:
            start = time.perf_counter()
            contestant.work()
            speed = contestant.sentences / (time.perf_counter() - start)
            if number:
                speeds[contestant.name].append(speed)
    return [
        Speed(
            name=name,
            sentences_per_second=statistics.median(found),
            slowest=min(found),
            fastest=max(found),
            ratio=statistics.median(
                mine / theirs for mine, theirs in zip(found, speeds[reference], strict=True)
            ),
        )
        for name, found in speeds.items()
    ]


def report(
    title: str, speeds: Sequence[Speed], setting: dict[str, object], path: str | None
) -> None:
    """Print a table; write everything as JSON to ``path`` if there is one."""
    print(f"\n{title}")
    print(", ".join(f"{key} {value}" for key, value in setting.items()))
    print(f"{'':<34}{'sentences/s':>12}{'slowest':>10}{'fastest':>10}{'ratio':>8}")
    for speed in speeds:
        print(
            f"{speed.name:<34}{speed.sentences_per_second:>12.1f}{speed.slowest:>10.1f}"
            f"{speed.fastest:>10.1f}{speed.ratio:>8.2f}"
        )
    if path:
        content = {
            "title": title,
            "setting": setting,
            "versions": installed_versions(),
            "speeds": [asdict(speed) for speed in speeds],
        }
        write_text(path, json.dumps(content, indent=2) + "\n")


def sentences(source: str | None, count: int) -> list[str]:
    """The first ``count`` lines of a text file, by default of the text of the quickstart."""
    path = Path(source or str(files("contrasent") / "quickstart_data" / "wikipedia.txt"))
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.strip()]
    if len(lines) < count:
        lines = lines * (count // len(lines) + 1)
    return lines[:count]
