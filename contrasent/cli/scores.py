"""What ``contrasent evaluate`` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from contrasent.cli.options import with_command, write_lines

if TYPE_CHECKING:
    from rich.console import Console

    from contrasent.evaluation.bootstrap import Bootstrap
    from contrasent.evaluation.compare import Comparison
    from contrasent.evaluation.scores import Scores
    from contrasent.evaluation.suite import Suite
    from contrasent.evaluation.task_types import TaskData, TaskType
    from contrasent.records import Record
    from contrasent.report.html.contents import Contents, Mean

    Part = tuple[TaskType[Any], TaskData[Any]]


@dataclass(frozen=True)
class Found:
    """What there is to write.

    Attributes:
        suite: the tasks, and what the tables show of them.
        rows: scores by the label of their encoder; None of one that could not be loaded or used.
        bootstrap: how encoders are compared with the first; None if they are not.
    """

    suite: Suite
    rows: Mapping[str, Scores | None]
    bootstrap: Bootstrap | None


def write(found: Found, json: str | None) -> tuple[list[Record], list[Mean]]:
    """Print the tables and write the records to ``json``, or print these if that is ``-``.

    Returns:
        The records, with the comparisons, and those of the averages, which no record tells.
    """
    from rich.console import Console

    from contrasent.evaluation.compare import with_comparison
    from contrasent.records import json_lines
    from contrasent.report.comparison import DIFFERENCES
    from contrasent.report.html.contents import Mean
    from contrasent.report.terminal import print_difference

    rows = {
        label: [*with_command(scores.records)] if scores else []
        for label, scores in found.rows.items()
    }
    baseline, compared = _compared(found)
    for label, _, comparisons in compared:
        for comparison in comparisons:
            rows[label] = with_comparison(rows[label], comparison)
    records = [record for of_encoder in rows.values() for record in of_encoder]
    means = [
        Mean(rows[label][0], comparison.metric, comparison.average)
        for label, _, comparisons in compared
        for comparison in comparisons
        if comparison.average
    ]
    if write_lines(json, json_lines(records)):
        return records, means
    console = Console()
    _print_tables(console, found.suite, rows)
    for label, (kind, read), comparisons in compared:
        for table in DIFFERENCES[kind.name](comparisons, read, f"{label} minus {baseline}"):
            print_difference(console, table)
    return records, means


def contents(
    suite: Suite, written: tuple[Sequence[Record], Sequence[Mean]], failures: Sequence[str]
) -> Contents:
    """What a report shows of scores: what :func:`write` wrote, and what is missing and why."""
    from contrasent.report.html.contents import Contents

    left_out = [f"{p.task} is left out: {p.message}" for p in suite.problems if p.missing]
    records, means = written
    told = (*suite.notes, *left_out, *failures)
    return Contents(tuple(records), tuple(means), warnings=told)


def _print_tables(console: Console, suite: Suite, rows: Mapping[str, Sequence[Record]]) -> None:
    from contrasent.report.scores_table import TABLES
    from contrasent.report.terminal import print_table

    shown = [(kind, read) for kind, read in suite.kinds if read.tasks]
    tables = [it for kind, read in shown for it in TABLES[kind.name](rows, read, suite.options)]
    for number, table in enumerate(tables):
        if number:
            console.print()
        print_table(console, table)


def _compared(found: Found) -> tuple[str, list[tuple[str, Part, list[Comparison]]]]:
    """The first encoder's label, and every other's with its comparisons in each kind of tasks."""
    (baseline, first), *others = found.rows.items()
    bootstrap, suite = found.bootstrap, found.suite
    if bootstrap is None or first is None:
        return baseline, []
    return baseline, [
        (label, (kind, read), kind.compare(read, (first, scores), suite.options, bootstrap))
        for label, scores in others
        if scores is not None
        for kind, read in suite.kinds
    ]
