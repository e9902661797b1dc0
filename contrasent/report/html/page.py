"""The page of a report: one file that loads nothing, written whole or not at all."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from contrasent import __version__
from contrasent.evaluation.compare import Gain
from contrasent.evaluation.geometry import Geometry, Trajectory
from contrasent.evaluation.mteb_encoder import PROTOCOL as MTEB
from contrasent.evaluation.protocols import PROTOCOLS, Protocol
from contrasent.evaluation.task_names import STS, TRANSFER, TRANSFER_TASKS, TaskName, averaged
from contrasent.files import write_text
from contrasent.metrics import METRICS
from contrasent.records import Compared, Record
from contrasent.report.comparison import differences_table
from contrasent.report.contents import (
    Contents,
    Identity,
    PageRow,
    doubts,
    identity,
    rows_of,
    settings_tables,
)
from contrasent.report.embedding_tables import (
    LOWER,
    browsers,
    figure_data,
    geometry_table,
    names_of,
)
from contrasent.report.figures.style import FigureData, draw_figures
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
from contrasent.report.table import ABSENT, AVERAGE, Cell, Table, interval_notes, number, score

_TEMPLATES = Path(__file__).parent / "templates"
_NAMED = 4


def page(contents: Contents) -> str:
    """The report as HTML; the same contents give the same text."""
    by_identity = rows_of(contents)
    rows = list(by_identity.values())
    labels = [row.label for row in rows]
    scores, geometry = score_tables(rows), geometry_tables(contents, by_identity)
    drawn, (summary, bars) = figures(contents, by_identity), _key_numbers(labels, scores, geometry)
    heading = ", ".join(labels) or "Training runs"
    if len(labels) > _NAMED:
        heading = f"{len(labels)} encoders: {labels[0]} and others"
    best = []  # of each table of scores the row that is best in its key column
    for table in scores:
        known = [row for row in table.rows if row[table.key].value is not None]
        best += [(table, max(known, key=lambda row: row[table.key].value or 0))] if known else []
    counted = [f"{len(drawn)} figure{'' if len(drawn) == 1 else 's'}"] if drawn else []
    return render(
        "report.html",
        heading=heading,
        overview="; ".join([*(table.title for table in scores), *counted]),
        warnings=[*contents.warnings, *doubts(contents, by_identity)],
        best=best,
        summary=summary,
        summary_bars=bars,
        verdicts=verdicts(contents, by_identity),
        scores=scores,
        compared=comparison_tables(contents, by_identity),
        geometry=geometry,
        figures=drawn,
        browsers=browsers(contents, by_identity),
        every=_records_table(rows) if contents.records else None,
        settings=settings_tables(contents, rows),
        command=contents.command,
        commands=list(dict.fromkeys(it.command for it in contents.used if it.command)),
        commands_complete=all(it.command for it in contents.used),
    )


def render(template: str, **contents: Any) -> str:
    """A page of our templates, with its style and script inside."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    script, style = (
        (_TEMPLATES / name).read_text(encoding="utf-8") for name in ("script.js", "style.css")
    )
    return environment.get_template(template).render(
        **contents,
        version=__version__,
        # Ours, and not a word of it from what is reported.
        script=Markup(script),
        style=Markup(style),
        script_sha256=b64encode(sha256(script.encode()).digest()).decode(),
    )


def write_report(path: str | Path, contents: Contents) -> None:
    """Write the report, whole or not at all."""
    write_text(path, page(contents))


def _records_table(rows: Sequence[PageRow]) -> Table:
    """All records, a row each."""
    cells = tuple(
        (
            *map(Cell, (row.label, it.task, it.split, it.subset, it.metric, it.aggregation)),
            score(it.value, it.interval),
            Cell(f"{it.pairs:,}", it.pairs),
            Cell(it.protocol or ""),
        )
        for row in rows
        for it in row.records
    )
    columns = ("encoder", "task", "split", "subset", "metric", "aggregation", "value", "pairs")
    texts = frozenset({1, 2, 3, 4, 5, 8})
    return Table((*columns, "protocol"), cells, title="All numbers", name="records", texts=texts)


