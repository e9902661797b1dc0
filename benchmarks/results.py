"""What a benchmark found, as JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import described
from benchmarks.rounds import Entry
from contrasent.errors import DataError
from contrasent.files import write_text
from contrasent.records import installed_versions

FORMAT = "contrasent-benchmark-2"


@dataclass(slots=True)
class Result:
    """One benchmark, run once.

    Attributes:
        title: which.
        setting: what it was run with.
        references: the peer's entries that took part, its default first; the others are compared
            with that and with the fastest.
        entries: the contestants.
        flops: operations that each round's sentences need; empty if nobody counted.
        peaks: what the machine's matrix products reached in each round; see
            :class:`benchmarks.jobs.peak.Peak`.
        left_out: contestants that could not take part, and why.
        machine: what the machine is.
        versions: of the packages.
    """

    title: str
    setting: dict[str, Any]
    references: list[str]
    entries: list[Entry]
    flops: list[float] = field(default_factory=list)
    peaks: list[dict[str, float]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=described)
    versions: dict[str, str] = field(default_factory=installed_versions)

    def entry(self, name: str) -> Entry:
        """The contestant called ``name``."""
        return next(entry for entry in self.entries if entry.name == name)


def write(result: Result, path: str | Path) -> None:
    """Write a result, whole or not at all."""
    write_text(path, json.dumps({"format": FORMAT, **asdict(result)}, indent=1) + "\n")


def read(path: str | Path) -> Result:
    """Read a result.

    Raises:
        DataError: the file does not hold one.
    """
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(content, Mapping) or content.get("format") != FORMAT:
        raise DataError(f"{path} is not a result of these benchmarks in the format {FORMAT}")
    kept = {key: value for key, value in content.items() if key != "format"}
    entries = [Entry(**entry) for entry in kept.pop("entries")]
    return Result(entries=entries, **kept)
