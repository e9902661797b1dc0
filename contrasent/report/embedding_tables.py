"""Tables of geometry and of nearest neighbours."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from contrasent.errors import ConfigError, DataError, pick
from contrasent.evaluation.geometry import Geometry, Trajectory
from contrasent.evaluation.neighbours import Neighbour, Neighbours
from contrasent.evaluation.task_names import STS
from contrasent.progress import one_line
from contrasent.records import Record
from contrasent.report.contents import described, identity, labelled, labelled_runs, short_encoder
from contrasent.report.figures.style import Colours, FigureData, Picture, draw_figures
from contrasent.report.table import (
    ABSENT,
    Cell,
    Table,
    number,
    plain_table,
    print_notes,
    print_whole,
    score,
)

COLUMNS = {
    "alignment": "alignment",
    "uniformity": "uniformity",
    "mean_cosine": "mean cosine",
    "partition_ratio": "partition ratio",
    "spearman": "Spearman",
}
LOWER = ("alignment", "uniformity")
"""Metrics of which less is better; of isotropy neither is."""

_METRIC_NOTES = (
    "Embeddings are divided by their lengths. Alignment: mean squared distance of positive pairs, "
    "lower is closer (0 to 4). Uniformity: log of the mean of exp(-2 d^2) over all pairs of two "
    "sentences, lower is more even (-8 to 0).",
    "Mean cosine of all pairs of two sentences: 0 if isotropic (Ethayarajh 2019). Partition ratio: "
    "1 if isotropic (Mu and Viswanath 2018). Spearman x 100 of the cosines of all rated pairs.",
)

_CONTRAST_NOTE = (
    "Equation 7 of SimCSE at temperature 0.05: the contrastive loss's term over negatives, and the "
    "mean cosine (each sentence with itself too) over the temperature, which it bounds. Top "
    "eigenvalue of WW^T as a share of its trace: the flatter the spectrum, the lower."
)


def geometry_table(rows: Mapping[str, Geometry], name: str = "", title: str = "") -> Table:
    """A row for each encoder by its label, and beneath them what was measured on what."""
    cells = tuple(
        (Cell(label), *(_cell(geometry, metric) for metric in COLUMNS))
        for label, geometry in rows.items()
    )
    lower = [k for k, metric in enumerate(COLUMNS, start=1) if metric in LOWER]
    headings = ("encoder", *COLUMNS.values())
    table = Table(headings, cells, tuple(_notes(rows)), title, name)
    return table.with_best([*lower, 1 + list(COLUMNS).index("spearman")], lower)


def _cell(geometry: Geometry, metric: str) -> Cell:
    value = geometry.value(metric)
    return score(value) if metric == "spearman" else number(value, 4)


def _notes(rows: Mapping[str, Geometry]) -> list[str]:
    on: dict[str, list[str]] = {}
    for label, geometry in rows.items():
        on.setdefault(_basis(geometry), []).append(label)
    lines = [
        f"{basis}." if len(on) == 1 else f"{', '.join(labels)}: {basis}."
        for basis, labels in on.items()
    ]
    encoders = [f"{label}: {described(label, it.records[0])}." for label, it in rows.items()]
    bounds = [f"{label}: {it}." for label, one in rows.items() if (it := _contrast(one))]
    explained = [_CONTRAST_NOTE] if bounds else []
    return [*lines, *_METRIC_NOTES, *explained, *bounds, *encoders]


def _contrast(geometry: Geometry) -> str:
    """Equation 7 of an encoder in a line; empty for what was measured before it was."""
    names = ("spread", "bound", "top_eigenvalue", "negative")
    values = [geometry.value(f"contrast_{name}") for name in names]
    left, right, top, below = (math.nan if it is None else it for it in values)
    if math.isnan(left):
        return ""
    return f"{left:.3f} >= {right:.3f}, top eigenvalue {top:.4f}, cosines below 0: {below:.1%}"


def _basis(geometry: Geometry) -> str:
    close = geometry.records[0]
    splits = " (train, dev and test)" if close.split == "all" else ""
    return (
        f"{geometry.heading}{splits}: alignment over the {close.pairs:,} of {geometry.rated:,} "
        f"pairs rated {close.subset}; uniformity, isotropy and spectrum over the "
        f"{geometry.sentences:,} distinct sentences"
    )


def pictures(
    geometries: Sequence[Geometry],
    runs: Sequence[Trajectory],
    records: Sequence[Record] = (),
    *,
    published: bool = True,
    supervised: Sequence[str] = (),
) -> list[Picture]:
    """Every figure of the papers that there is something for; arguments as `figure_data` has."""
    rows = labelled(geometries)
    data = figure_data(rows, runs, records, published=published, supervised=supervised)
    return [picture for _, picture in draw_figures(data)]


def figure_data(
    rows: Mapping[str, Geometry],
    runs: Sequence[Trajectory],
    records: Sequence[Record] = (),
    *,
    published: bool = True,
    supervised: Sequence[str] = (),
) -> FigureData:
    """What the figures are drawn from.

    DataError if the encoders were not measured on the same pairs. ``rows`` are for Figures 3, F.1
    and G.1 of SimCSE and Figure 2 of DiffCSE, ``runs`` for Figure 2 of SimCSE and Figure 1 of its
    replication study, ``records`` for the colours of Figure 3, into which the points of papers are
    put where it is of STS-B, if ``published``. Encoders that ``supervised`` names get panels of
    their own, as in Figures F.1 and G.1.
    """
    _require_same_pairs(rows.values())
    _require_same_pairs(runs)
    return FigureData(
        rows,
        _panels(rows, supervised) if rows else {},
        sts_colours(rows, records) if rows else Colours(),
        published and all(it.records[0].task == "stsb" for it in rows.values()),
        labelled_runs(runs) if runs else {},
    )


def _require_same_pairs(results: Iterable[Geometry | Trajectory]) -> None:
    pairs = list(dict.fromkeys(result.pairs for result in results))
    if len(pairs) > 1:
        raise DataError(
            f"{' and '.join(pairs)} are different pairs, whose numbers do not belong in one "
            "figure; draw them one after the other, into two folders"
        )


def sts_colours(rows: Mapping[str, Geometry], records: Sequence[Record]) -> Colours:
    """The colours of Figure 3.

    That is the average of the seven STS tasks where ``records`` have it for every encoder, and
    otherwise, for every encoder, the correlation on the pairs that were measured: the two are not
    comparable, so they never share a scale.
    """
    averages = {label: _average(it.records[0], records) for label, it in rows.items()}
    known = {label: value for label, value in averages.items() if value is not None}
    if len(known) == len(rows):
        return Colours("STS Avg., Spearman x 100", known)
    measured = {label: it.value("spearman") for label, it in rows.items()}
    some = next(iter(rows.values()))
    return Colours(
        f"{some.heading}, Spearman x 100",
        {label: value for label, value in measured.items() if value is not None},
    )


def _average(like: Record, records: Sequence[Record]) -> float | None:
    """Mean over the test splits of the seven tasks, of the encoder as ``like`` has it."""
    values = {
        record.task: record.value
        for record in reversed(records)  # of two values the first counts
        if identity(record) == identity(like)
        and (record.metric, record.aggregation, record.split) == ("spearman", "all", "test")
        and record.regressor is None
        and record.task in STS
    }
    return sum(values.values()) / len(STS) if len(values) == len(STS) else None


def _panels(
    rows: Mapping[str, Geometry], supervised: Sequence[str]
) -> dict[str, dict[str, Geometry]]:
    """Encoders by their kind of training; all under one empty title where none is named."""
    if not supervised:
        return {"": dict(rows)}
    names = {label: {label, *names_of(it.encoder)} for label, it in rows.items()}
    panels: dict[str, dict[str, Geometry]] = {"unsupervised": {}, "supervised": {}}
    for label, geometry in rows.items():
        title = "supervised" if names[label] & set(supervised) else "unsupervised"
        panels[title][label] = geometry
    return {title: members for title, members in panels.items() if members}


def names_of(encoder: str) -> set[str]:
    """The names of an encoder on the command line: its whole name, and its last part."""
    return {encoder, short_encoder(encoder)}


def refuse_unknown(supervised: Sequence[str], names: Iterable[str]) -> None:
    """Make sure that encoders for a panel of their own are among those of the figures.

    ConfigError if one is not.
    """
    names = set(names)
    if supervised and not names:
        raise ConfigError(
            "--supervised names encoders that are measured, and there is none; name models, or "
            "saved geometry with --from"
        )
    for name in supervised:
        pick("encoder of --supervised", name, names)


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
            f"{hits[rank].score:.3f}  {one_line(hits[rank].text)}" if rank < len(hits) else ABSENT
            for hits in nearest.values()
        ]
        table.add_row(f"#{rank + 1}", *map(Text, cells))
    return table


def search_notes(rows: Mapping[str, Neighbours]) -> tuple[str, ...]:
    """The corpus, the queries, how they were searched, and with which encoders."""
    some = next(iter(rows.values()))
    scores = "Cosines" if some.similarity is None else "Similarities"
    notes = [
        f"{some.corpus}: {some.sentences:,} sentences, {some.distinct:,} of them different "
        f"({some.columns}). Queries: {some.asked}.",
        f"{scores}, exact; a repeated sentence is shown once, and a query that the corpus has is "
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
