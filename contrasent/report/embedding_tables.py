"""Tables of geometry and of nearest neighbours."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from contrasent.errors import ConfigError, DataError, pick
from contrasent.evaluation.geometry import Geometry, Trajectory
from contrasent.evaluation.neighbours import Neighbour, Neighbours
from contrasent.evaluation.task_names import STS
from contrasent.progress import one_line
from contrasent.records import Record
from contrasent.report.contents import (
    Contents,
    Identity,
    PageRow,
    described,
    identity,
    labelled,
    labelled_runs,
    short_encoder,
)
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
    cells = []
    on: dict[str, list[str]] = {}
    bounds, encoders = list[str](), list[str]()
    for label, geometry in rows.items():
        values = {metric: geometry.value(metric) for metric in COLUMNS}
        numbers = (score(v) if k == "spearman" else number(v, 4) for k, v in values.items())
        cells.append((Cell(label), *numbers))
        close = geometry.records[0]
        splits = " (train, dev and test)" if close.split == "all" else ""
        basis = (
            f"{geometry.heading}{splits}: alignment over the {close.pairs:,} of {geometry.rated:,} "
            f"pairs rated {close.subset}; uniformity, isotropy and spectrum over the "
            f"{geometry.sentences:,} distinct sentences"
        )
        on.setdefault(basis, []).append(label)
        names = ("spread", "bound", "top_eigenvalue", "negative")
        contrast = [geometry.value(f"contrast_{of}") for of in names]
        left, right, top, below = (math.nan if it is None else it for it in contrast)
        if not math.isnan(left):  # of what was measured before Equation 7 was
            bounds.append(
                f"{label}: {left:.3f} >= {right:.3f}, top eigenvalue {top:.4f}, cosines below 0: "
                f"{below:.1%}."
            )
        encoders.append(f"{label}: {described(label, close)}.")
    lines = [
        f"{basis}." if len(on) == 1 else f"{', '.join(labels)}: {basis}."
        for basis, labels in on.items()
    ]
    explained = [_CONTRAST_NOTE] if bounds else []
    notes = (*lines, *_METRIC_NOTES, *explained, *bounds, *encoders)
    lower = [k for k, metric in enumerate(COLUMNS, start=1) if metric in LOWER]
    table = Table(("encoder", *COLUMNS.values()), tuple(cells), notes, title, name)
    return table.with_best([*lower, 1 + list(COLUMNS).index("spearman")], lower)


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
    for results in (rows.values(), runs):
        pairs = list(dict.fromkeys(result.pairs for result in results))
        if len(pairs) > 1:
            raise DataError(
                f"{' and '.join(pairs)} are different pairs, whose numbers do not belong in one "
                "figure; draw them one after the other, into two folders"
            )
    panels: dict[str, dict[str, Geometry]] = {"unsupervised": {}, "supervised": {}}
    for label, it in rows.items():
        named = {label, *names_of(it.encoder)} & set(supervised)
        title = ("supervised" if named else "unsupervised") if supervised else ""
        panels.setdefault(title, {})[label] = it
    return FigureData(
        rows,
        {title: members for title, members in panels.items() if members},
        sts_colours(rows, records) if rows else Colours(),
        published and all(it.records[0].task == "stsb" for it in rows.values()),
        labelled_runs(runs) if runs else {},
    )


def sts_colours(rows: Mapping[str, Geometry], records: Sequence[Record]) -> Colours:
    """The colours of Figure 3.

    That is the average of the seven STS tasks where ``records`` have it for every encoder, and
    otherwise, for every encoder, the correlation on the pairs that were measured: the two are not
    comparable, so they never share a scale.
    """
    averages = {}
    for label, it in rows.items():
        values = {
            record.task: record.value
            for record in reversed(records)  # of two values the first counts
            if identity(record) == identity(it.records[0])
            and (record.metric, record.aggregation, record.split) == ("spearman", "all", "test")
            and record.regressor is None
            and record.task in STS
        }
        if len(values) == len(STS):
            averages[label] = sum(values.values()) / len(STS)
    if len(averages) == len(rows):
        return Colours("STS Avg., Spearman x 100", averages)
    measured = {label: it.value("spearman") for label, it in rows.items()}
    some = next(iter(rows.values()))
    return Colours(
        f"{some.heading}, Spearman x 100",
        {label: value for label, value in measured.items() if value is not None},
    )


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
MOST_QUERIES = 300
"""Queries of one corpus that a page shows, so that a browser can still hold it."""


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


def browsers(contents: Contents, rows: Mapping[Identity, PageRow]) -> list[dict[str, Any]]:
    """Queries of a page, by corpus: of all encoders that searched it; no encoder twice."""
    corpora: dict[tuple[str, str], dict[str, Neighbours]] = {}
    for it in contents.neighbours:
        corpus = corpora.setdefault((it.corpus, it.corpus_sha256), {})
        corpus.setdefault(rows[identity(it)].label, it)
    shown = list[dict[str, Any]]()
    for k, ((name, _), of_label) in enumerate(corpora.items(), start=1):
        nearest: dict[str, dict[str, Sequence[Neighbour]]] = {}
        for label, neighbours in of_label.items():
            for query in neighbours.queries:
                nearest.setdefault(query.text, {})[label] = query.nearest
        queries, notes = [QueryHits(*it) for it in nearest.items()], search_notes(of_label)
        if len(queries) > MOST_QUERIES:
            notes = (f"The first {MOST_QUERIES} of {len(queries):,} queries.", *notes)
        of_page = {"queries": queries[:MOST_QUERIES], "notes": notes}
        shown.append({"name": f"neighbours-{k}", "heading": name, **of_page})
    return shown


def print_neighbours(console: Console, rows: Mapping[str, Neighbours]) -> None:
    """Print each query, its neighbours numbered, a column for each encoder, and what was searched.

    Encoders stand below one another where a terminal is too narrow; a pipe gets whole lines.
    """
    labels = list(rows)
    whole = console.is_terminal
    stacked = whole and console.width < _NARROW * len(labels)
    for place, query in enumerate(next(iter(rows.values())).queries):
        console.print(Text(f"Query: {one_line(query.text)}", style="bold"), soft_wrap=not whole)
        for group in [[label] for label in labels] if stacked else [labels]:
            table = plain_table()
            table.expand = whole
            table.add_column("", no_wrap=True)
            for label in group:
                table.add_column(Text(label), ratio=1 if whole else None, overflow="fold")
            nearest = [rows[label].queries[place].nearest for label in group]
            for rank in range(max(map(len, nearest))):
                cells = [
                    f"{hits[rank].score:.3f}  {one_line(hits[rank].text)}"
                    if rank < len(hits)
                    else ABSENT
                    for hits in nearest
                ]
                table.add_row(f"#{rank + 1}", *map(Text, cells))
            print_whole(console, table)
        console.print()
    print_notes(console, search_notes(rows))


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
