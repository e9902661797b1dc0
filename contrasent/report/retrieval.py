"""Records of retrieval tasks as a table, with what was searched beneath it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from contrasent.evaluation.compare import Comparison
from contrasent.evaluation.retrieval_data import RetrievalTask
from contrasent.evaluation.task_names import STSB_RETRIEVAL, TaskName
from contrasent.evaluation.task_types import Options, TaskData
from contrasent.records import Record
from contrasent.report.comparison import print_differences
from contrasent.report.intervals import said_of_intervals, with_interval
from contrasent.report.tables import ABSENT, described, grid_table, print_grid

Column = tuple[TaskName, str]
"""Task and metric."""

_SHOWN = {"ndcg": "nDCG", "mrr": "MRR"}


def retrieval_table(
    rows: Mapping[str, Sequence[Record]], tasks: Sequence[RetrievalTask], *, upright: bool = False
) -> Table:
    """Metrics x 100, two decimals, one row per label.

    Args:
        rows: records of an encoder by the label of its row.
        tasks: its columns; what is without a record is shown as absent.
        upright: metrics as rows and encoders as columns, for narrow terminals.
    """
    columns: list[Column] = [(task.name, metric) for task in tasks for metric in task.metrics]
    alone = len(tasks) == 1
    told = _told(tasks)
    headings = [
        _heading(metric) if alone else f"{told[name]} {_heading(metric)}"
        for name, metric in columns
    ]
    cells = [[label, *_cells(records, columns)] for label, records in rows.items()]
    return grid_table([["", *headings], *cells], upright=upright)


def retrieval_protocol(
    rows: Mapping[str, Sequence[Record]], tasks: Sequence[RetrievalTask]
) -> list[str]:
    """What the numbers of :func:`retrieval_table` are, so that they can be compared with others."""
    lines = [
        "Retrieval by cosine x 100, mean over queries; of equal cosines the less relevant is first."
    ]
    lines += [f"{_told(tasks)[task.name]}: {task.said}." for task in tasks]
    of_tasks = {task.name.name for task in tasks}
    names = {task.name for task in tasks}
    every = [record for records in rows.values() for record in records]
    shown = [record for record in every if TaskName(record.task, record.split) in names]
    together = ", both of a pair of STS-B together" if STSB_RETRIEVAL in of_tasks else ""
    lines += said_of_intervals(shown, ("the queries", f"{together}; the documents stay"))
    for label, records in rows.items():
        found = next((record for record in records if record.task in of_tasks), None)
        if found:
            lines.append(f"{label}: {described(label, found)}.")
    return lines


def print_kind(
    console: Console,
    rows: Mapping[str, Sequence[Record]],
    read: TaskData[RetrievalTask],
    options: Options,
) -> None:
    """Print table and protocol; upright where a terminal is too narrow, whole lines in a pipe."""
    del options
    tables = [retrieval_table(rows, read.tasks, upright=upright) for upright in (False, True)]
    print_grid(console, tables, retrieval_protocol(rows, read.tasks))


def print_compared(
    console: Console,
    comparisons: Sequence[Comparison],
    read: TaskData[RetrievalTask],
    labels: tuple[str, str],
) -> None:
    """Print differences, the encoder of the second label less that of the first."""
    told = _told(read.tasks)
    rows = {
        f"{told[name]} {_heading(comparison.metric)}": one
        for comparison in comparisons
        for name, one in comparison.tasks.items()
    }
    title = f"{labels[1]} minus {labels[0]}"
    print_differences(console, rows, title, "Means over queries x 100", "queries")


def _told(tasks: Sequence[RetrievalTask]) -> dict[TaskName, str]:
    """Short names; folders of one name are told apart by their paths."""
    short = [task.name.heading for task in tasks]
    return {
        task.name: task.name.heading if short.count(task.name.heading) == 1 else task.name.label
        for task in tasks
    }


def _heading(metric: str) -> str:
    kind, at, k = metric.partition("@")
    return f"{_SHOWN.get(kind, kind)}{at}{k}"


def _cells(records: Sequence[Record], columns: Sequence[Column]) -> list[str]:
    line = {(TaskName(record.task, record.split), record.metric): record for record in records}
    return [
        with_interval(f"{100 * line[column].value:.2f}", line[column].interval)
        if column in line
        else ABSENT
        for column in columns
    ]
