"""Tables of geometry and of nearest neighbours."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from contrasent.evaluation.geometry import Geometry
from contrasent.evaluation.neighbours import Neighbour, Neighbours
from contrasent.progress import one_line
from contrasent.report.contents import Contents, Identity, PageRow, described, identity
from contrasent.report.table import ABSENT, Cell, Table, number, score, text_table

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


def geometry_table(rows: Mapping[str, Geometry], name: str = "", title: str = "") -> Table:
    """A row for each encoder by its label, and beneath them what was measured on what."""
    cells = []
    on: dict[str, list[str]] = {}
    encoders = list[str]()
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
        encoders.append(f"{label}: {described(label, close)}.")
    lines = [
        f"{basis}." if len(on) == 1 else f"{', '.join(labels)}: {basis}."
        for basis, labels in on.items()
    ]
    notes = (*lines, *_METRIC_NOTES, *encoders)
    lower = [k for k, metric in enumerate(COLUMNS, start=1) if metric in LOWER]
    table = Table(("encoder", *COLUMNS.values()), tuple(cells), notes, title, name)
    return table.with_best([*lower, 1 + list(COLUMNS).index("spearman")], lower)


def edits_table(rows: Mapping[str, Geometry], name: str = "", title: str = "") -> Table:
    """How far edits move the embeddings of each encoder, a column each, and how well it tells."""
    edited = {label: it.edits for label, it in rows.items() if it.edits}
    cells = [
        (Cell(records[0].subset), *(score(it.value, it.interval) for it in records))
        for records in zip(*edited.values(), strict=True)
    ]
    notes = (
        "Mean of 1 - cosine x 100 of a sentence and of the same with so many words replaced, left "
        "out or put in; and how often a classifier tells from the difference of both embeddings "
        "what was done (way), in which third (place), to how many words (size): chance is 33.33.",
    )
    return Table(("edit", *edited), tuple(cells), notes, title, name)


MOST_QUERIES = 300
"""Queries of one corpus that a page shows, so that a browser can still hold it."""


def browsers(contents: Contents, rows: Mapping[Identity, PageRow]) -> list[dict[str, Any]]:
    """Queries of a page: by corpus, of all encoders that searched it; and of a judged text."""
    corpora: dict[tuple[str, str], dict[str, Neighbours]] = {}
    for it in contents.neighbours:
        corpus = corpora.setdefault((it.corpus, it.corpus_sha256), {})
        corpus.setdefault(rows[identity(it)].label, it)
    shown = list[dict[str, Any]]()
    for k, ((name, _), of_label) in enumerate(corpora.items(), start=1):
        queries: dict[str, dict[str, Sequence[Neighbour]]] = {}
        for label, neighbours in of_label.items():
            for query in neighbours.queries:
                queries.setdefault(query.text, {})[label] = query.nearest
        kept, notes = list(queries.items())[:MOST_QUERIES], list(search_notes(of_label))
        if len(kept) < len(queries):
            notes.insert(0, f"The first {len(kept)} of {len(queries):,} queries.")
        shown.append({"name": f"neighbours-{k}", "heading": name, "queries": kept, "notes": notes})
    examples = [
        (f"{it.query} \u2192 {it.wanted}", {"the encoder": it.dense, "BM25": it.words})
        for it in contents.queries
    ]
    if examples:
        notes = ["Each query is followed by a text that it is to find."]
        named = {"name": "examples", "heading": "Examples"}
        shown.append({**named, "queries": examples, "notes": notes})
    return shown


def neighbours_tables(rows: Mapping[str, Neighbours]) -> list[Table]:
    """A table for each query, a column for each encoder; beneath the last what was searched."""
    tables = []
    for place, query in enumerate(next(iter(rows.values())).queries):
        nearest = zip_longest(*(it.queries[place].nearest for it in rows.values()))
        cells = [
            [f"{it.score:.3f}  {one_line(it.text)}" if it else ABSENT for it in hits]
            for hits in nearest
        ]
        lines = ((f"#{rank}", *line) for rank, line in enumerate(cells, start=1))
        tables.append(text_table(("", *rows), lines, title=f"Query: {one_line(query.text)}"))
    return [*tables[:-1], replace(tables[-1], notes=search_notes(rows))]


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
