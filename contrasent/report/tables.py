"""Records as the table of the papers, with the protocol beneath it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from contrasent.evaluation.neighbours import Neighbours
from contrasent.evaluation.protocols import Protocol
from contrasent.evaluation.task_names import SPLITS, STS_TASKS, TaskName, averaged
from contrasent.metrics import METRICS
from contrasent.records import Interval, Record
from contrasent.report.intervals import (
    CORRELATION,
    averaged_interval,
    said_of_intervals,
    with_interval,
)

AVERAGE = "Avg."
ABSENT = "-"

_NO_LIMIT = 10_000
_AGGREGATION = {
    "all": "one correlation over all pairs of a task (aggregation all)",
    "mean": "mean over the subsets of a task (aggregation mean)",
    "wmean": "mean over the subsets of a task, weighted by their pairs (aggregation wmean)",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """What a table shows of the records.

    Attributes:
        tasks: its columns; a task without a record is shown as absent, and so is the average.
        metric: ``spearman`` or ``pearson``.
        aggregation: ``all``, ``mean`` or ``wmean``.
        difference: labels of two rows; a last row shows the second minus the first.
        protocol: what is asked for, to be named beneath the table; None to leave it unnamed.
    """

    tasks: Sequence[TaskName] = ()
    metric: str = "spearman"
    aggregation: str = "all"
    difference: tuple[str, str] | None = None
    protocol: Protocol | None = None


Column = TaskName | str
"""A task, or :data:`AVERAGE`."""


def average(records: Iterable[Record], layout: Layout) -> float | None:
    """Mean over the test splits of the named tasks of the layout, not of its files.

    None if a value is absent, or if there are fewer than two such tasks.
    """
    return _line(records, layout).get(AVERAGE)


def sts_table(
    rows: Mapping[str, Sequence[Record]], layout: Layout | None = None, *, upright: bool = False
) -> Table:
    """Correlations x 100, two decimals, one row per label; averages of unrounded values.

    Args:
        rows: records of an encoder by the label of its row.
        layout: what to show; by default all tasks of the records, Spearman, aggregation all.
        upright: tasks as rows and encoders as columns, for narrow terminals.
    """
    layout = _filled(layout, rows)
    columns = _columns(layout)
    lines = {label: _line(records, layout) for label, records in rows.items()}
    cells = [[label, *_cells(rows[label], line, columns, layout)] for label, line in lines.items()]
    if layout.difference:
        before, after = (lines[label] for label in layout.difference)
        changes = [
            after[column] - before[column] if column in before and column in after else None
            for column in columns
        ]
        cells.append(["difference", *(_printed(change, "+") for change in changes)])
    return grid_table([["", *_headings(columns)], *cells], upright=upright)


def grid_table(grid: Sequence[Sequence[str]], *, upright: bool = False) -> Table:
    """Rows of cells, the first row of headings, as a table; ``upright`` turns it over."""
    if upright:
        grid = [list(column) for column in zip(*grid, strict=True)]
    table = plain_table()
    for number, heading in enumerate(grid[0]):
        first = number == 0
        table.add_column(
            Text(heading),
            justify="left" if first else "right",
            no_wrap=first or not upright,
            overflow="fold",
        )
    for row in grid[1:]:
        table.add_row(*(Text(cell) for cell in row))
    return table


def plain_table() -> Table:
    """A table without cells, in the form of all tables."""
    return Table(
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold"
    )


def protocol(rows: Mapping[str, Sequence[Record]], layout: Layout | None = None) -> list[str]:
    """What the numbers of :func:`sts_table` are, so that they can be compared with others."""
    layout = _filled(layout, rows)
    named = averaged(layout.tasks)
    shown = [record for records in rows.values() for record in _shown(records, layout)]
    other = any(name.split != "test" for name in layout.tasks)
    said = [
        f"{CORRELATION[layout.metric]} correlation of the cosines x 100",
        "test split unless the heading names another" if other else "test split",
        _AGGREGATION[layout.aggregation],
    ]
    if len(named) > 1:
        said.append(f"{AVERAGE} over {len(named)} tasks")
    if any(name.name in STS_TASKS for name in layout.tasks):
        said.append(
            "data of SentEval"
            if layout.protocol
            else "data and protocol of SentEval as changed by SimCSE"
        )
    lines = ["; ".join(said) + ".", *_of_protocol(shown, layout), *said_of_intervals(shown)]
    for label, records in rows.items():
        if records:
            lines.append(f"{label}: {described(label, records[0])}.")
    return lines


def print_sts(
    console: Console, rows: Mapping[str, Sequence[Record]], layout: Layout | None = None
) -> None:
    """Print table and protocol; upright where a terminal is too narrow, whole lines in a pipe."""
    tables = [sts_table(rows, layout, upright=upright) for upright in (False, True)]
    print_grid(console, tables, protocol(rows, layout))


def print_grid(console: Console, tables: Sequence[Table], lines: Sequence[str]) -> None:
    """Print the first of two tables, or the upright one in a narrow terminal, and lines beneath."""
    table, upright = tables
    width = Measurement.get(console, console.options.update(width=_NO_LIMIT), table).maximum
    if not console.is_terminal:
        console = Console(file=console.file, width=max(width, 1), color_system=None)
    elif width > console.width:
        table = upright
    console.print(table)
    console.print()
    for line in lines:
        console.print(Text(line), soft_wrap=not console.is_terminal)


def _filled(layout: Layout | None, rows: Mapping[str, Sequence[Record]]) -> Layout:
    """The layout, with the tasks of the records in the papers' order if it names none."""
    layout = layout or Layout()
    if layout.tasks:
        return layout
    every = (r for records in rows.values() for r in records if r.metric in METRICS)
    found = {TaskName(r.task, r.split) for r in every}
    place = {name: number for number, name in enumerate(STS_TASKS)}

    def order(name: TaskName) -> tuple[int, int, str]:
        return (
            SPLITS[::-1].index(name.split),
            place.get(name.name, len(place)),
            name.name,
        )

    return replace(layout, tasks=sorted(found, key=order))


