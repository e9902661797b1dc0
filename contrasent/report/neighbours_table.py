"""Nearest neighbours side by side, as in SimCSE's Table 8 and DiffCSE's Table 9."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from contrasent.evaluation.neighbours import Neighbour, Neighbours
from contrasent.report.labels import described
from contrasent.report.table import ABSENT
from contrasent.report.terminal import plain_table, print_notes, print_whole

_NARROW = 28


@dataclass(frozen=True, slots=True)
class QueryHits:
    """A query and its nearest sentences, best first, by the label of the encoder."""

    text: str
    nearest: Mapping[str, Sequence[Neighbour]]

    @property
    def unique(self) -> set[str]:
        """Sentences that one of several encoders has alone."""
        counts = Counter(hit.text for hits in self.nearest.values() for hit in hits)
        return {text for text, n in counts.items() if n == 1} if len(self.nearest) > 1 else set()


def queries_of(rows: Mapping[str, Neighbours]) -> list[QueryHits]:
    """Each query with what every encoder finds, queries of the same text together."""
    nearest: dict[str, dict[str, Sequence[Neighbour]]] = {}
    for label, neighbours in rows.items():
        for query in neighbours.queries:
            nearest.setdefault(query.text, {})[label] = query.nearest
    return [QueryHits(text, hits) for text, hits in nearest.items()]


def print_neighbours(console: Console, rows: Mapping[str, Neighbours]) -> None:
    """Print each query, its neighbours numbered, a column for each encoder, and what was searched.

    Encoders stand below one another where a terminal is too narrow; a pipe gets whole lines.

    Args:
        console: where to.
        rows: what encoders found of the same queries, by their labels.
    """
    labels = list(rows)
    stacked = console.is_terminal and console.width < _NARROW * len(labels)
    groups = [[label] for label in labels] if stacked else [labels]
    for place, query in enumerate(next(iter(rows.values())).queries):
        heading = Text(f"Query: {one_line(query.text)}", style="bold")
        console.print(heading, soft_wrap=not console.is_terminal)
        for group in groups:
            nearest = {label: rows[label].queries[place].nearest for label in group}
            print_whole(console, _query_table(nearest, whole=console.is_terminal))
        console.print()
    print_notes(console, search_notes(rows))


def _query_table(nearest: Mapping[str, Sequence[Neighbour]], *, whole: bool) -> RichTable:
    """Neighbours of one query; ``whole`` takes all of the console's width in equal columns."""
    table = plain_table()
    table.expand = whole
    table.add_column("", no_wrap=True)
    for label in nearest:
        table.add_column(Text(label), ratio=1 if whole else None, overflow="fold")
    for rank in range(max(map(len, nearest.values()))):
        cells = [
            f"{hits[rank].cosine:.3f}  {one_line(hits[rank].text)}" if rank < len(hits) else ABSENT
            for hits in nearest.values()
        ]
        table.add_row(f"#{rank + 1}", *map(Text, cells))
    return table


def search_notes(rows: Mapping[str, Neighbours]) -> tuple[str, ...]:
    """The corpus, the queries, how they were searched, and with which encoders."""
    some = next(iter(rows.values()))
    notes = [
        f"{some.corpus}: {some.sentences:,} sentences, {some.distinct:,} of them different "
        f"({some.columns}). Queries: {some.asked}.",
        "Cosines, exact; a repeated sentence is shown once, and a query that the corpus has is "
        "left out of its own neighbours, whatever its case and white space.",
    ]
    for label, neighbours in rows.items():
        notes.append(f"{label}: {described(label, neighbours)}.")
        if neighbours.without_vector:
            notes.append(
                f"{label}: sentences with a vector of zeros, which are near nothing: "
                f"{neighbours.without_vector:,}."
            )
    return tuple(notes)


def one_line(text: str) -> str:
    """A sentence without what would break a line or a terminal."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
