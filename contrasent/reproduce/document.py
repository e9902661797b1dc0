"""The page of a reproduced table: our scores, the published ones, and the files beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contrasent.evaluation.geometry import Geometry, read_geometry, write_geometry
from contrasent.evaluation.task_names import STS, STS_TASKS, TRANSFER, TaskName
from contrasent.evaluation.transfer_data import TRANSFER_TASKS
from contrasent.files import write_text
from contrasent.records import Record, read_records, write_records
from contrasent.report import scores_table
from contrasent.report.figures.plane import PLANE, plane
from contrasent.report.figures.style import Colours, Picture, write_pictures
from contrasent.report.table import AVERAGE, Cell, Table, csv_text, number, text_table
from contrasent.reproduce.plan import Cited, PlanRow
from contrasent.reproduce.reproduction import DONE, GEOMETRY, RECORDS, ROWS, Reproduction

PUBLISHED_COLUMNS = {
    **{name: task.heading for name, task in STS_TASKS.items()},
    **{name: task.published or task.heading for name, task in TRANSFER_TASKS.items()},
}
"""The columns of published tables by task."""

_KINDS = ("sts", "transfer")
_GROUPS = {False: "Unsupervised", True: "Supervised"}


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row of a table.

    Attributes:
        name: of the row.
        row: how it is made.
        records: what was measured here; empty of a row that was not made.
        geometry: alignment and uniformity; None if they were not measured.
        published: by ``sts``, ``transfer`` and ``study``.
        run: what was kept of the run: recipe, seconds, problems, environment; None if not made.
        missing: why it was not made; empty if it was.
    """

    name: str
    row: PlanRow
    records: tuple[Record, ...] = ()
    geometry: Geometry | None = None
    published: Mapping[str, Cited] = field(default_factory=dict)
    run: Mapping[str, Any] | None = None
    missing: str = ""

    def value(self, task: str) -> float | None:
        """Correlation (Spearman, all) or accuracy on the test split, x 100; None without."""
        metric = "spearman" if task in STS_TASKS else "accuracy"
        for record in self.records:
            of_task = (record.task, record.split, record.metric) == (task, "test", metric)
            if of_task and (metric == "accuracy" or record.aggregation == "all"):
                return 100 * record.value
        return None

    def average(self, tasks: Sequence[str]) -> float | None:
        """Mean over tasks; None if one has no value."""
        return mean([self.value(task) for task in tasks])

    def published_value(self, task: str) -> float | None:
        """The paper's number for the task."""
        cited = self.published.get("sts" if task in STS_TASKS else "transfer")
        return None if cited is None else cited.values.get(PUBLISHED_COLUMNS[task])

    def published_average(self, tasks: Sequence[str], of: str) -> float | None:
        """The paper's mean over these tasks: as printed where they are all seven."""
        cited = self.published.get(of)
        if cited is None:
            return None
        if set(tasks) in (set(STS), set(TRANSFER)) and "Avg" in cited.values:
            return cited.values["Avg"]
        return mean([cited.values.get(PUBLISHED_COLUMNS[task]) for task in tasks])

    def position(self, metric: str) -> float | None:
        """Alignment or uniformity; None if it was not measured."""
        return self.geometry.value(metric) if self.geometry else None


