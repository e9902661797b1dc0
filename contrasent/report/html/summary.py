"""The top of a report: what was measured, and how it went, in a few numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contrasent.report.html.grid import Cell, Grid, with_best
from contrasent.report.tables import ABSENT

_LOWER = ("alignment", "uniformity")
_NAMED = 4


@dataclass(frozen=True, slots=True)
class Best:
    """The best number of a table.

    Attributes:
        what: the table and its column.
        cell: the number.
        label: whose it is.
        link: the name of the table.
    """

    what: str
    cell: Cell
    label: str
    link: str


def best_of(scores: Sequence[Grid]) -> list[Best]:
    """Of each table of scores the row that is best in the column that sums it up."""
    found = []
    for grid in scores:
        values = [row[grid.key].value for row in grid.rows]
        known = [value for value in values if value is not None]
        if known:
            best = grid.rows[values.index(max(known))]
            found.append(Best(grid.key_heading, best[grid.key], best[0].text, grid.name))
    return found


def key_numbers(labels: Sequence[str], scores: Sequence[Grid], geometry: Sequence[Grid]) -> Grid:
    """A row for each encoder: what sums up its scores, and alignment and uniformity."""
    columns: list[tuple[str, Mapping[str, Cell]]] = [
        (grid.key_heading, {row[0].text: row[grid.key] for row in grid.rows}) for grid in scores
    ]
    for grid in geometry:
        for metric in _LOWER:
            k = grid.columns.index(metric)
            heading = metric if len(geometry) == 1 else f"{metric}, {grid.heading}"
            columns.append((heading, {row[0].text: row[k] for row in grid.rows}))
    cells = [
        (Cell(label), *(of_label.get(label, Cell(ABSENT)) for _, of_label in columns))
        for label in labels
    ]
    lower = [k for k, (name, _) in enumerate(columns, start=1) if name.startswith(_LOWER)]
    headings = ("encoder", *(name for name, _ in columns))
    return Grid("summary-table", "Key numbers", headings, with_best(cells, lower))


def heading(labels: Sequence[str]) -> str:
    """The encoders by name where they are few; training runs alone have none."""
    if not labels:
        return "Training runs"
    named = ", ".join(labels)
    return named if len(labels) <= _NAMED else f"{len(labels)} encoders: {labels[0]} and others"


def told(scores: Sequence[Grid], others: Mapping[str, int]) -> str:
    """What the report holds, in a line.

    Args:
        scores: its tables of scores.
        others: how many there are of other things, by what one is called.
    """
    parts = [grid.heading for grid in scores]
    parts += [f"{n} {what}{'' if n == 1 else 's'}" for what, n in others.items() if n]
    return "; ".join(parts)
