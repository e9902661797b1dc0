"""Sections of a report: tables of scores, comparisons and geometry, figures, queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from contrasent.evaluation.compare import Gain
from contrasent.evaluation.geometry import Geometry, Trajectory
from contrasent.evaluation.mteb_encoder import PROTOCOL as MTEB
from contrasent.evaluation.protocols import PROTOCOLS, Protocol
from contrasent.evaluation.task_names import STS, TRANSFER, TRANSFER_TASKS, TaskName, averaged
from contrasent.metrics import METRICS
from contrasent.records import Compared, Record
from contrasent.report.comparison import differences_with_ends
from contrasent.report.contents import Contents, Identity, PageRow, baseline_row, identity
from contrasent.report.embedding_tables import figure_data, geometry_table, names_of
from contrasent.report.figures.style import (
    FigureData,
    FigureKind,
    Picture,
    draw_figures,
    inline_svg,
)
from contrasent.report.scores_table import (
    CORRELATION,
    Column,
    Layout,
    Rows,
    compared_by,
    encoder_notes,
    in_paper_order,
    metric_heading,
    mteb_table,
    quantity,
    scores_table,
    sts_table,
    transfer_table,
)
from contrasent.report.table import ABSENT, AVERAGE, Table, interval_notes

_AGGREGATIONS = {"all": "", "mean": ", mean of subsets", "wmean": ", weighted mean of subsets"}
_GAPS = f"{ABSENT} was not measured; an average needs all of its tasks."


def score_tables(rows: Sequence[PageRow]) -> list[Table]:
    """Similarity, transfer, then everything else; of each kind a table per protocol."""
    every = [record for row in rows for record in row.records]
    return [
        *_sts_tables(rows, every),
        *_transfer_tables(rows, every),
        *_other_tables(rows, every),
        *_mteb_tables(rows),
    ]


def _choose(rows: Sequence[PageRow], holds: Callable[[Record], object]) -> Rows:
    """Of each encoder by its label the records that a table shows; no encoder without any."""
    chosen = {row.label: [it for it in row.records if not it.subset and holds(it)] for row in rows}
    return {label: records for label, records in chosen.items() if records}


def _entitled(table: Table, name: str, title: str, summed: str, metric: str = "") -> Table:
    """The table with its names, the best score of each column marked, and a word on gaps.

    ``summed`` is the column that sums it up in the summary, or, where a column does so alone,
    ``metric`` is that column's.
    """
    alone = metric and not table.headings[table.key].startswith(AVERAGE)
    gaps = any(cell.absent for row in table.rows for cell in row)
    return replace(
        table.with_best(),
        name=name,
        title=title,
        notes=(*table.notes, _GAPS) if gaps else table.notes,
        key_heading=f"{table.headings[table.key]} {metric}" if alone else summed,
    )


@dataclass(frozen=True, slots=True)
class _Basis:
    """A way to compute correlations."""

    metric: str  # one of `METRICS`
    aggregation: str  # of the subsets
    fitted: frozenset[TaskName] = frozenset()  # tasks that are scored by a regressor
    protocols: tuple[str, ...] = ()  # names of those whose numbers these are

    def holds(self, record: Record) -> bool:
        wanted = (self.metric, self.aggregation)
        if not _is_sts(record) or (record.metric, record.aggregation) != wanted:
            return False
        return bool(record.regressor) == (quantity(record).name in self.fitted)

    @property
    def plain(self) -> bool:
        """Most papers report it."""
        return (self.metric, self.aggregation, self.fitted) == ("spearman", "all", frozenset())

    def protocol(self) -> Protocol | None:
        """The one that was asked for, with the names of all."""
        known = PROTOCOLS.get(self.protocols[0].partition(" with ")[0]) if self.protocols else None
        return replace(known, name=", ".join(self.protocols)) if known else None


def _bases(records: Sequence[Record]) -> list[_Basis]:
    """Those of the protocols that were asked for; else Spearman over all pairs, or another."""
    whole = [record for record in records if _is_sts(record) and not record.subset]
    fitted: dict[tuple[str, str, str], set[TaskName]] = {}
    for record in whole:
        if record.protocol:
            tasks = fitted.setdefault((record.metric, record.aggregation, record.protocol), set())
            if record.regressor:
                tasks.add(quantity(record).name)
    merged: dict[_Basis, list[str]] = {}
    for (metric, aggregation, name), tasks in fitted.items():
        merged.setdefault(_Basis(metric, aggregation, frozenset(tasks)), []).append(name)
    if merged:
        return [replace(basis, protocols=tuple(names)) for basis, names in merged.items()]
    kinds = {(record.metric, record.aggregation) for record in whole if not record.regressor}
    first = sorted(kinds, key=lambda it: (it != ("spearman", "all"), it))[:1]
    return [_Basis(metric, aggregation) for metric, aggregation in first]


def _sts_tables(rows: Sequence[PageRow], every: Sequence[Record]) -> list[Table]:
    """Correlations: one table for each metric and aggregation that a protocol asked for."""
    tables: list[Table] = []
    for basis in _bases(every):
        chosen = _choose(rows, basis.holds)
        names = _names(chosen)
        layout = Layout(names, basis.metric, basis.aggregation, protocol=basis.protocol())
        correlation = CORRELATION[basis.metric]
        heading = f"{correlation} correlation{_AGGREGATIONS[basis.aggregation]}"
        mean = _average_of("STS", len(averaged(names)), STS)
        summed = mean if basis.plain else f"{mean} {heading}"
        table, title = sts_table(chosen, layout), f"Similarity: {heading}"
        tables.append(_entitled(table, _name("sts", len(tables)), title, summed, correlation))
    return tables


def _transfer_tables(rows: Sequence[PageRow], every: Sequence[Record]) -> list[Table]:
    """Accuracies of transfer tasks: one table for each way to train their classifiers."""

    def table(way: tuple[object, ...], place: int) -> Table:
        chosen = _choose(rows, lambda record: _is_transfer(record) and _way(record) == way)
        names = _names(chosen)
        tests = sum(it.split == "test" and it.name in TRANSFER for it in names)
        summed = _average_of("Transfer", tests, TRANSFER)
        shown, name = transfer_table(chosen, names), _name("transfer", place)
        return _entitled(shown, name, "Transfer: accuracy", summed, "accuracy")

    ways = dict.fromkeys(_way(record) for record in every if _is_transfer(record))
    return [table(way, place) for place, way in enumerate(ways)]


def _other_tables(rows: Sequence[PageRow], every: Sequence[Record]) -> list[Table]:
    """Retrieval, and what users measured of their own: a table for each task and classifier."""

    def table(name: TaskName, way: tuple[object, ...], place: int) -> Table:
        chosen = _choose(
            rows, lambda it: _is_other(it) and (quantity(it).name, _way(it)) == (name, way)
        )
        shown = [record for records in chosen.values() for record in records]
        columns = [
            Column(metric_heading(it.metric), (it,)) for it in dict.fromkeys(map(quantity, shown))
        ]
        of_queries = "@" in shown[0].metric
        kind, drawn = ("Retrieval", "queries") if of_queries else ("Own data", "examples")
        how = f"by {compared_by(shown)}, mean over queries; " if of_queries else ""
        settings = (
            ", ".join(f"{part.replace('_', ' ')} {value}" for part, value in it.classifier.items())
            for it in shown
            if it.classifier
        )
        notes = [
            f"{name.heading}, {name.split} split: {how}{shown[0].pairs:,} {drawn}; x 100.",
            *dict.fromkeys(f"Classifier on frozen embeddings: {each}." for each in settings),
            *interval_notes(shown, f"the {drawn}", ""),
            *encoder_notes(chosen),
        ]
        summed = f"{name.heading} {columns[0].heading}"
        title = f"{kind}: {name.heading}"
        return _entitled(scores_table(chosen, columns, notes), f"task-{place}", title, summed)

    kinds = dict.fromkeys((quantity(it).name, _way(it)) for it in every if _is_other(it))
    return [table(*kind, place) for place, kind in enumerate(kinds, start=1)]


def _mteb_tables(rows: Sequence[PageRow]) -> list[Table]:
    chosen = _choose(rows, lambda record: _is_mteb(record) and record.protocol == MTEB)
    if not chosen:
        return []
    table = mteb_table(chosen)
    return [_entitled(table, "mteb", "MTEB: main score of each task", f"MTEB {table.headings[1]}")]


def _name(kind: str, before: int) -> str:
    return f"{kind}-{before + 1}" if before else kind


def _names(chosen: Rows) -> list[TaskName]:
    return in_paper_order(
        quantity(record).name for records in chosen.values() for record in records
    )


def _average_of(kind: str, tasks: int, papers: Sequence[str]) -> str:
    """Such as ``STS Avg.``, with the number of its tasks where papers have more."""
    return f"{kind} {AVERAGE}" if tasks == len(papers) else f"{kind} {AVERAGE} of {tasks}"


def _is_mteb(record: Record) -> bool:
    return "mteb" in record.versions


def _is_sts(record: Record) -> bool:
    return record.metric in METRICS and not _is_mteb(record)


def _is_transfer(record: Record) -> bool:
    return record.classifier is not None and record.task in TRANSFER_TASKS


def _is_other(record: Record) -> bool:
    return not (_is_sts(record) or _is_transfer(record) or _is_mteb(record))


def _way(record: Record) -> tuple[object, ...]:
    how = record.classifier or {}
    return how.get("name"), how.get("preset"), how.get("seed")


@dataclass(frozen=True, slots=True)
class _Difference:
    """A task, or the average, a metric, and how two encoders differ in it."""

    heading: str
    metric: str
    compared: Compared


def comparison_tables(contents: Contents, by_identity: Mapping[Identity, PageRow]) -> list[Table]:
    """A table for each encoder and its baseline, a row for each task and metric."""
    rows = list(by_identity.values())

    def title(row: PageRow, compared: Compared) -> str:
        known = baseline_row(compared, row, rows)
        return f"{row.label} minus {known.label if known else compared.baseline}"

    tables: dict[str, list[_Difference]] = {}
    for row in rows:
        for it in row.records:
            if it.compared:
                line = _Difference(quantity(it).name.heading, it.metric, it.compared)
                tables.setdefault(title(row, it.compared), []).append(line)
    for mean in contents.means:
        row = by_identity[identity(mean.like)]
        lines = tables.setdefault(title(row, mean.compared), [])
        place = max((k for k, it in enumerate(lines, 1) if it.metric == mean.metric), default=0)
        lines.insert(place, _Difference(AVERAGE, mean.metric, mean.compared))
    return [
        differences_with_ends(
            [(f"{it.heading} {metric_heading(it.metric)}", it.compared) for it in lines],
            heading,
            f"compared-{n}",
        )
        for n, (heading, lines) in enumerate(tables.items(), start=1)
    ]


_VERDICTS = {
    "helped": "is better than",
    "hurt": "is worse than",
    "unclear": "may be no different from",
}


def verdicts(contents: Contents, by_identity: Mapping[Identity, PageRow]) -> list[str]:
    """A sentence on each difference: of averages, or of tasks whose metric has none."""
    rows = list(by_identity.values())
    differences = [
        (by_identity[identity(it.like)], f"{AVERAGE} {metric_heading(it.metric)}", it.compared)
        for it in contents.means
    ]
    known = {
        (by_identity[identity(it.like)].label, it.compared.baseline, it.metric)
        for it in contents.means
    }
    for row in rows:
        for it in row.records:
            if it.compared and (row.label, it.compared.baseline, it.metric) not in known:
                name = f"{quantity(it).name.heading} {metric_heading(it.metric)}"
                differences.append((row, name, it.compared))
    if not differences and len([row for row in rows if row.records]) > 1:
        return ["Whether the best is better by more than chance: evaluate with --compare."]
    sentences = []
    for row, of, compared in differences:
        start = baseline_row(compared, row, rows)
        gain = Gain(of, start.label if start else compared.baseline, compared)
        sentences.append(f"{row.label} {_VERDICTS[gain.verdict]} {gain.start}: {gain.change}.")
    return sentences


@dataclass(frozen=True, slots=True)
class PageFigure:
    """A figure of a report: heading, drawing and caption; a wide one has the page's width."""

    heading: str
    svg: str
    caption: str
    wide: bool


