"""Tables of the tasks that are scored by correlations, one for each metric of the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from contrasent.evaluation.compare import Comparison
from contrasent.evaluation.sts_suite import StsSplit
from contrasent.evaluation.task_types import Options, TaskData
from contrasent.records import Record
from contrasent.report.comparison import print_comparison
from contrasent.report.tables import Layout, print_sts


def print_compared(
    console: Console,
    comparisons: Sequence[Comparison],
    read: TaskData[StsSplit],
    labels: tuple[str, str],
) -> None:
    """Print a table for each metric: the encoder of the second label less that of the first."""
    del read
    for comparison in comparisons:
        print_comparison(console, comparison, *labels)


def print_kind(
    console: Console,
    rows: Mapping[str, Sequence[Record]],
    read: TaskData[StsSplit],
    options: Options,
) -> None:
    """Print tables and protocol; upright where a terminal is too narrow, whole lines in a pipe."""
    asked = options.protocol
    for number, metric in enumerate(asked.metrics):
        if number:
            console.print()
        print_sts(console, rows, Layout(read.names, metric, asked.aggregation, protocol=asked))
