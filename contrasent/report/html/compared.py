"""Differences between encoders as tables of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contrasent.evaluation.task_names import TaskName
from contrasent.records import Compared
from contrasent.report.html.columns import metric_heading
from contrasent.report.html.contents import Identity, Mean, PageRow, identity
from contrasent.report.html.grid import Cell, Grid
from contrasent.report.tables import ABSENT, AVERAGE

_COLUMNS = ("task", "difference", "low", "high", "p", "p (Holm)")


def compared_grids(by_identity: Mapping[Identity, PageRow], means: Sequence[Mean]) -> list[Grid]:
    """A table for each encoder and what it is compared with, a row for each task and metric."""
    rows = list(by_identity.values())
    found: dict[tuple[str, str], list[_Line]] = {}
    for row in rows:
        for it in row.records:
            if it.compared:
                heading = TaskName(it.task, it.split).heading
                line = _Line(heading, it.metric, it.compared)
                found.setdefault(_between(row, it.compared, rows), []).append(line)
    for mean in means:
        row = by_identity[identity(mean.like)]
        lines = found.setdefault(_between(row, mean.compared, rows), [])
        place = max((k for k, it in enumerate(lines, 1) if it.metric == mean.metric), default=0)
        lines.insert(place, _Line(AVERAGE, mean.metric, mean.compared))
    return [
        Grid(
            f"compared-{number}",
            f"{label} minus {baseline}",
            _COLUMNS,
            tuple(map(_cells, lines)),
            (_said([line.compared for line in lines]),),
        )
        for number, ((label, baseline), lines) in enumerate(found.items(), start=1)
    ]


@dataclass(frozen=True, slots=True)
class _Line:
    """A task, or the average, and a metric."""

    heading: str
    metric: str
    compared: Compared


def _between(row: PageRow, found: Compared, rows: Sequence[PageRow]) -> tuple[str, str]:
    """The labels of an encoder and of what it is compared with."""
    known = baseline_row(found, row, rows)
    return row.label, known.label if known else found.baseline


def _cells(line: _Line) -> tuple[Cell, ...]:
    found = line.compared
    between = found.interval
    return (
        Cell(f"{line.heading} {metric_heading(line.metric)}"),
        _signed(found.difference),
        _signed(between.low if between else None),
        _signed(between.high if between else None),
        Cell(f"{found.p_value:.4f}", found.p_value),
        Cell(f"{found.p_holm:.4f}", found.p_holm) if found.tests > 1 else Cell(ABSENT),
    )


def _signed(value: float | None) -> Cell:
    return Cell(ABSENT) if value is None else Cell(f"{100 * value:+.2f}", value)


def _said(found: Sequence[Compared]) -> str:
    sure = next((one.interval for one in found if one.interval), None)
    drawn = (
        f"; low and high are the ends of the {100 * sure.confidence:g} % percentile interval over "
        f"{sure.resamples} resamples (seed {sure.seed})"
        if sure
        else ""
    )
    tests = max(one.tests for one in found)
    holm = f"; Holm's adjustment is over the {tests} tasks of a metric" if tests > 1 else ""
    return (
        "Differences x 100. Paired bootstrap: the same pairs, sentences or queries are drawn again "
        f"for both{drawn}; p is two-sided{holm}."
    )


def baseline_row(found: Compared, other: PageRow, rows: Sequence[PageRow]) -> PageRow | None:
    """The row that ``other`` was compared with; None where it cannot be told."""
    named = [row for row in rows if row.like.encoder == found.baseline]
    alike = [row for row in named if row.like.pooler == other.like.pooler]
    known = named if len(named) == 1 else alike
    return known[0] if len(known) == 1 else None
