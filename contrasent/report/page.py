"""The page of a report: one file that loads nothing, written whole or not at all."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from markupsafe import Markup

from contrasent import __version__
from contrasent.evaluation.geometry import Geometry, Trajectory
from contrasent.files import template, write_text
from contrasent.report import comparison
from contrasent.report.contents import Contents, PageRow, doubts, identity, rows_of, settings_tables
from contrasent.report.figures import draw_figures, figure_data
from contrasent.report.scores_table import numbered, score_tables
from contrasent.report.table import Cell, Table, number, score, text_table
from contrasent.search.groups import Groups

_TEMPLATES = Path(__file__).parent / "templates"
_NAMED = 4


def page(contents: Contents) -> str:
    """The report as HTML; the same contents give the same text."""
    by_identity = rows_of(contents)
    rows = list(by_identity.values())
    labels = [row.label for row in rows]
    by_pairs: dict[str, dict[str, Geometry]] = {}
    for it in contents.geometries:
        label = by_identity[identity(it.records[0])].label
        by_pairs.setdefault(it.pairs, {}).setdefault(label, it)
    scores = score_tables({row.label: row.records for row in rows})
    geometry = [
        comparison.geometry_table(of_label, numbered("geometry", k), f"Geometry: {pairs}")
        for k, (pairs, of_label) in enumerate(by_pairs.items())
    ]
    measured = {label: it for of_label in by_pairs.values() for label, it in of_label.items()}
    drawn = _figures(contents, by_pairs)
    kind = "Clusters" if contents.clusters else "Adaptation" if contents.answer else "Training runs"
    heading = ", ".join(labels) or kind
    if len(labels) > _NAMED:
        heading = f"{len(labels)} encoders: {labels[0]} and others"
    counted = [f"{len(drawn)} figure{'' if len(drawn) == 1 else 's'}"] if drawn else []
    script, style = (
        (_TEMPLATES / name).read_text(encoding="utf-8") for name in ("script.js", "style.css")
    )
    columns = [(it, f"{it.title}, {it.headings[it.key]}", it.key) for it in scores]
    for table in geometry:
        more = "" if len(geometry) == 1 else f", {table.title}"
        columns += [(table, f"{of}{more}", table.headings.index(of)) for of in comparison.LOWER]
    edits = comparison.edits_table(measured, "edits", "Sensitivity to edits")
    geometry += [edits] if edits.rows else []
    panels = [{row[0].text: row[k] for row in table.rows} for table, _, k in columns]
    cells = tuple((Cell(it), *(of.get(it, number(None)) for of in panels)) for it in labels)
    headings = ("encoder", *(heading for _, heading, _ in columns))
    summary = Table(headings, cells, title="Key numbers", name="summary-table")
    return _rendered(
        "report.html",
        heading=heading,
        overview=" ".join(contents.answer)
        or "; ".join([*(table.title for table in scores), *counted]),
        clusters=contents.clusters,
        cluster_table=contents.clusters and _cluster_table(contents.clusters),
        warnings=[*contents.warnings, *doubts(contents, by_identity)],
        summary=summary.with_best(lower=range(len(scores) + 1, len(headings))),
        scores=scores,
        compared=[*contents.tables, *comparison.comparison_tables(contents, by_identity)],
        geometry=geometry,
        figures=drawn,
        browsers=comparison.browsers(contents, by_identity),
        every=_records_table(rows) if contents.records else None,
        settings=settings_tables(contents, rows),
        command=contents.command,
        commands=list(dict.fromkeys(it.command for it in contents.used if it.command)),
        commands_complete=bool(contents.answer) or all(it.command for it in contents.used),
        version=__version__,
        # Ours, and not a word of it from what is reported.
        script=Markup(script),
        style=Markup(style),
        script_sha256=b64encode(sha256(script.encode()).digest()).decode(),
    )


def cluster_map(clusters: Groups, duplicates: Groups) -> str:
    """The map of a report's clusters as SVG, with a ring round each text that has duplicates."""
    return _rendered("map.svg", clusters=clusters, duplicates=duplicates)


def _rendered(name: str, **values: object) -> str:
    return template(_TEMPLATES / name, autoescape=True, lstrip_blocks=True)(**values)


def write_report(path: str | Path, contents: Contents) -> None:
    """Write the report, whole or not at all."""
    write_text(path, page(contents))


def _records_table(rows: Sequence[PageRow]) -> Table:
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


def _cluster_table(clusters: Groups) -> Table:
    named = enumerate(zip(clusters.names, clusters.groups, strict=True))
    rows = ((str(n), f"{len(it):,}", name, clusters.texts[it[0]]) for n, (name, it) in named)
    headings = ("cluster", "texts", "words", "nearest to the centre")
    return text_table(headings, rows, "cluster-table", "Clusters")


_WIDE = 2.0
"""Width over height from which on a figure has the page's width."""


def _figures(
    contents: Contents, by_pairs: Mapping[str, Mapping[str, Geometry]]
) -> list[dict[str, Any]]:
    wanted = []
    for pairs, of_label in by_pairs.items():
        some = next(iter(of_label.values()))
        split = some.records[0].split
        basis = (
            f" {some.source} ({'train, dev and test' if split == 'all' else split} split), "
            f"{some.rated:,} rated pairs, {some.sentences:,} sentences, positive pairs {pairs}."
        )
        wanted.append((figure_data(of_label, (), contents.records), basis))
    runs: dict[str, list[Trajectory]] = {}
    for run in contents.runs:
        runs.setdefault(run.pairs, []).append(run)
    wanted += [(figure_data({}, of_pairs), "") for of_pairs in runs.values()]
    shown = list[dict[str, Any]]()
    for data, basis in wanted:
        for kind, picture in draw_figures(data):
            width, height = picture.size
            words = {"heading": kind.heading, "caption": f"{kind.caption(data)}{basis}"}
            shown.append({"picture": picture, "wide": width / height > _WIDE, **words})
    return shown
