"""A comparison of two encoders as a table."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from contrasent.evaluate.compare import Comparison
from contrasent.records import Compared
from contrasent.report.intervals import CORRELATION
from contrasent.report.tables import ABSENT, AVERAGE

_WIDEST = 200


def print_comparison(console: Console, comparison: Comparison, baseline: str, other: str) -> None:
    """Print differences x 100 with intervals and p-values, and what they are.

    Args:
        console: where to.
        comparison: what to print.
        baseline: label of the encoder that is compared with.
        other: label of the one that is compared.
    """
    rows = {name.heading: one for name, one in comparison.tasks.items()}
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
    if comparison.average:
        table.add_row(AVERAGE, *_cells(comparison.average), "")
    if not console.is_terminal:
        console = Console(file=console.file, width=_WIDEST, color_system=None)
    console.print()
    console.print(Text(f"{other} minus {baseline}"), soft_wrap=True)
    console.print(table)
    console.print()
    console.print(Text(_said(comparison, next(iter(rows.values())))), soft_wrap=True)


def _cells(one: Compared) -> list[str]:
    found = one.interval
    between = f"[{100 * found.low:+.2f}, {100 * found.high:+.2f}]" if found else ABSENT
    return [f"{100 * one.difference:+.2f}", between, f"{one.p_value:.4f}"]


def _said(comparison: Comparison, one: Compared) -> str:
    drawn = (
        f", {100 * one.interval.confidence:g} % percentile interval over {one.interval.resamples} "
        f"resamples (seed {one.interval.seed})"
        if one.interval
        else ""
    )
    holm = f"; Holm's adjustment is over these {one.tests} tasks" if one.tests > 1 else ""
    return (
        f"{CORRELATION[comparison.metric]} x 100, aggregation {comparison.aggregation}. Paired "
        f"bootstrap: the same pairs are drawn again for both{drawn}; p is two-sided{holm}."
    )
