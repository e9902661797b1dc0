"""Nearest neighbours to browse: queries, and beside one another what each encoder finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contrasent.evaluation.neighbours import Neighbour, Neighbours
from contrasent.report.html.contents import Contents, Identity, PageRow, identity
from contrasent.report.neighbours import searched

MOST = 300
"""Queries of one corpus that a page shows, so that a browser can still hold it."""


@dataclass(frozen=True, slots=True)
class NeighbourHit:
    """A sentence that was found.

    Attributes:
        text: the sentence.
        cosine: printed.
        full: every digit of it.
        alone: no other encoder found it.
    """

    text: str
    cosine: str
    full: str
    alone: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """A query, and for each encoder by its label what it finds, best first."""

    text: str
    found: tuple[tuple[str, tuple[NeighbourHit, ...]], ...]


@dataclass(frozen=True, slots=True)
class Browser:
    """Queries over one corpus.

    Attributes:
        name: in links.
        heading: above it.
        queries: in the order they were asked, at most :data:`MOST`.
        notes: what was searched, by which encoders.
    """

    name: str
    heading: str
    queries: tuple[Asked, ...]
    notes: tuple[str, ...]


def browsers(contents: Contents, rows: Mapping[Identity, PageRow]) -> list[Browser]:
    """One for each corpus, of all encoders that searched it; no encoder twice."""
    corpora: dict[tuple[str, str], dict[str, Neighbours]] = {}
    for found in contents.neighbours:
        corpus = corpora.setdefault((found.corpus, found.corpus_sha256), {})
        corpus.setdefault(rows[identity(found)].label, found)
    return [
        _browser(f"neighbours-{number}", corpus, of_label)
        for number, ((corpus, _), of_label) in enumerate(corpora.items(), start=1)
    ]


def _browser(name: str, corpus: str, of_label: Mapping[str, Neighbours]) -> Browser:
    every = {
        label: {query.text: query.nearest for query in found.queries}
        for label, found in of_label.items()
    }
    texts = list(dict.fromkeys(text for nearest in every.values() for text in nearest))
    queries = tuple(
        _asked(text, {label: nearest[text] for label, nearest in every.items() if text in nearest})
        for text in texts[:MOST]
    )
    notes = searched(of_label)
    if len(texts) > MOST:
        notes.insert(0, f"The first {MOST} of {len(texts):,} queries.")
    return Browser(name, corpus, queries, tuple(notes))


def _asked(text: str, nearest: Mapping[str, Sequence[Neighbour]]) -> Asked:
    counts: dict[str, int] = {}
    for found in nearest.values():
        for hit in found:
            counts[hit.text] = counts.get(hit.text, 0) + 1
    return Asked(
        text,
        tuple(
            (
                label,
                tuple(
                    NeighbourHit(
                        hit.text,
                        f"{hit.cosine:.3f}",
                        repr(hit.cosine),
                        len(nearest) > 1 and counts[hit.text] == 1,
                    )
                    for hit in found
                ),
            )
            for label, found in nearest.items()
        ),
    )
