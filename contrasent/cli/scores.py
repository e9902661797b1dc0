"""What ``contrasent evaluate`` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from contrasent.evaluate.compare import Comparison
    from contrasent.evaluate.statistics import Bootstrap
    from contrasent.evaluate.sts import Scores
    from contrasent.evaluate.suite import Suite
    from contrasent.records import Record

STDOUT = "-"


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


def write(found: Found, json: str | None) -> None:
    """Print the tables and write the records to ``json``, or print these if that is ``-``."""
    from rich.console import Console

    from contrasent.evaluate.compare import with_comparison
    from contrasent.records import json_lines, write_records
    from contrasent.report.comparison import print_comparison

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
    console = Console()
    _print_tables(console, found.suite, rows)
    for label, comparison in comparisons:
        print_comparison(console, comparison, baseline, label)


def _print_tables(console: Console, suite: Suite, rows: Mapping[str, Sequence[Record]]) -> None:
    from importlib import import_module

    shown = [(kind, read) for kind, read in suite.kinds if read.tasks]
    for number, (kind, read) in enumerate(shown):
        if number:
            console.print()
        report = import_module(f"contrasent.report.{kind.name}")
        report.print_kind(console, rows, read, suite.options)


def _comparisons(found: Found) -> tuple[str, list[tuple[str, Comparison]]]:
    """The first encoder's label, and every other's with its comparison in each metric."""
    from contrasent.evaluate.compare import compare

    (baseline, first), *others = found.rows.items()
    bootstrap = found.bootstrap
    tasks = [rated.task for rated in found.suite.tasks("sts")]
    if bootstrap is None or first is None or not tasks:
        return baseline, []
    protocol = found.suite.options.protocol
    return baseline, [
        (
            label,
            compare(
                tasks,
                first,
                scores,
                metric=metric,
                aggregation=protocol.aggregation,
                bootstrap=bootstrap,
            ),
        )
        for label, scores in others
        if scores is not None
        for metric in protocol.metrics
    ]
