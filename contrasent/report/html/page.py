"""The page of a report: one file that loads nothing, written whole or not at all."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contrasent import __version__
from contrasent.evaluation.neighbours import Neighbours
from contrasent.evaluation.task_names import STS, TRANSFER, TaskName
from contrasent.files import write_text
from contrasent.report.contents import (
    Contents,
    Identity,
    PageRow,
    doubts,
    identity,
    rows_of,
    settings_tables,
)
from contrasent.report.embedding_tables import LOWER, QueryHits, queries_of, search_notes
from contrasent.report.html.sections import (
    comparison_tables,
    figures,
    geometry_tables,
    score_tables,
    verdicts,
)
from contrasent.report.table import AVERAGE, Cell, Table, number, score

if TYPE_CHECKING:
    from jinja2 import Environment

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
    from markupsafe import Markup

    script, style = (
        (_TEMPLATES / name).read_text(encoding="utf-8") for name in ("script.js", "style.css")
    )
    return (
        _environment()
        .get_template(template)
        .render(
            **contents,
            version=__version__,
            # Ours, and not a word of it from what is reported.
            script=Markup(script),
            style=Markup(style),
            script_sha256=b64encode(sha256(script.encode()).digest()).decode(),
        )
    )


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


def write_report(path: str | Path, contents: Contents) -> None:
    """Write the report, whole or not at all."""
    write_text(path, page(contents))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


MOST_QUERIES = 300
"""Queries of one corpus that a page shows, so that a browser can still hold it."""


@dataclass(frozen=True, slots=True)
class Browser:
    """Queries over one corpus."""

    name: str  # in links
    heading: str  # above it
    queries: Sequence[QueryHits]  # in the order they were asked, at most `MOST_QUERIES`
    notes: Sequence[str]  # what was searched, by which encoders


def browsers(contents: Contents, rows: Mapping[Identity, PageRow]) -> list[Browser]:
    """One for each corpus, of all encoders that searched it; no encoder twice."""
    corpora: dict[tuple[str, str], dict[str, Neighbours]] = {}
    for it in contents.neighbours:
        corpus = corpora.setdefault((it.corpus, it.corpus_sha256), {})
        corpus.setdefault(rows[identity(it)].label, it)
    shown = []
    for k, ((name, _), of_label) in enumerate(corpora.items(), start=1):
        queries, notes = queries_of(of_label), search_notes(of_label)
        if len(queries) > MOST_QUERIES:
            notes = (f"The first {MOST_QUERIES} of {len(queries):,} queries.", *notes)
        shown.append(Browser(f"neighbours-{k}", name, queries[:MOST_QUERIES], notes))
    return shown