def mean(values: Sequence[float | None]) -> float | None:
    """The mean; None if a value is missing, or all are."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def difference(value: float | None, other: float | None) -> float | None:
    """``value`` less ``other``; None if one is missing."""
    return None if value is None or other is None else value - other


def read_rows(reproduction: Reproduction, output: Path) -> list[TableRow]:
    """The rows of a table, those that were not made too.

    Raises:
        DataError: a file is damaged.
    """
    return [_read_row(reproduction, name, output / ROWS / name) for name in reproduction.rows]


def _read_row(reproduction: Reproduction, name: str, folder: Path) -> TableRow:
    row = reproduction.plan.rows[name]
    missing = ""
    if row.make == "cited":
        missing = row.note or "published numbers only"
    elif name in reproduction.lacking:
        needs = " and ".join(f"--{material}" for material in sorted(reproduction.lacking[name]))
        missing = f"not made: it needs {needs}"
    elif name in reproduction.failed:
        missing = f"not made: {reproduction.failed[name]}"
    if missing:
        return TableRow(name, row, published=row.citations, missing=missing)
    return TableRow(
        name,
        row,
        tuple(read_records(folder / RECORDS)),
        next(iter(read_geometry(folder / GEOMETRY)), None),
        row.citations,
        json.loads((folder / DONE).read_text(encoding="utf-8")),
    )


def page(reproduction: Reproduction, rows: Sequence[TableRow], *, figure: bool) -> str:
    """The whole page.

    Args:
        reproduction: what was asked for and done.
        rows: of the table.
        figure: whether the plane of alignment and uniformity lies beside the page.
    """
    sts, transfer = scored_tasks(rows)
    tables = [
        *([("STS", sts_table(rows, sts))] if sts else []),
        *([("Transfer", transfer_table(rows, transfer))] if transfer else []),
    ]
    parts = [f"# {reproduction.plan.title}\n", _about(reproduction, rows)]
    for heading, table in tables:
        parts += [f"## {heading}\n", table.markdown(), " ".join(table.notes) + "\n"]
    if figure:
        parts += ["## Alignment and uniformity\n", f"![alignment and uniformity]({PLANE}.png)\n"]
    parts += ["## How the rows were made\n", making_table(rows).markdown()]
    return "\n".join([*parts, "## Sources\n", _sources(rows)])


def scored_tasks(rows: Sequence[TableRow]) -> tuple[list[str], list[str]]:
    """The STS and the transfer tasks of which a row has a number."""
    sts, transfer = (
        [task for task in tasks if any(row.value(task) is not None for row in rows)]
        for tasks in (STS, TRANSFER)
    )
    return sts, transfer


def sts_table(rows: Sequence[TableRow], tasks: Sequence[str]) -> Table:
    """Correlations x 100 and geometry, with the published averages and the differences."""
    names = [TaskName(task) for task in tasks]

    def cells(row: TableRow) -> list[Cell]:
        ours, theirs = row.average(tasks), row.published_average(tasks, "sts")
        return [
            *(number(row.value(task)) for task in tasks),
            *map(number, (ours, theirs, row.published_average(tasks, "study"))),
            number(difference(ours, theirs), sign="+"),
            *(number(row.position(metric), 3) for metric in ("alignment", "uniformity")),
        ]

    notes = scores_table.sts_table(_records(rows), scores_table.Layout(names)).notes
    geometry = next((row.geometry for row in rows if row.geometry), None)
    about = []
    if geometry:
        close = geometry.records[0]
        about.append(
            f"Alignment over the {close.pairs:,} pairs of {geometry.heading} rated "
            f"{close.subset}, uniformity over its {geometry.sentences:,} distinct sentences."
        )
    about.append("Difference: our average less the published one.")
    more = (AVERAGE, "published", "study", "difference", "alignment", "uniformity")
    headings = (*(name.heading for name in names), *more)
    return _grouped(rows, headings, cells, [*_without_encoders(notes), *about])


def transfer_table(rows: Sequence[TableRow], tasks: Sequence[str]) -> Table:
    """Accuracies x 100, each beside the published one."""
    names = [TaskName(task) for task in tasks]

    def cells(row: TableRow) -> list[Cell]:
        ours, theirs = row.average(tasks), row.published_average(tasks, "transfer")
        each = [it for task in tasks for it in (row.value(task), row.published_value(task))]
        return [*map(number, (*each, ours, theirs)), number(difference(ours, theirs), sign="+")]

    notes = scores_table.transfer_table(_records(rows), names).notes
    pairs = [heading for name in names for heading in (name.heading, "published")]
    headings = (*pairs, AVERAGE, "published", "difference")
    return _grouped(rows, headings, cells, _without_encoders(notes))


def _grouped(
    rows: Sequence[TableRow],
    headings: Sequence[str],
    cells: Callable[[TableRow], list[Cell]],
    notes: Sequence[str],
) -> Table:
    lines: list[tuple[Cell, ...]] = []
    for supervised, title in _GROUPS.items():
        members = [row for row in rows if row.row.supervised == supervised]
        if members:
            lines.append((Cell(f"**{title}**"), *(Cell("") for _ in headings)))
        for it in members:
            label = f"{it.row.label} (published)" if it.row.make == "cited" else it.row.label
            lines.append((Cell(label), *cells(it)))
    return Table(("", *headings), tuple(lines), tuple(notes))


def _records(rows: Sequence[TableRow]) -> dict[str, Sequence[Record]]:
    return {row.row.label: row.records for row in rows if row.records}


def _without_encoders(notes: Sequence[str]) -> list[str]:
    """Without the note on every encoder, which stands under how the rows were made."""
    return [note for note in notes if ": pooler " not in note]


def _about(reproduction: Reproduction, rows: Sequence[TableRow]) -> str:
    scale = reproduction.scale
    runs = [row.run for row in rows if row.run]
    total, busy = (
        sum(sum(run[clock].values()) for run in runs) / 60 for clock in ("seconds", "cpu_seconds")
    )
    parts = [
        f"Scale `{reproduction.scale_name}`: {scale.about}. {len(runs)} rows were made and scored "
        f"in {total:.0f} minutes, added up over the rows, and {busy:.0f} minutes of processor "
        f"time{_machine(runs)}.\n"
    ]
    if scale.short:
        parts.append(
            "These are short runs of a small encoder: they show that every system is there, and "
            "how they compare on equal terms; they are no reproduction of the published numbers, "
            "which are of BERT-base unless a note says otherwise.\n"
        )
    materials = "".join(
        f"* `{name}`: {it.source.rpartition('/')[2]}"
        + (f", the first {it.lines:,} lines" if it.lines else "")
        + f" (sha256 {it.sha256[:16]})\n"
        for name, it in reproduction.materials.items()
    )
    return "\n".join(parts) + "\nMaterials:\n\n" + materials


def _machine(runs: Sequence[Mapping[str, Any]]) -> str:
    if not runs:
        return ""
    environment = runs[0]["environment"]
    threads = sorted({run["environment"]["threads"] for run in runs})
    versions = environment["versions"]
    return (
        f" (threads of a row: {', '.join(map(str, threads))}; {environment['cpu']}; torch "
        f"{versions['torch']}; contrasent {versions['contrasent']})"
    )


def making_table(rows: Sequence[TableRow]) -> Table:
    """How every row was made, with which settings, in how many seconds, and what is to be noted."""
    cells = [(row.row.label, _made(row.row), *_run_cells(row), _notes(row)) for row in rows]
    return text_table(("", "made", "settings", "seconds", "note"), cells)


def _made(row: PlanRow) -> str:
    what = f"`train {row.recipe}`" if row.make == "train" else row.make
    return f"{what}{f' of {row.of}' if row.of else ''}{f' on {row.data}' if row.data else ''}"


def _run_cells(row: TableRow) -> tuple[str, str]:
    """Settings and seconds of a run."""
    if not row.run:
        return "", ""
    settings = []
    if recipe := row.run["recipe"]:
        train = recipe["train"]
        steps = f"{train['max_steps']} steps" if train["max_steps"] else f"{train['epochs']} epochs"
        settings = [steps, f"batch {train['batch_size']}", f"rate {train['learning_rate']:g}"]
        settings.append(f"seed {train['seed']}")
    for record in row.records[:1]:
        settings += [f"pooler {record.pooler}", record.precision]
    seconds = row.run["seconds"]
    return ", ".join(settings), f"{seconds['make']:.0f} + {seconds['score']:.0f}"


def _notes(row: TableRow) -> str:
    problems = [_without_text(problem) for problem in row.run["problems"]] if row.run else []
    return "; ".join(dict.fromkeys(it for it in (row.row.note, row.missing, *problems) if it))


def _without_text(problem: str) -> str:
    """A problem and its task, without a sentence of it, whose licence may forbid that."""
    message = problem.partition("; the first is ")[0]
    return message.partition(": ")[2] or message


def _sources(rows: Sequence[TableRow]) -> str:
    cited = [(row.row.label, "; ".join(_cited(row))) for row in rows if row.published]
    return "".join(f"* {label}: {sources}.\n" for label, sources in cited)


def _cited(row: TableRow) -> Iterator[str]:
    for kind, cited in row.published.items():
        name = "STS" if kind == "sts" else kind
        yield f"{name} from {cited.source}, row {cited.row!r} ({cited.note})"


def write_table(
    reproduction: Reproduction, rows: Sequence[TableRow], name: str, output: Path
) -> list[Path]:
    """Write ``NAME.md``, ``NAME.csv``, records, geometry and the figure, each whole or not at all.

    Returns:
        The files.
    """
    figure = _plane(rows)
    texts = {
        output / f"{name}.md": page(reproduction, rows, figure=figure is not None),
        output / f"{name}.csv": _numbers(rows),
    }
    for path, text in texts.items():
        write_text(path, text)
    records, geometry = output / "records.jsonl", output / "geometry.jsonl"
    write_records(records, [record for row in rows for record in row.records])
    write_geometry(geometry, [row.geometry for row in rows if row.geometry])
    return [*texts, records, geometry, *write_pictures(output, [figure] if figure else [])]


def _plane(rows: Sequence[TableRow]) -> Picture | None:
    """SimCSE's Figure 3 of the rows: colour is the average over the STS tasks that were scored."""
    places = {row.row.label: row.geometry for row in rows if row.geometry}
    if not places:
        return None
    sts, _ = scored_tasks(rows)
    averages = {row.row.label: row.average(sts) for row in rows if row.geometry}
    colours = {label: value / 100 for label, value in averages.items() if value is not None}
    title = "STS Avg." if set(sts) == set(STS) else f"Avg. of {', '.join(sts)}"
    return plane(places, Colours(title, colours), size=(9.0, 6.4))


def _numbers(rows: Sequence[TableRow]) -> str:
    """Every number in full precision, one a line."""
    lines = [["row", "label", "column", "ours", "published", "difference"]]
    of_kind = dict(zip(_KINDS, scored_tasks(rows), strict=True))
    for row in rows:
        pairs = {
            task: (row.value(task), row.published_value(task))
            for tasks in of_kind.values()
            for task in tasks
        }
        for kind, tasks in of_kind.items():
            if tasks:
                theirs = row.published_average(tasks, kind)
                pairs[f"{kind} average"] = row.average(tasks), theirs
        pairs |= {metric: (row.position(metric), None) for metric in ("alignment", "uniformity")}
        for column, pair in pairs.items():
            if pair != (None, None):
                shown = ["" if it is None else repr(it) for it in (*pair, difference(*pair))]
                lines.append([row.name, row.row.label, column, *shown])
    return csv_text(lines)
