"""Tables of results: ``python -m benchmarks.table FILE.json ...``.

With ``--update FILE.md``, the tables in that page are made anew: each stands between a line
``<!-- table: results/NAME.json -->``, the path relative to the page, and ``<!-- end of table -->``.
Where there is no result yet, nothing stands between them.
"""

import argparse
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.results import Entry, Result, fraction, ratio, read
from benchmarks.shares import PARTS
from contrasent.files import write_text

_TABLE = re.compile(
    r"(?P<head><!-- table: (?P<path>\S+) -->\n).*?(?P<tail><!-- end of table -->)", re.DOTALL
)
_PRODUCTS = ("matrix products", "attention products")
_MEGA, _GIGA = 1e6, 1e9

Cell = Callable[[Entry], str]


def table(result: Result) -> str:
    """The result as Markdown: a row per contestant, only the columns that have something.

    Where rounds are of tasks, a row per task.
    """
    if any("task" in found for entry in result.entries for found in entry.rounds):
        return _by_task(result)
    columns: dict[str, Cell] = {"sentences/s": _rate, "slowest - fastest": _range}
    columns |= _step(result) or _ratios(result)
    columns |= {
        "of the peak": _fraction(result),
        "in matrix products": _share,
        "lowest cosine": _lowest_cosine,
        "median, ms": lambda entry: _quantile(entry, 50),
        "p99, ms": lambda entry: _quantile(entry, 99),
        "peak memory, MB": _memory,
        "on the device, MB": _device_memory,
    }
    filled = {
        name: cells
        for name, cell in columns.items()
        if any(cells := [cell(entry) for entry in result.entries])
    }
    rows = [["", *filled], ["---"] * (1 + len(filled))]
    for number, entry in enumerate(result.entries):
        rows.append([entry.name, *(cells[number] for cells in filled.values())])
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def _by_task(result: Result) -> str:
    """Accuracies and seconds of the contestants, the reference first; means over seeds."""
    reference = result.entry(result.references[0])
    others = [entry for entry in result.entries if entry is not reference]
    entries = [reference, *others]
    tasks = dict.fromkeys(run["task"] for run in result.entries[0].rounds)

    def mean(entry: Entry, key: str, task: str) -> float:
        return statistics.fmean(run[key] for run in entry.rounds if run["task"] == task)

    head = ["", *(f"{it.name}, accuracy" for it in entries), *(f"{it.name}, s" for it in entries)]
    head += [f"{it.name}, times as fast" for it in others] + ["seeds"]
    rows = [head, ["---"] * len(head)]
    for name, of in {**{task.upper(): [task] for task in tasks}, "all of them": [*tasks]}.items():
        seconds = [sum(mean(entry, "seconds", task) for task in of) for entry in entries]
        rights = (statistics.fmean(mean(it, "test", task) for task in of) for it in entries)
        cells = [name, *(f"{100 * right:.2f}" for right in rights)]
        cells += [
            *(f"{it:,.1f}" for it in seconds),
            *(f"{seconds[0] / it:.1f}" for it in seconds[1:]),
        ]
        seeds = len({run["seed"] for run in reference.rounds})
        rows.append([*cells, "" if name == "all of them" else str(seeds)])
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def setting_line(result: Result) -> str:
    """What the result was measured with, in one line."""
    parts = [f"{key} {value}" for key, value in result.setting.items()]
    if result.peaks:
        for name in ("bf16", "fp32"):
            best = statistics.median(peak[name] for peak in result.peaks) / _GIGA
            parts.append(f"peak {name} {best:,.0f} GFLOP/s")
    parts += [f"without {name} ({why})" for name, why in result.left_out.items()]
    return "; ".join(parts)


def updated(text: str, folder: Path) -> str:
    """The page ``text`` with all its tables made from the results, relative to ``folder``."""

    def made(found: re.Match[str]) -> str:
        path = folder / found["path"]
        body = ""
        if path.is_file():
            result = read(path)
            body = f"{table(result)}\n{setting_line(result)}.\n"
        return found["head"] + body + found["tail"]

    return _TABLE.sub(made, text)