_WIDE = 2.0
"""Width over height from which on a figure is not set beside another."""


def geometry_tables(contents: Contents, rows: Mapping[Identity, PageRow]) -> list[Table]:
    """A table for each set of pairs."""
    return [
        geometry_table(of_label, _name("geometry", k), f"Geometry: {pairs}")
        for k, (pairs, of_label) in enumerate(_by_pairs(contents, rows).items())
    ]


def figures(contents: Contents, rows: Mapping[Identity, PageRow]) -> list[PageFigure]:
    """Every figure there is data for, of each set of pairs those of its own."""
    drawn: list[tuple[FigureKind, Picture, str]] = []

    def draw(data: FigureData, basis: str = "") -> None:
        drawn.extend(
            (kind, picture, f"{kind.caption(data)} {basis}".strip())
            for kind, picture in draw_figures(data)
        )

    for pairs, of_label in _by_pairs(contents, rows).items():
        known = {name for label, it in of_label.items() for name in (label, *names_of(it.encoder))}
        supervised = [name for name in contents.supervised if name in known]
        data = figure_data(
            of_label, (), contents.records, published=contents.published, supervised=supervised
        )
        draw(data, _basis(pairs, of_label))
    runs: dict[str, list[Trajectory]] = {}
    for run in contents.runs:
        runs.setdefault(run.pairs, []).append(run)
    for of_pairs in runs.values():
        draw(figure_data({}, of_pairs))
    return [
        PageFigure(
            kind.heading,
            inline_svg(picture, f"f{k}-", f"{kind.heading}. {caption}"),
            caption,
            picture.aspect > _WIDE,
        )
        for k, (kind, picture, caption) in enumerate(drawn)
    ]


def _by_pairs(
    contents: Contents, rows: Mapping[Identity, PageRow]
) -> dict[str, dict[str, Geometry]]:
    """Encoders with their labels, each once, by the pairs they were measured on."""
    by_pairs: dict[str, dict[str, Geometry]] = {}
    for geometry in contents.geometries:
        label = rows[identity(geometry.records[0])].label
        by_pairs.setdefault(geometry.pairs, {}).setdefault(label, geometry)
    return by_pairs


def _basis(pairs: str, of_label: Mapping[str, Geometry]) -> str:
    """Pairs, split and poolers."""
    some = next(iter(of_label.values()))
    poolers = {label: it.records[0].pooler for label, it in of_label.items()}
    pooler = (
        f"pooler {some.records[0].pooler}"
        if len(set(poolers.values())) == 1
        else ", ".join(f"{label} with pooler {name}" for label, name in poolers.items())
    )
    split = some.records[0].split
    splits = "train, dev and test" if split == "all" else split
    return (
        f"{some.source} ({splits} split), {some.rated:,} rated pairs, {some.sentences:,} "
        f"sentences, positive pairs {pairs}; {pooler}."
    )
