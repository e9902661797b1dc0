"""The numbers of a benchmark, as JSON and as tables of a page.

A table of a page stands between a line ``<!-- table: results/NAME.json -->``, the path relative to
the page, and ``<!-- end of table -->``. Where there is no result yet, nothing stands between them.
"""

import os
import platform
import re
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.worker import PARTS, PRODUCTS
from contrasent.errors import DataError
from contrasent.files import read_json, write_json
from contrasent.records import installed_versions

FORMAT = "contrasent-benchmark-2"
_TABLE = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
_FLAGS = re.compile(r"amx_\w+|avx512_(?:bf16|vnni)|avx_vnni")
_MEGA, _GIGA = 1e6, 1e9


@dataclass(slots=True)
class Entry:
    """What one contestant did."""

    name: str
    rounds: list[dict[str, Any]] = field(default_factory=list)  # what each counted round gave
    # shares of operators, and of parts of a training step, in a round under the profiler
    kinds: dict[str, float] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    memory: int | None = None  # the most bytes that its process had
    device_memory: int | None = None  # and on an accelerator
    facts: dict[str, float] = field(default_factory=dict)  # such as how exact its embeddings are
    versions: dict[str, str] = field(default_factory=dict)  # of the packages of its Python
    part: str = ""  # of the job; only entries of the same part are compared

    @property
    def title(self) -> str:
        """Its name and part, in tables."""
        return f"{self.name}, {self.part}" if self.part else self.name

    @property
    def rates(self) -> list[float]:
        """Sentences per second of each round."""
        return [float(values["sentences"] / values["seconds"]) for values in self.rounds]

    def median(self, key: str, unit: float = 1) -> float | None:
        """The median of a number of every round, in a unit; None if they have none."""
        numbers = [values[key] for values in self.rounds if key in values]
        return float(statistics.median(numbers)) / unit if numbers else None


