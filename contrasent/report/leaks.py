"""Overlap of training and evaluation text as a table."""

from __future__ import annotations

from rich.console import Console

from contrasent.evaluation.leaks import Leaks
from contrasent.report.tables import ABSENT, grid_table, print_grid

_HEADINGS = ("", "sentences", "exact", "normalised", "pairs", "both seen", "exact", "normalised")
_ENOUGH = 80


def print_leaks(console: Console, leaks: Leaks) -> None:
    """Print a row for each task, what the columns are, and where the first overlaps stand."""
    grid: list[list[str]] = [[*_HEADINGS]]
    for it in leaks.tasks:
        numbers = (it.sentences, it.exact, it.normalised)
        pairs = (it.pairs, it.pairs_seen, it.pairs_exact, it.pairs_normalised)
        cells = [f"{number:,}" for number in (*numbers, *(pairs if it.pairs else ()))]
        grid.append([it.heading, *cells, *[ABSENT] * (len(_HEADINGS) - 1 - len(cells))])
    tables = [grid_table(grid, upright=upright) for upright in (False, True)]
    lines = [
        f"{leaks.source}: {leaks.examples:,} examples, {leaks.columns}.",
        "Sentences of each task that the training text has, repeated ones counted each time: exact "
        "but for white space, normalised by letters and digits in lower case.",
        "Pairs of which it has both sentences anywhere (both seen, normalised), and pairs that are "
        "in one example of it, in either order (exact, normalised).",
    ]
    lines += [
        f"{it.heading}: {where}: {_shown(sentence)}"
        for it in leaks.tasks
        for where, sentence in it.first
    ]
    print_grid(console, tables, lines)


def _shown(sentence: str) -> str:
    line = "".join(c if c.isprintable() else " " for c in " ".join(sentence.split()))
    return line if len(line) <= _ENOUGH else f"{line[:_ENOUGH]}..."
