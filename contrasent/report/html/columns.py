"""Columns of a table of scores, and the table that they and some records make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from contrasent.evaluation.task_names import TaskName
from contrasent.records import Record
from contrasent.report.html.contents import PageRow
from contrasent.report.html.grid import Cell, Grid, score, with_best
from contrasent.report.intervals import CORRELATION, averaged_interval
from contrasent.report.tables import ABSENT

Key = tuple[TaskName, str]
"""Task and metric."""

Chosen = dict[str, dict[Key, Record]]
"""Of each encoder by its label the records that a table shows; no encoder without any."""

_GAPS = f"{ABSENT} was not measured; an average needs all of its tasks."

_SHOWN = {"ndcg": "nDCG", "mrr": "MRR", "f1": "F1", "macro_f1": "macro-F1", **CORRELATION}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of numbers: one, or the mean over several where all of them are there."""

    heading: str
    keys: tuple[Key, ...]

    def cell(self, line: Mapping[Key, Record]) -> Cell:
        """The number of one encoder, given its records."""
        found = [line[key] for key in self.keys if key in line]
        if not found or len(found) < len(self.keys):
            return score(None)
        if len(found) == 1:
            return score(found[0].value, found[0].interval)
        mean = sum(record.value for record in found) / len(found)
        return score(mean, averaged_interval(mean, [record.interval for record in found]))


@dataclass(frozen=True, slots=True)
class Named:
    """How a table is called.

    Attributes:
        name: in links.
        heading: above it.
        summed: the column that sums it up, in the summary.
        metric: of a column that does so alone; empty if ``summed`` is about that one.
    """

    name: str
    heading: str
    summed: str
    metric: str = ""


def choose(rows: Sequence[PageRow], holds: Callable[[Record], bool]) -> Chosen:
    """Of each encoder by its label the records that a table shows; no encoder without any."""
    found: Chosen = {}
    for row in rows:
        for record in row.records:
            if not record.subset and holds(record):
                key = TaskName(record.task, record.split), record.metric
                found.setdefault(row.label, {}).setdefault(key, record)
    return found


def scores_grid(
    named: Named,
    columns: Sequence[Column],
    chosen: Chosen,
    notes: Sequence[str],
) -> Grid:
    """A row for each encoder; a mean over tasks, or else the first column, sums it up."""
    cells = [
        (Cell(label), *(column.cell(line) for column in columns)) for label, line in chosen.items()
    ]
    means = [k for k, column in enumerate(columns, start=1) if len(column.keys) > 1]
    named_columns = ("encoder", *(column.heading for column in columns))
    key = means[0] if means else 1
    alone = named.metric and not means
    gaps = any(cell.absent for row in cells for cell in row)
    return Grid(
        named.name,
        named.heading,
        named_columns,
        with_best(cells),
        (*notes, *([_GAPS] if gaps else [])),
        key,
        f"{named_columns[key]} {named.metric}" if alone else named.summed,
    )


def metric_heading(metric: str) -> str:
    """Such as ``nDCG@10``."""
    kind, at, k = metric.partition("@")
    return f"{_SHOWN.get(kind, kind)}{at}{k}"


def headings(names: Sequence[TaskName]) -> dict[TaskName, str]:
    """Short ones; files of one name in several folders are told apart by their paths."""
    short = [name.heading for name in names]
    return {name: name.heading if short.count(name.heading) == 1 else name.label for name in names}
