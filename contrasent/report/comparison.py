"""A comparison of two encoders as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from contrasent.evaluation.compare import Comparison
from contrasent.records import Compared
from contrasent.report.intervals import CORRELATION
from contrasent.report.tables import ABSENT, AVERAGE

_WIDEST = 200


def print_comparison(console: Console, comparison: Comparison, baseline: str, other: str) -> None:
    """Print differences of correlations.

    Args:
        console: where to.
        comparison: what to print.
        baseline: label of the encoder that is compared with.
        other: label of the one that is compared.
    """
    rows = {name.heading: one for name, one in comparison.tasks.items()}
    if rows and comparison.average:
        rows[AVERAGE] = comparison.average
    what = f"{CORRELATION[comparison.metric]} x 100, aggregation {comparison.aggregation}"
    print_differences(console, rows, f"{other} minus {baseline}", what, "pairs")


def print_differences(
    console: Console, rows: Mapping[str, Compared], title: str, what: str, drawn: str
) -> None:
    """Print differences x 100 with intervals and p-values, and what they are; nothing if none.

    Args:
        console: where to.
        rows: what was compared, by its heading.
        title: which encoder less which.
        what: what the numbers are.
        drawn: what is drawn again.
    """
    if not rows:
        return
    table = Table(
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold"
    )
    for heading in ("", "difference", "interval", "p", "p (Holm)"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for heading, one in rows.items():
        adjusted = f"{one.p_holm:.4f}" if one.tests > 1 else ""
        table.add_row(Text(heading), *_cells(one), adjusted)
    whole = not console.is_terminal
    if whole:
        console = Console(file=console.file, width=_WIDEST, color_system=None)
    console.print()
    console.print(Text(title), soft_wrap=True)
    console.print(table)
    console.print()
    console.print(Text(f"{what}. {_said(list(rows.values()), drawn)}"), soft_wrap=whole)


def _cells(one: Compared) -> list[str]:
    found = one.interval
    between = f"[{100 * found.low:+.2f}, {100 * found.high:+.2f}]" if found else ABSENT
    return [f"{100 * one.difference:+.2f}", between, f"{one.p_value:.4f}"]


def _said(rows: Sequence[Compared], drawn: str) -> str:
    found = next((one.interval for one in rows if one.interval), None)
    how = (
        f", {100 * found.confidence:g} % percentile interval over {found.resamples} resamples "
        f"(seed {found.seed})"
        if found
        else ""
    )
    tests = max(one.tests for one in rows)
    holm = f"; Holm's adjustment is over these {tests} tasks" if tests > 1 else ""
    return (
        f"Paired bootstrap: the same {drawn} are drawn again for both{how}; p is two-sided{holm}."
    )
