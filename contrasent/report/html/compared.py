"""Differences between encoders as tables of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from contrasent.evaluate.tasks import TaskName
from contrasent.records import Compared, Record
from contrasent.report.html.columns import metric_heading
from contrasent.report.html.contents import Row
from contrasent.report.html.grid import Cell, Grid
from contrasent.report.tables import ABSENT

_COLUMNS = ("task", "difference", "low", "high", "p", "p (Holm)")


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two encoders and what they are compared in."""

    label: str
    baseline: str
    metric: str
    aggregation: str


def compared_grids(rows: Sequence[Row]) -> list[Grid]:
    """A table for each encoder, baseline, metric and aggregation."""
    found: dict[_Pair, list[tuple[Record, Compared]]] = {}
    for row in rows:
        for record in row.records:
            if record.compared:
                with_row = baseline_row(record.compared, row, rows)
                baseline = with_row.label if with_row else record.compared.baseline
                pair = _Pair(row.label, baseline, record.metric, record.aggregation)
                found.setdefault(pair, []).append((record, record.compared))
    return [
        Grid(
            f"compared-{number}",
            f"{pair.label} minus {pair.baseline}: {metric_heading(pair.metric)}, "
            f"{pair.aggregation}",
            _COLUMNS,
            tuple(_cells(*it) for it in of_tasks),
            (_said(of_tasks[0][1]),),
        )
        for number, (pair, of_tasks) in enumerate(found.items(), start=1)
    ]


def _cells(record: Record, found: Compared) -> tuple[Cell, ...]:
    between = found.interval
    return (
        Cell(TaskName(record.task, record.split).heading),
        _signed(found.difference),
        _signed(between.low if between else None),
        _signed(between.high if between else None),
        Cell(f"{found.p_value:.4f}", found.p_value),
        Cell(f"{found.p_holm:.4f}", found.p_holm) if found.tests > 1 else Cell(ABSENT),
    )


def _signed(value: float | None) -> Cell:
    return Cell(ABSENT) if value is None else Cell(f"{100 * value:+.2f}", value)


def _said(one: Compared) -> str:
    drawn = (
        f"; the ends of the {100 * one.interval.confidence:g} % percentile interval over "
        f"{one.interval.resamples} resamples (seed {one.interval.seed})"
        if one.interval
        else ""
    )
    holm = f"; Holm's adjustment is over {one.tests} tasks" if one.tests > 1 else ""
    return (
        f"Differences x 100. Paired bootstrap: the same pairs are drawn again for both{drawn}; p "
        f"is two-sided{holm}."
    )


def baseline_row(found: Compared, other: Row, rows: Sequence[Row]) -> Row | None:
    """The row that ``other`` was compared with; None where it cannot be told."""
    named = [row for row in rows if row.like.encoder == found.baseline]
    alike = [row for row in named if row.like.pooler == other.like.pooler]
    known = named if len(named) == 1 else alike
    return known[0] if len(known) == 1 else None
