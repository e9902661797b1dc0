"""Tables of the tasks that are scored by correlations, one for each metric of the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from contrasent.evaluate.kinds.base import Options, Read
from contrasent.evaluate.kinds.sts import Rated
from contrasent.records import Record
from contrasent.report.tables import Layout, print_sts


def print_kind(
    console: Console, rows: Mapping[str, Sequence[Record]], read: Read[Rated], options: Options
) -> None:
    """Print tables and protocol; upright where a terminal is too narrow, whole lines in a pipe."""
    asked = options.protocol
    for number, metric in enumerate(asked.metrics):
        if number:
            console.print()
        print_sts(console, rows, Layout(read.names, metric, asked.aggregation, protocol=asked))