def described() -> dict[str, Any]:
    """Describe what decides how fast this machine is, and the day."""
    path = Path("/proc/cpuinfo")
    info = path.read_text(encoding="utf-8") if path.is_file() else ""
    names = re.findall(r"^model name\s*: (.*)", info, re.MULTILINE)
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "flags": sorted(set(_FLAGS.findall(info))),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.platform(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


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
    left_out: dict[str, str] = field(default_factory=dict)  # who lacks a package, and which
    failed: dict[str, str] = field(default_factory=dict)  # who failed, and how
    machine: dict[str, Any] = field(default_factory=described)
    versions: dict[str, str] = field(default_factory=installed_versions)


def write(result: Result, path: Path) -> None:
    """Write a result, whole or not at all."""
    write_json(path, {"format": FORMAT, **asdict(result)}, indent=1)


def read(path: str | Path) -> Result:
    """Read a result; DataError if the file holds none."""
    content = read_json(path)
    if content.pop("format", None) != FORMAT:
        raise DataError(f"{path} is not a result of these benchmarks in the format {FORMAT}")
    entries = [Entry(**entry) for entry in content.pop("entries")]
    return Result(entries=entries, **content)


Cell = Callable[[Entry], float | str | None]
"""What an entry has in a column; None for nothing."""


def table(result: Result) -> str:
    """Write the result as Markdown: a row per entry, only the columns that have something."""
    columns: dict[str, tuple[Cell, str]] = {
        "sentences/s": (lambda it: statistics.median(it.rates), ",.0f"),
        "slowest - fastest": (lambda it: f"{min(it.rates):,.0f} - {max(it.rates):,.0f}", ""),
        **_compared(result),
        "of the peak": (partial(_fraction, result), ".2f"),
        "in matrix products": (_products, ".2f"),
        "tokenising alone": (lambda it: it.median("tokenising", it.median("seconds") or 1), ".2f"),
        "lowest cosine": (lambda it: it.facts.get("lowest cosine"), ".5f"),
        "accuracy": (lambda it: it.median("test", 0.01), ".2f"),
        "median, ms": (partial(_quantile, percent=50), ".2f"),
        "p99, ms": (partial(_quantile, percent=99), ".2f"),
        "refused": (lambda it: it.median("refused") or None, ",.0f"),
        "failed": (lambda it: it.median("failed") or None, ",.0f"),
    }
    for key in dict.fromkeys(key for entry in result.entries for key in entry.facts):
        if key not in ("bits", *columns):
            columns[key] = (lambda it, key=key: it.facts.get(key)), ",.4g"
    columns |= {
        "peak memory, MB": (lambda it: it.memory and it.memory / _MEGA, ",.0f"),
        "on the device, MB": (lambda it: it.device_memory and it.device_memory / _MEGA, ",.0f"),
    }
    filled = [["", "---", *(entry.title for entry in result.entries)]]
    for name, (cell, form) in columns.items():
        values = [cell(entry) for entry in result.entries]
        if any(value is not None for value in values):
            cells = ("" if value is None else f"{value:{form}}" for value in values)
            filled.append([name, "---", *cells])
    return "".join(f"| {' | '.join(row)} |\n" for row in zip(*filled, strict=True))


def setting_line(result: Result) -> str:
    """Write in one line what the result was measured with."""
    parts = [f"{key} {value}" for key, value in result.setting.items()]
    for name in ("bf16", "fp32") if result.peaks else ():
        best = statistics.median(peak[name] for peak in result.peaks) / _GIGA
        parts.append(f"peak {name} {best:,.0f} GFLOP/s")
    parts += [f"without {name} ({why})" for name, why in result.left_out.items()]
    parts += [f"{name} failed ({why})" for name, why in result.failed.items()]
    if "date" in result.machine:
        parts.append(result.machine["accelerator"] or result.machine["processor"])
        parts.append(result.machine["date"])
    return "; ".join(parts)


def updated(text: str, folder: Path) -> str:
    """The page ``text`` with all its tables made from the results, relative to ``folder``."""

    def replaced(match: re.Match[str]) -> str:
        head, name, tail = match.groups()
        if not (folder / name).is_file():
            return head + tail
        result = read(folder / name)
        return f"{head}{table(result)}\n{setting_line(result)}.\n{tail}"

    return _TABLE.sub(replaced, text)


def _compared(result: Result) -> dict[str, tuple[Cell, str]]:
    """Columns beside the peer's default and its fastest entry, or of a training step's parts."""
    names = [name for name in PARTS if any(name in entry.parts for entry in result.entries)]
    if not names:
        peers = [entry for entry in result.entries if entry.name in result.references]
        fastest = sorted(peers, key=lambda it: statistics.median(it.rates), reverse=True)[:1]
        beside = dict.fromkeys([*result.references[:1], *(entry.name for entry in fastest)])
        return {f"to {name}": (_ratio(result, name), ".2f") for name in beside}
    second = result.setting["steps of a round"] / 1000

    def part(entry: Entry, name: str) -> float | None:
        return entry.median("seconds", second) * entry.parts[name] if name in entry.parts else None

    return {
        "step, ms": (lambda it: it.median("seconds", second), ",.0f"),
        f"times {result.references[0]}": (_ratio(result, result.references[0], -1), ".2f"),
        **{f"{name}, ms": (partial(part, name=name), ",.0f") for name in names},
    }


def _ratio(result: Result, name: str, power: int = 1) -> Cell:
    """How many times as fast as an entry of the same part: the median of the same rounds."""
    references = {entry.part: entry.rates for entry in result.entries if entry.name == name}

    def ratio(entry: Entry) -> float | None:
        pairs = zip(entry.rates, references.get(entry.part, []), strict=False)
        ratios = [mine / theirs for mine, theirs in pairs]
        return statistics.median(ratios) ** power if ratios else None

    return ratio


def _fraction(result: Result, entry: Entry) -> float | None:
    name = {16: "bf16", 32: "fp32"}.get(int(entry.facts.get("bits", 0)))
    if name is None or not result.flops or not result.peaks:
        return None
    rounds = zip(result.flops, entry.rounds, result.peaks, strict=True)
    return statistics.median(needed / it["seconds"] / peak[name] for needed, it, peak in rounds)


def _products(entry: Entry) -> float | None:
    shares = [share for kind, share in entry.kinds.items() if PRODUCTS.search(kind)]
    return sum(shares) if entry.kinds else None


def _quantile(entry: Entry, percent: int) -> float | None:
    calls = [1000 * seconds for values in entry.rounds for seconds in values.get("calls", [])]
    return float(np.percentile(calls, percent)) if calls else None
