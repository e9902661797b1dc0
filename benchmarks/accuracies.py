"""Tables of transfer tasks: what each contestant reached on a task, and how long it took."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.results import Result

Round = dict[str, Any]


def by_task(result: Result) -> str:
    """A row per task as Markdown: accuracies, seconds per seed, how many times as fast.

    A contestant's accuracies and times are means over the seeds that it has in common with the
    reference; where it has none, over its own. The last row sums up the tasks that both have.
    """
    tasks = list(dict.fromkeys(str(r["task"]) for e in result.entries for r in e.rounds))
    reference = next((name for name in result.references if _rounds(result, name)), None)
    others = [entry.name for entry in result.entries if entry.name != reference]
    named = [*([reference] if reference else []), *others]
    head = ["", *(f"{name}, accuracy" for name in named)]
    head += [f"{name}, s" for name in named]
    head += [f"{name}, times as fast" for name in others if reference]
    head += ["seeds"] if reference else []
    rows = [head, ["---"] * len(head)]
    for task in [*tasks, None]:
        pairs = {name: _in_common(result, name, reference, task) for name in named}
        cells = ["all of them" if task is None else task.upper()]
        cells += [_number(pairs[name][0], "test", 100, "{:.2f}", task) for name in named]
        cells += [_number(pairs[name][0], "seconds", 1, "{:,.1f}", task) for name in named]
        cells += [_ratio(*pairs[name]) for name in others if reference]
        if reference:
            counts = [len({r["seed"] for r in pairs[n][1]}) for n in others if task]
            cells.append(str(max(counts)) if counts else "")
        rows.append(cells)
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def _rounds(result: Result, name: str, task: str | None = None) -> list[Round]:
    return [
        found
        for entry in result.entries
        if entry.name == name
        for found in entry.rounds
        if task in (None, found["task"])
    ]


def _in_common(
    result: Result, name: str, reference: str | None, task: str | None
) -> tuple[list[Round], list[Round]]:
    """Rounds of ``name`` and those of the reference with the same tasks and seeds."""
    mine = _rounds(result, name, task)
    theirs = _rounds(result, reference, task) if reference else []
    both = {_key(found) for found in mine} & {_key(found) for found in theirs}
    if not both:
        return mine, []
    kept = [[found for found in rounds if _key(found) in both] for rounds in (mine, theirs)]
    return kept[0], kept[1]


def _key(found: Round) -> tuple[str, int]:
    return found["task"], found["seed"]


def _number(rounds: Sequence[Round], what: str, times: float, shape: str, task: str | None) -> str:
    if not rounds:
        return ""
    tasks = {found["task"] for found in rounds}
    means = [
        statistics.mean(found[what] for found in rounds if found["task"] == name) for name in tasks
    ]
    whole = sum(means) if what == "seconds" or task else statistics.mean(means)
    return shape.format(times * whole)


def _ratio(mine: Sequence[Round], theirs: Sequence[Round]) -> str:
    if not theirs:
        return ""
    return f"{sum(r['seconds'] for r in theirs) / sum(r['seconds'] for r in mine):.1f}"
