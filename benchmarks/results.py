"""What a benchmark found, as JSON, and what follows from it."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import described
from contrasent.errors import DataError
from contrasent.files import write_text
from contrasent.records import installed_versions

FORMAT = "contrasent-benchmark-2"


@dataclass(slots=True)
class Entry:
    """What one contestant did."""

    name: str
    rounds: list[dict[str, Any]] = field(default_factory=list)  # what each counted round gave
    # shares of kinds of work and of parts of a training step in a round under the profiler
    kinds: dict[str, float] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    memory: int | None = None  # the most bytes that its process had
    device_memory: int | None = None  # and on an accelerator
    facts: dict[str, float] = field(default_factory=dict)  # such as how exact its embeddings are
    versions: dict[str, str] = field(default_factory=dict)  # of the packages of its Python

    @property
    def rates(self) -> list[float]:
        """Sentences per second of each round."""
        return [float(found["sentences"] / found["seconds"]) for found in self.rounds]

    @property
    def speed(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.rates)


@dataclass(slots=True)
class Result:
    """One benchmark, run once."""

    title: str
    setting: dict[str, Any]
    references: list[str]  # of the peer, its default first; others are compared with them
    entries: list[Entry]
    flops: list[float] = field(default_factory=list)  # that the sentences of each round need
    # what the machine's matrix products reached in each round, as `benchmarks.jobs.peak` says
    peaks: list[dict[str, float]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)  # who could not take part, and why
    machine: dict[str, Any] = field(default_factory=described)
    versions: dict[str, str] = field(default_factory=installed_versions)

    def entry(self, name: str) -> Entry:
        """The contestant called ``name``."""
        return next(entry for entry in self.entries if entry.name == name)


def ratio(entry: Entry, reference: Entry) -> float:
    """Median over the rounds of how many times as fast as ``reference`` in the same round."""
    pairs = zip(entry.rates, reference.rates, strict=True)
    return statistics.median(mine / theirs for mine, theirs in pairs)


def fraction(entry: Entry, flops: Sequence[float], peak: Sequence[float]) -> float:
    """Median over the rounds of needed operations per second, as a fraction of the ``peak``."""
    seconds = [float(found["seconds"]) for found in entry.rounds]
    parts = zip(flops, seconds, peak, strict=True)
    return statistics.median(needed / took / best for needed, took, best in parts)


def write(result: Result, path: str | Path) -> None:
    """Write a result, whole or not at all."""
    write_text(path, json.dumps({"format": FORMAT, **asdict(result)}, indent=1) + "\n")


def read(path: str | Path) -> Result:
    """Read a result; DataError if the file holds none."""
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(content, Mapping) or content.get("format") != FORMAT:
        raise DataError(f"{path} is not a result of these benchmarks in the format {FORMAT}")
    kept = {key: value for key, value in content.items() if key != "format"}
    entries = [Entry(**entry) for entry in kept.pop("entries")]
    return Result(entries=entries, **kept)
