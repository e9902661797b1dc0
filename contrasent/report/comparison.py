"""Tables of encoders side by side: differences and their p-values, geometry, neighbours."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from contrasent.data.check import shortened
from contrasent.evaluation.compare import SeedScores
from contrasent.evaluation.geometry import Geometry
from contrasent.evaluation.judgement import METRIC, Judgement
from contrasent.evaluation.neighbours import Neighbour, Neighbours
from contrasent.evaluation.task_names import short_name
from contrasent.progress import one_line
from contrasent.records import Compared
from contrasent.report.contents import Contents, Identity, PageRow, described, identity, rows_of
from contrasent.report.scores_table import Column, metric_heading, quantity, scores_table
from contrasent.report.table import ABSENT, AVERAGE, DYADIC, Cell, Table, number, score, text_table

_WIDTH = 72  # of an example's text


def comparison_tables(contents: Contents, rows: Mapping[Identity, PageRow]) -> list[Table]:
    """A table for each encoder and its baseline, a row for each task and metric."""
    by_title: dict[str, dict[str, list[tuple[str, Compared]]]] = {}
    measured = [
        (row, quantity(it)[0].heading, it.metric, it.compared)
        for row in rows.values()
        for it in row.records
        if it.compared
    ]
    means = ((rows[identity(it.like)], AVERAGE, it.metric, it.compared) for it in contents.means)
    for row, of, metric, compared in (*measured, *means):
        named = [it for it in rows.values() if it.like.encoder == compared.baseline]
        alike = [it for it in named if len(named) == 1 or it.like.pooler == row.like.pooler]
        # The label of that row, or the encoder's name where several could be it.
        title = f"{row.label} minus {alike[0].label if len(alike) == 1 else compared.baseline}"
        of_metric = by_title.setdefault(title, {}).setdefault(metric, [])
        of_metric.append((f"{of} {metric_heading(metric)}", compared))
    tables = []
    for place, (title, of_metrics) in enumerate(by_title.items(), start=1):
        lines = [line for of_metric in of_metrics.values() for line in of_metric]
        cells = []
        for heading, one in lines:
            ends = (one.interval.low, one.interval.high) if one.interval else (None, None)
            differences = (score(it, sign="+") for it in (one.difference, *ends))
            holm = number(one.p_holm, 4) if one.tests > 1 else Cell(ABSENT)
            cells.append((Cell(heading), *differences, number(one.p_value, 4), holm))
        headings = ("task", "difference", "low", "high", "p", "p (Holm)")
        tests = max(one.tests for _, one in lines)
        over = f"; Holm's adjustment is over the {tests} tasks of a metric" if tests > 1 else ""
        intervals, ways = [one.interval for _, one in lines if one.interval], []
        if computed := [it for it in intervals if not it.resamples]:
            ways.append(f"{100 * computed[0].confidence:g} % intervals, paired: {DYADIC}")
        if resampled := [it for it in intervals if it.resamples]:
            first = resampled[0]
            ways.append(
                "Paired bootstrap: the same pairs, sentences or queries are drawn again for both, "
                f"{100 * first.confidence:g} % percentile interval over {first.resamples} "
                f"resamples (seed {first.seed})"
            )
        way = ". ".join(ways) or "Too little data for an interval"
        note = f"Differences x 100. {way}; p is two-sided{over}."
        tables.append(Table(headings, tuple(cells), (note,), title, f"compared-{place}"))
    return tables


def seeds_table(seeds: Iterable[int], scores: Iterable[SeedScores]) -> Table:
    """The scores of runs that differ in their seed, x 100."""
    rows, names = [], [*map(str, seeds)]
    for one in scores:
        spread = "" if one.deviation is None else f" ± {100 * one.deviation:.2f}"
        ends = one.interval
        rows.append(
            (
                Cell(f"{one.of} {metric_heading(one.metric)}".rstrip()),
                score(one.start),
                *map(score, one.values),
                Cell(f"{100 * one.mean:.2f}{spread}", one.mean),
                score(one.difference, sign="+"),
                Cell(f"[{100 * ends[0]:+.2f}, {100 * ends[1]:+.2f}]" if ends else ABSENT),
            )
        )
    headings = ("score", "start", *names, "mean", "difference", "interval")
    note = (
        "All x 100; ± is the standard deviation over seeds. The difference is the mean less the "
        "start (the better one, if it was scored with two poolers), with its 95 % interval over "
        "seeds, paired with the start, and over test pairs, sentences or queries. The dev task "
        "chose the step, so its difference has none."
    )
    return Table(headings, tuple(rows), (note,), f"{len(names)} seeds")


def judgement_lines(judged: Judgement) -> list[str]:
    """The facts of a text, and what its tasks tell."""
    of = {it.task: f"{it.pairs} queries" for it in judged.records}
    deciding = [f"{task}: {of[task]}" for task in judged.deciding]
    others = [f"{task} decides nothing: {why}" for task, why in judged.undecided.items()]
    return [*judged.facts.lines(), "", *judged.facts.cautions(), *deciding, *others, ""]


def judgement_tables(judged: Judgement) -> list[Table]:
    """Scores on the tasks of a text, and example queries with what was found."""
    rows = {it.label: it.records for it in rows_of(Contents(judged.records)).values()}
    of_metric = [it for it in judged.records if it.metric == METRIC]
    columns = [
        Column(name.name.partition(" ")[0], ((name, metric),))
        for name, metric in dict.fromkeys(map(quantity, of_metric))
    ]
    notes = [f"nDCG@10 x 100, {judged.sampled:,} texts, 95 % intervals by drawing queries again."]
    if judged.weight is not None:
        notes += [f"BM25 in the fusion: {judged.weight:g}, chosen on other queries than scored."]
    tables = [scores_table(rows, columns, notes).with_best()]
    for it in judged.queries:
        shown = [
            [f"{'* ' * hit.right}{shortened(hit.text, _WIDTH)}" for hit in of]
            for of in (it.dense, it.words)
        ]
        title = f"{it.task.partition(' ')[0]}: {shortened(it.query, _WIDTH)}"
        tables.append(_ranked((short_name(judged.encoder), "BM25"), shown, title))
    return tables


def _ranked(headings: Iterable[str], columns: Iterable[Sequence[str]], title: str) -> Table:
    lines = enumerate(zip_longest(*columns, fillvalue=ABSENT), start=1)
    return text_table(("", *headings), [(f"#{n}", *line) for n, line in lines], title=title)


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
    notes: tuple[str, ...] = (
        "Mean of 1 - cosine x 100 of a sentence and of the same with so many words replaced, left "
        "out or put in; and how often a classifier tells from the difference of both embeddings "
        "what was done (way), in which third (place), to how many words (size): chance is 33.33.",
    )
    if len({records[0].data_sha256 for records in edited.values()}) > 1:
        of = ", ".join(f"{label} of {records[0].task}" for label, records in edited.items())
        notes += (f"The texts differ, so encoders are not to be compared: {of}.",)
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
        nearest = [it.queries[place].nearest for it in rows.values()]
        columns = [[f"{it.score:.3f}  {one_line(it.text)}" for it in hits] for hits in nearest]
        tables.append(_ranked(rows, columns, f"Query: {one_line(query.text)}"))
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
            what = "sentences with a vector of zeros, which are near nothing"
            notes.append(f"{label}: {what}: {neighbours.without_vector:,}.")
    return tuple(notes)