def _compared(result: Result) -> list[Entry]:
    """The peer's default, and the fastest of its entries if that is another one."""
    peers = [result.entry(name) for name in result.references]
    if not peers:
        return []
    fastest = max(peers, key=lambda entry: entry.speed)
    return [peers[0], *([fastest] if fastest is not peers[0] else [])]


def _ratios(result: Result) -> dict[str, Cell]:
    """How many times as fast as the peer."""
    return {f"to {reference.name}": _ratio_to(reference) for reference in _compared(result)}


def _step(result: Result) -> dict[str, Cell]:
    """How long a step and its parts take, where the benchmark is about them; else nothing."""
    names = [name for name in PARTS if any(name in entry.parts for entry in result.entries)]
    if not names:
        return {}

    def step(entry: Entry) -> float:
        seconds = statistics.median(found["seconds"] for found in entry.rounds)
        return float(1000 * seconds / result.setting["steps of a round"])

    def part(name: str) -> Cell:
        return lambda entry: (
            f"{entry.parts[name] * step(entry):,.0f}" if name in entry.parts else ""
        )

    cells: dict[str, Cell] = {"step, ms": lambda entry: f"{step(entry):,.0f}"}
    for reference in _compared(result):
        cells[f"times {reference.name}"] = _cost(reference)
    return cells | {f"{name}, ms": part(name) for name in names}


def _cost(reference: Entry) -> Cell:
    return lambda entry: f"{1 / ratio(entry, reference):.2f}"


def _rate(entry: Entry) -> str:
    return f"{entry.speed:,.0f}" if entry.rounds else ""


def _range(entry: Entry) -> str:
    return f"{min(entry.rates):,.0f} - {max(entry.rates):,.0f}" if entry.rounds else ""


def _ratio_to(reference: Entry) -> Cell:
    return lambda entry: f"{ratio(entry, reference):.2f}"


def _fraction(result: Result) -> Cell:
    def cell(entry: Entry) -> str:
        name = {16: "bf16", 32: "fp32"}.get(int(entry.facts.get("bits", 0)))
        if name is None or not result.flops or not result.peaks:
            return ""
        peak = [found[name] for found in result.peaks]
        return f"{fraction(entry, result.flops, peak):.2f}"

    return cell


def _share(entry: Entry) -> str:
    shares = [share for kind, share in entry.kinds.items() if kind in _PRODUCTS]
    return f"{sum(shares):.2f}" if entry.kinds else ""


def _lowest_cosine(entry: Entry) -> str:
    return f"{entry.facts['lowest cosine']:.5f}" if "lowest cosine" in entry.facts else ""


def _quantile(entry: Entry, percent: int) -> str:
    calls = [seconds for found in entry.rounds for seconds in found.get("calls", [])]
    if not calls:
        return ""
    return f"{1000 * statistics.quantiles(calls, n=100, method='inclusive')[percent - 1]:.2f}"


def _memory(entry: Entry) -> str:
    return f"{entry.memory / _MEGA:,.0f}" if entry.memory else ""


def _device_memory(entry: Entry) -> str:
    return f"{entry.device_memory / _MEGA:,.0f}" if entry.device_memory else ""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print tables, or put them into a page."""
    parser = argparse.ArgumentParser(prog="benchmarks.table", description=__doc__)
    parser.add_argument("results", nargs="*", help="JSON files that benchmarks wrote")
    parser.add_argument("--update", metavar="FILE.md", help="make the tables of this page anew")
    given = parser.parse_args(arguments)
    for path in given.results:
        result = read(path)
        print(f"{result.title}: {setting_line(result)}\n\n{table(result)}")
    if given.update:
        page = Path(given.update)
        write_text(page, updated(page.read_text(encoding="utf-8"), page.parent))


if __name__ == "__main__":
    main()