_PAPERS = frozenset(TaskName(name).heading for name in (*STS, *TRANSFER))


def _key_numbers(
    labels: Sequence[str], scores: Sequence[Table], geometry: Sequence[Table]
) -> tuple[Table, list[int]]:
    """A row for each encoder: the key score of each table, and alignment and uniformity.

    With the columns that are scores in [0, 1]. A table whose key is an average over the papers'
    tasks has a column for every other task too.
    """
    columns = []
    for table in scores:
        averaged = table.headings[table.key].startswith(AVERAGE) and table.name != "mteb"
        others = [
            (heading, k)
            for k, heading in enumerate(table.headings)
            if averaged and k not in (0, table.key) and heading.removesuffix(" F1") not in _PAPERS
        ]
        for heading, k in [(table.key_heading, table.key), *others]:
            columns.append((heading, {row[0].text: row[k] for row in table.rows}))
    first_of_geometry = len(columns) + 1
    for table in geometry:
        for metric in LOWER:
            k = table.headings.index(metric)
            heading = metric if len(geometry) == 1 else f"{metric}, {table.title}"
            columns.append((heading, {row[0].text: row[k] for row in table.rows}))
    cells = tuple(
        (Cell(label), *(of_label.get(label, number(None)) for _, of_label in columns))
        for label in labels
    )
    headings = ("encoder", *(name for name, _ in columns))
    lower = range(first_of_geometry, len(headings))
    bars = [
        k
        for k in range(1, first_of_geometry)
        if all(0 <= (row[k].value or 0) <= 1 for row in cells)
    ]
    table = Table(headings, cells, title="Key numbers", name="summary-table")
    return table.with_best(lower=lower), bars


_AGGREGATIONS = {"all": "", "mean": ", mean of subsets", "wmean": ", weighted mean of subsets"}
_GAPS = f"{ABSENT} was not measured; an average needs all of its tasks."


def score_tables(rows: Sequence[PageRow]) -> list[Table]:
    """Similarity, transfer, then everything else; of each kind a table per protocol."""
    records = [record for row in rows for record in row.records]
    of_mteb = [it for it in records if "mteb" in it.versions]
    every = [it for it in records if "mteb" not in it.versions]
    similarity = [it for it in every if it.metric in METRICS]
    transfer = [it for it in every if it.classifier is not None and it.task in TRANSFER_TASKS]
    known = {*map(id, similarity), *map(id, transfer)}
    others = [it for it in every if id(it) not in known]

    def choose(
        among: Sequence[Record], key: Callable[[Record], object], value: object = True
    ) -> Rows:
        """Of each encoder by its label the records whose key is ``value``; no row without any."""
        wanted = {id(it) for it in among if not it.subset and key(it) == value}
        shown = {row.label: [it for it in row.records if id(it) in wanted] for row in rows}
        return {label: chosen for label, chosen in shown.items() if chosen}

    tables = list[Table]()
    for place, basis in enumerate(_bases(similarity)):
        chosen = choose(similarity, basis.holds)
        names = _names(chosen)
        layout = Layout(names, basis.metric, basis.aggregation, protocol=basis.protocol())
        correlation = CORRELATION[basis.metric]
        heading = f"{correlation} correlation{_AGGREGATIONS[basis.aggregation]}"
        mean = _average_of("STS", len(averaged(names)), STS)
        plain = (basis.metric, basis.aggregation, basis.fitted) == ("spearman", "all", frozenset())
        summed = mean if plain else f"{mean} {heading}"
        title, name = f"Similarity: {heading}", _name("sts", place)
        tables.append(_entitled(sts_table(chosen, layout), name, title, summed, correlation))
    for place, way in enumerate(dict.fromkeys(map(_way, transfer))):
        chosen = choose(transfer, _way, way)
        names = _names(chosen)
        tests = sum(it.split == "test" and it.name in TRANSFER for it in names)
        summed, name = _average_of("Transfer", tests, TRANSFER), _name("transfer", place)
        shown = transfer_table(chosen, names)
        tables.append(_entitled(shown, name, "Transfer: accuracy", summed, "accuracy"))
    for place, kind in enumerate(dict.fromkeys(map(_task_and_way, others)), start=1):
        chosen = choose(others, _task_and_way, kind)
        tables.append(_other_table(kind[0], chosen, f"task-{place}"))
    if chosen := choose(of_mteb, lambda it: it.protocol == MTEB):
        table = mteb_table(chosen)
        title, summed = "MTEB: main score of each task", f"MTEB {table.headings[1]}"
        tables.append(_entitled(table, "mteb", title, summed))
    return tables


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
        return (record.metric, record.aggregation) == (self.metric, self.aggregation) and bool(
            record.regressor
        ) == (quantity(record).name in self.fitted)

    def protocol(self) -> Protocol | None:
        """The one that was asked for, with the names of all."""
        known = PROTOCOLS.get(self.protocols[0].partition(" with ")[0]) if self.protocols else None
        return replace(known, name=", ".join(self.protocols)) if known else None