def _columns(layout: Layout) -> list[Column]:
    """The averaged tasks, their average, then files and other splits, which it leaves out."""
    named = averaged(layout.tasks)
    rest = [name for name in layout.tasks if name not in named]
    return [*named, *([AVERAGE] if len(named) > 1 else []), *rest]


def _headings(columns: Sequence[Column]) -> list[str]:
    """Short headings; files of one name in several folders are told apart by their paths."""
    short = [column if isinstance(column, str) else column.heading for column in columns]
    return [
        heading if isinstance(column, str) or short.count(heading) == 1 else column.label
        for column, heading in zip(columns, short, strict=True)
    ]


def _line(records: Iterable[Record], layout: Layout) -> dict[Column, float]:
    """Values of one row; an absent one is not there."""
    line: dict[Column, float] = {
        TaskName(record.task, record.split): record.value for record in _shown(records, layout)
    }
    named = averaged(layout.tasks)
    present = [line[name] for name in named if name in line]
    if len(present) == len(named) > 1:
        line[AVERAGE] = sum(present) / len(present)
    return line


def _shown(records: Iterable[Record], layout: Layout) -> list[Record]:
    wanted = (layout.metric, layout.aggregation)
    return [record for record in records if (record.metric, record.aggregation) == wanted]


def _cells(
    records: Iterable[Record],
    line: Mapping[Column, float],
    columns: Sequence[Column],
    layout: Layout,
) -> list[str]:
    """One row, with intervals where the records have them."""
    intervals: dict[Column, Interval | None] = {
        TaskName(record.task, record.split): record.interval for record in _shown(records, layout)
    }
    named = [intervals.get(name) for name in averaged(layout.tasks)]
    if AVERAGE in line:
        intervals[AVERAGE] = averaged_interval(line[AVERAGE], named)
    return [with_interval(_printed(line.get(column)), intervals.get(column)) for column in columns]


def _of_protocol(shown: Sequence[Record], layout: Layout) -> list[str]:
    """Lines on the protocol that was asked for, and on what a regressor predicted."""
    said = []
    if layout.protocol:
        asked = layout.protocol
        said.append(f"Protocol {asked.name} ({asked.source}).")
        if asked.note:
            said.append(f"{asked.note}.")
    predicted = dict.fromkeys(
        TaskName(record.task, record.split).heading for record in shown if record.regressor
    )
    if predicted:
        said.append(
            f"{' and '.join(predicted)}: no cosines, but scores predicted by SentEval's regressor, "
            "fitted to the training split."
        )
    return said


def _printed(value: float | None, sign: str = "") -> str:
    return ABSENT if value is None else f"{100 * value:{sign}.2f}"


def described(label: str, record: Record | Neighbours) -> str:
    """How the encoder was used whose row has this label."""
    parts = [f"pooler {record.pooler}"]
    if record.head:
        parts.append(f"head {record.head}")
    if record.transform:
        parts.append(record.transform)
    parts.append(record.precision)
    if record.max_tokens:
        parts.append(f"sentences cut at {record.max_tokens} tokens")
    if record.encoder != label:
        parts.append(f"encoder {record.encoder}")
    return ", ".join(parts)
