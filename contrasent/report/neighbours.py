"""Nearest neighbours side by side, as in SimCSE's Table 8 and DiffCSE's Table 9."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from contrasent.evaluation.neighbours import Neighbour, Neighbours
from contrasent.report.tables import ABSENT, described, plain_table

_NO_LIMIT = 1_000_000
_NARROW = 28


def print_neighbours(console: Console, rows: Mapping[str, Neighbours]) -> None:
    """Print each query, its neighbours numbered, a column for each encoder, and what was searched.

    Encoders stand below one another where a terminal is too narrow; a pipe gets whole lines.

    Args:
        console: where to.
        rows: what encoders found of the same queries, by their labels.
    """
    labels = list(rows)
    stacked = console.is_terminal and console.width < _NARROW * len(labels)
    shown = [[label] for label in labels] if stacked else [labels]
    for number, query in enumerate(next(iter(rows.values())).queries):
        console.print(
            Text(f"Query: {one_line(query.text)}", style="bold"),
            soft_wrap=not console.is_terminal,
        )
        for some in shown:
            found = {label: rows[label].queries[number].nearest for label in some}
            _print(console, query_table(found, whole=console.is_terminal))
        console.print()
    for line in searched(rows):
        console.print(Text(line), soft_wrap=not console.is_terminal)


def query_table(found: Mapping[str, Sequence[Neighbour]], *, whole: bool = False) -> Table:
    """Neighbours of one query, best first, a column for each label.

    Args:
        found: neighbours by label.
        whole: take all of the console's width, so that the columns of several tables are alike.
    """
    table = plain_table()
    table.expand = whole
    table.add_column("", no_wrap=True)
    for label in found:
        table.add_column(Text(label), ratio=1 if whole else None, overflow="fold")
    for rank in range(max(map(len, found.values()))):
        cells = [_cell(near[rank]) if rank < len(near) else ABSENT for near in found.values()]
        table.add_row(f"#{rank + 1}", *(Text(cell) for cell in cells))
    return table


def searched(rows: Mapping[str, Neighbours]) -> list[str]:
    """What was searched, how, and with which encoders."""
    some = next(iter(rows.values()))
    lines = [
        f"{some.corpus}: {some.sentences:,} sentences, {some.distinct:,} of them different "
        f"({some.columns}). Queries: {some.asked}.",
        "Cosines, exact; a repeated sentence is shown once, and a query that the corpus has is "
        "left out of its own neighbours, whatever its case and white space.",
    ]
    for label, it in rows.items():
        lines.append(f"{label}: {described(label, it)}.")
        if it.without_vector:
            lines.append(
                f"{label}: sentences with a vector of zeros, which are near nothing: "
                f"{it.without_vector:,}."
            )
    return lines


def one_line(text: str) -> str:
    """A sentence without what would break a line or a terminal."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


def _cell(near: Neighbour) -> str:
    return f"{near.cosine:.3f}  {one_line(near.text)}"


def _print(console: Console, table: Table) -> None:
    if not console.is_terminal:
        width = Measurement.get(console, console.options.update(width=_NO_LIMIT), table).maximum
        console = Console(file=console.file, width=max(width, 1), color_system=None)
    console.print(table)