def _bases(records: Sequence[Record]) -> list[_Basis]:
    """Those of the protocols that were asked for; else Spearman over all pairs, or another."""
    whole = [record for record in records if not record.subset]
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


def _other_table(name: TaskName, chosen: Rows, link: str) -> Table:
    """Retrieval, or what users measured of their own: a table for each task and classifier."""
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
    summed, title = f"{name.heading} {columns[0].heading}", f"{kind}: {name.heading}"
    return _entitled(scores_table(chosen, columns, notes), link, title, summed)


def _name(kind: str, before: int) -> str:
    return f"{kind}-{before + 1}" if before else kind


def _names(chosen: Rows) -> list[TaskName]:
    return in_paper_order(quantity(it).name for records in chosen.values() for it in records)


def _average_of(kind: str, tasks: int, papers: Sequence[str]) -> str:
    """Such as ``STS Avg.``, with the number of its tasks where papers have more."""
    return f"{kind} {AVERAGE}" if tasks == len(papers) else f"{kind} {AVERAGE} of {tasks}"


def _way(record: Record) -> tuple[object, ...]:
    how = record.classifier or {}
    return how.get("name"), how.get("preset"), how.get("seed")


def _task_and_way(record: Record) -> tuple[TaskName, tuple[object, ...]]:
    return quantity(record).name, _way(record)


Difference = tuple[PageRow, str, str, Compared]
"""A row, a task or the average, its metric, and how the row differs from another in it."""


def _differences(
    contents: Contents, rows: Mapping[Identity, PageRow]
) -> tuple[list[Difference], list[Difference]]:
    """Of tasks, and of averages."""
    tasks = [
        (row, quantity(it).name.heading, it.metric, it.compared)
        for row in rows.values()
        for it in row.records
        if it.compared
    ]
    means = [(rows[identity(it.like)], AVERAGE, it.metric, it.compared) for it in contents.means]
    return tasks, means


def _baseline(row: PageRow, compared: Compared, rows: Mapping[Identity, PageRow]) -> str:
    """The label of the row that ``row`` was compared with; its name where several could be it."""
    named = [it for it in rows.values() if it.like.encoder == compared.baseline]
    alike = [it for it in named if it.like.pooler == row.like.pooler]
    known = named if len(named) == 1 else alike
    return known[0].label if len(known) == 1 else compared.baseline


