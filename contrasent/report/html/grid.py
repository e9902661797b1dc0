"""Tables before they are text: what is printed, what it is in full, and what is best."""

from __future__ import annotations

import csv
import io
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace

from contrasent.records import Interval
from contrasent.report.tables import ABSENT


@dataclass(frozen=True, slots=True)
class Cell:
    """One field of a table.

    Attributes:
        text: what is printed.
        value: the number in full, by which rows are sorted; None for text.
        interval: how sure it is.
        best: it is the best of its column.
    """

    text: str
    value: float | None = None
    interval: Interval | None = None
    best: bool = False

    @property
    def absent(self) -> bool:
        """Nothing was measured."""
        return self.text == ABSENT

    @property
    def between(self) -> str:
        """The printed interval x 100, or nothing."""
        found = self.interval
        return f"[{100 * found.low:.2f}, {100 * found.high:.2f}]" if found else ""

    @property
    def full(self) -> str:
        """Every digit."""
        if self.value is None:
            return ""
        if self.interval is None:
            return repr(self.value)
        return f"{self.value!r}, from {self.interval.low!r} to {self.interval.high!r}"


def score(value: float | None, interval: Interval | None = None) -> Cell:
    """A score in [-1, 1], printed x 100 with two decimals; absent if there is none."""
    return Cell(ABSENT) if value is None else Cell(f"{100 * value:.2f}", value, interval)


Row = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of a report.

    Attributes:
        name: in links, and of the file it is downloaded as.
        heading: above it.
        columns: headings, that of the first column too.
        rows: cells; the first of a row is its label.
        notes: what the numbers are, beneath it.
        key: the column that a summary shows.
        key_heading: of that column in the summary.
        texts: columns that hold text, beside the first.
    """

    name: str
    heading: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    key: int = 1
    key_heading: str = ""
    texts: frozenset[int] = frozenset()

    @property
    def download(self) -> str:
        """The table as a link that holds it: CSV, numbers in full, intervals in own columns."""
        return f"data:text/csv;charset=utf-8;base64,{b64encode(self.csv().encode()).decode()}"

    def csv(self) -> str:
        """Comma-separated values."""
        sure = {k for row in self.rows for k, cell in enumerate(row) if cell.interval is not None}
        lines: list[list[str]] = [[]]
        for k, name in enumerate(self.columns):
            lines[0] += [name, f"{name} low", f"{name} high"] if k in sure else [name]
        for row in self.rows:
            lines.append([])
            for k, cell in enumerate(row):
                lines[-1].append(cell.text if cell.value is None else repr(cell.value))
                if k in sure:
                    found = cell.interval
                    lines[-1] += [repr(found.low), repr(found.high)] if found else ["", ""]
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows(lines)
        return buffer.getvalue()


def with_best(rows: Sequence[Sequence[Cell]], lower: Sequence[int] = ()) -> tuple[Row, ...]:
    """The rows, the best value of each column marked where it has two values or more.

    Args:
        rows: cells; those without a value take no part.
        lower: columns in which the lowest value is the best.
    """
    best = {}
    for k, column in enumerate(zip(*rows, strict=True)):
        values = [cell.value for cell in column if cell.value is not None]
        if len(values) > 1:
            best[k] = (min if k in lower else max)(values)
    return tuple(
        tuple(
            replace(cell, best=cell.value is not None and cell.value == best.get(k))
            for k, cell in enumerate(row)
        )
        for row in rows
    )
