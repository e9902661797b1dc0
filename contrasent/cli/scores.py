"""What ``contrasent evaluate`` writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from contrasent.evaluate.compare import Comparison
    from contrasent.evaluate.protocols import Protocol
    from contrasent.evaluate.run import Loaded
    from contrasent.evaluate.statistics import Bootstrap
    from contrasent.evaluate.sts import Scores

STDOUT = "-"


@dataclass(frozen=True)
class Found:
    """What there is to write.

    Attributes:
        loaded: the tasks.
        protocol: what the table shows.
        rows: scores by the label of their encoder; None of one that could not be loaded or used.
        bootstrap: how encoders are compared with the first; None if they are not.
    """

    loaded: Loaded
    protocol: Protocol
    rows: Mapping[str, Scores | None]
    bootstrap: Bootstrap | None


def write(found: Found, json: str | None) -> None:
    """Print the tables and write the records to ``json``, or print these if that is ``-``."""
    from rich.console import Console

    from contrasent.evaluate.compare import with_comparison
    from contrasent.records import json_lines, write_records
    from contrasent.report.comparison import print_comparison
    from contrasent.report.tables import Layout, print_sts

    rows = {label: list(scores.records) if scores else [] for label, scores in found.rows.items()}
    baseline, comparisons = _comparisons(found)
    for label, comparison in comparisons:
        rows[label] = with_comparison(rows[label], comparison)
    records = [record for of_encoder in rows.values() for record in of_encoder]
    if json == STDOUT:
        typer.echo(json_lines(records), nl=False)
        return
    if json is not None:
        write_records(json, records)
    console, asked = Console(), found.protocol
    for number, metric in enumerate(asked.metrics):
        if number:
            console.print()
        layout = Layout(found.loaded.names, metric, asked.aggregation, protocol=asked)
        print_sts(console, rows, layout)
    for label, comparison in comparisons:
        print_comparison(console, comparison, baseline, label)


def _comparisons(found: Found) -> tuple[str, list[tuple[str, Comparison]]]:
    """The first encoder's label, and every other's with its comparison in each metric."""
    from contrasent.evaluate.compare import compare

    (baseline, first), *others = found.rows.items()
    bootstrap = found.bootstrap
    if bootstrap is None or first is None:
        return baseline, []
    return baseline, [
        (
            label,
            compare(
                found.loaded.tasks,
                first,
                scores,
                metric=metric,
                aggregation=found.protocol.aggregation,
                bootstrap=bootstrap,
            ),
        )
        for label, scores in others
        if scores is not None
        for metric in found.protocol.metrics
    ]