def comparison_tables(contents: Contents, rows: Mapping[Identity, PageRow]) -> list[Table]:
    """A table for each encoder and its baseline, a row for each task and metric."""
    tables: dict[str, list[tuple[str, str, Compared]]] = {}
    tasks, means = _differences(contents, rows)
    for row, of, metric, compared in (*tasks, *means):
        title = f"{row.label} minus {_baseline(row, compared, rows)}"
        lines = tables.setdefault(title, [])
        end = len(lines)
        if of == AVERAGE:  # after the tasks of its metric
            end = max((k for k, it in enumerate(lines, 1) if it[1] == metric), default=0)
        lines.insert(end, (of, metric, compared))
    return [
        differences_table(
            [(f"{of} {metric_heading(metric)}", compared) for of, metric, compared in lines],
            title,
            "Differences x 100",
            "pairs, sentences or queries",
            name=f"compared-{place}",
            of=" of a metric",
        )
        for place, (title, lines) in enumerate(tables.items(), start=1)
    ]


_VERDICTS = {
    "helped": "is better than",
    "hurt": "is worse than",
    "unclear": "may be no different from",
}


def verdicts(contents: Contents, rows: Mapping[Identity, PageRow]) -> list[str]:
    """A sentence on each difference: of averages, or of tasks whose metric has none."""
    tasks, means = _differences(contents, rows)
    known = {(row.label, compared.baseline, metric) for row, _, metric, compared in means}
    alone = [it for it in tasks if (it[0].label, it[3].baseline, it[2]) not in known]
    if not (means or alone) and len([row for row in rows.values() if row.records]) > 1:
        return ["Whether the best is better by more than chance: evaluate with --compare."]
    sentences = []
    for row, of, metric, compared in (*means, *alone):
        heading = f"{of} {metric_heading(metric)}"
        gain = Gain(heading, _baseline(row, compared, rows), compared)
        sentences.append(f"{row.label} {_VERDICTS[gain.verdict]} {gain.start}: {gain.change}.")
    return sentences


_WIDE = 2.0
"""Width over height from which on a figure has the page's width."""


def geometry_tables(contents: Contents, rows: Mapping[Identity, PageRow]) -> list[Table]:
    """A table for each set of pairs."""
    return [
        geometry_table(of_label, _name("geometry", k), f"Geometry: {pairs}")
        for k, (pairs, of_label) in enumerate(_by_pairs(contents, rows).items())
    ]


def figures(contents: Contents, rows: Mapping[Identity, PageRow]) -> list[dict[str, Any]]:
    """Every figure there is data for, of each set of pairs those of its own."""
    wanted = list[tuple[FigureData, str]]()
    for pairs, of_label in _by_pairs(contents, rows).items():
        known = {name for label, it in of_label.items() for name in (label, *names_of(it.encoder))}
        supervised = [name for name in contents.supervised if name in known]
        data = figure_data(
            of_label, (), contents.records, published=contents.published, supervised=supervised
        )
        wanted.append((data, f" {_basis(pairs, of_label)}"))
    runs: dict[str, list[Trajectory]] = {}
    for run in contents.runs:
        runs.setdefault(run.pairs, []).append(run)
    wanted += [(figure_data({}, of_pairs), "") for of_pairs in runs.values()]
    shown = list[dict[str, Any]]()
    for data, basis in wanted:
        for kind, picture in draw_figures(data):
            width, height = picture.size
            caption, wide = f"{kind.caption(data)}{basis}", width / height > _WIDE
            words = {"heading": kind.heading, "caption": caption}
            shown.append({"picture": picture, "wide": wide, **words})
    return shown


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
    pooler = f"pooler {some.records[0].pooler}"
    if len(set(poolers.values())) > 1:
        pooler = ", ".join(f"{label} with pooler {name}" for label, name in poolers.items())
    split = some.records[0].split
    splits = "train, dev and test" if split == "all" else split
    return (
        f"{some.source} ({splits} split), {some.rated:,} rated pairs, {some.sentences:,} "
        f"sentences, positive pairs {pairs}; {pooler}."
    )
