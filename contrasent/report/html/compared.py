"""Differences between encoders as tables of a report."""

from __future__ import annotations

from collections.abc import Sequence

from contrasent.evaluate.tasks import TaskName
from contrasent.records import Compared, Record
from contrasent.report.html.columns import metric_heading
from contrasent.report.html.contents import Row
from contrasent.report.html.grid import Cell, Grid
from contrasent.report.tables import ABSENT

_COLUMNS = ("task", "difference", "low", "high", "p", "p (Holm)")


def compared_grids(rows: Sequence[Row]) -> list[Grid]:
    """A table for each encoder and what it is compared with, a row for each task and metric."""
    found: dict[tuple[str, str], list[tuple[Record, Compared]]] = {}
    for row in rows:
        for record in row.records:
            if record.compared:
                known = baseline_row(record.compared, row, rows)
                baseline = known.label if known else record.compared.baseline
                found.setdefault((row.label, baseline), []).append((record, record.compared))
    return [
        Grid(
            f"compared-{number}",
            f"{label} minus {baseline}",
            _COLUMNS,
            tuple(_cells(*it) for it in of_tasks),
            (_said([one for _, one in of_tasks]),),
        )
        for number, ((label, baseline), of_tasks) in enumerate(found.items(), start=1)
    ]


def _cells(record: Record, found: Compared) -> tuple[Cell, ...]:
    between = found.interval
    return (
        Cell(f"{TaskName(record.task, record.split).heading} {metric_heading(record.metric)}"),
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


def baseline_row(found: Compared, other: Row, rows: Sequence[Row]) -> Row | None:
    """The row that ``other`` was compared with; None where it cannot be told."""
    named = [row for row in rows if row.like.encoder == found.baseline]
    alike = [row for row in named if row.like.pooler == other.like.pooler]
    known = named if len(named) == 1 else alike
    return known[0] if len(known) == 1 else None
