"""The page of a table: ours, the published numbers, and the files beside it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from contrasent.evaluation.geometry import write_geometry
from contrasent.evaluation.task_names import STS, TRANSFER, TaskName
from contrasent.files import write_text
from contrasent.records import Record, write_records
from contrasent.report.figures.plane import Colours, plane
from contrasent.report.figures.style import Picture, write_pictures
from contrasent.report.tables import ABSENT, Layout, protocol
from contrasent.report.transfer import transfer_protocol
from contrasent.reproduce.results import TableRow
from contrasent.reproduce.tables import RowResult

Cells = Sequence[str]


def markdown_table(headings: Cells, rows: Sequence[Cells], left: int = 1) -> str:
    """A table in GitHub's Markdown.

    Args:
        headings: of the columns.
        rows: cells of each row.
        left: how many of the first columns are aligned to the left, the others to the right.
    """
    rules = [":---" if number < left else "---:" for number in range(len(headings))]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in (headings, rules, *rows))


def number(value: float | None, digits: int = 2, sign: str = "") -> str:
    """Such as ``71.30``; a dash for nothing."""
    return ABSENT if value is None else f"{value:{sign}.{digits}f}"


def difference(value: float | None, other: float | None) -> str:
    """``value`` less ``other``, with its sign; a dash if one is missing."""
    return ABSENT if value is None or other is None else number(value - other, sign="+")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


FIGURE = "alignment-uniformity"
_GROUPS = {False: "Unsupervised", True: "Supervised"}


def page(outcome: RowResult, lines: Sequence[TableRow], *, figure: bool) -> str:
    """The whole page.

    Args:
        outcome: what was asked for and done.
        lines: the rows.
        figure: whether the plane of alignment and uniformity lies beside the page.
    """
    sts, transfer = tasks_of(lines)
    parts = [f"# {outcome.plan.title}\n", _about(outcome, lines)]
    if sts:
        parts += ["## STS\n", sts_table(lines, sts), _said(_sts_protocol(lines, sts))]
    if transfer:
        parts += ["## Transfer\n", transfer_table(lines, transfer)]
        names = [TaskName(task) for task in transfer]
        parts.append(_said(_without_encoders(transfer_protocol(_records(lines), names))))
    if figure:
        parts += ["## Alignment and uniformity\n", f"![alignment and uniformity]({FIGURE}.png)\n"]
    parts += ["## How the rows were made\n", making(lines), "## Sources\n", _sources(lines)]
    return "\n".join(parts)


def tasks_of(lines: Sequence[TableRow]) -> tuple[list[str], list[str]]:
    """The STS and the transfer tasks of which a row has a number."""

    def scored(tasks: Sequence[str]) -> list[str]:
        return [t for t in tasks if any(line.value(t) is not None for line in lines)]

    return scored(STS), scored(TRANSFER)


def sts_table(lines: Sequence[TableRow], tasks: Sequence[str]) -> str:
    """Correlations x 100 and geometry, with the published averages and the differences."""
    headings = [TaskName(task).heading for task in tasks]

    def cells(line: TableRow) -> list[str]:
        ours, theirs = line.average(tasks), line.published_average(tasks, "sts")
        place = line.geometry
        return [
            *(number(line.value(task)) for task in tasks),
            number(ours),
            number(theirs),
            number(line.published_average(tasks, "study")),
            difference(ours, theirs),
            number(place.value("alignment") if place else None, 3),
            number(place.value("uniformity") if place else None, 3),
        ]

    more = ["Avg.", "published", "study", "difference", "alignment", "uniformity"]
    return _grouped(lines, [*headings, *more], cells)


def transfer_table(lines: Sequence[TableRow], tasks: Sequence[str]) -> str:
    """Accuracies x 100, each beside the published one."""
    headings = [h for t in tasks for h in (TaskName(t).heading, "published")]

    def cells(line: TableRow) -> list[str]:
        ours, theirs = line.average(tasks), line.published_average(tasks, "transfer")
        pairs = [(line.value(task), line.published_value(task)) for task in tasks]
        each = [number(value) for pair in pairs for value in pair]
        return [*each, number(ours), number(theirs), difference(ours, theirs)]

    return _grouped(lines, [*headings, "Avg.", "published", "difference"], cells)


def _grouped(
    lines: Sequence[TableRow], headings: Sequence[str], cells: Callable[[TableRow], list[str]]
) -> str:
    rows: list[list[str]] = []
    for supervised, title in _GROUPS.items():
        members = [line for line in lines if line.row.supervised == supervised]
        if members:
            rows.append([f"**{title}**", *("" for _ in headings)])
        rows += [[_label(line), *cells(line)] for line in members]
    return markdown_table(["", *headings], rows)


def _label(line: TableRow) -> str:
    return f"{line.row.label} (published)" if line.row.make == "cited" else line.row.label


def _about(outcome: RowResult, lines: Sequence[TableRow]) -> str:
    scale = outcome.scale
    made = [line.run for line in lines if line.run]
    total = sum(sum(run["seconds"].values()) for run in made)
    busy = sum(sum(run["cpu_seconds"].values()) for run in made)
    said = [
        f"Scale `{outcome.scale_name}`: {scale.about}. {len(made)} rows were made and scored in "
        f"{total / 60:.0f} minutes, added up over the rows, and {busy / 60:.0f} minutes of "
        f"processor time{_machine(made)}.\n"
    ]
    if scale.short:
        said.append(
            "These are short runs of a small encoder: they show that every system is there, and "
            "how they compare on equal terms; they are no reproduction of the published numbers, "
            "which are of BERT-base unless a note says otherwise.\n"
        )
    brought = [
        f"* `{name}`: {it.source.rpartition('/')[2]}"
        + (f", the first {it.lines:,} lines" if it.lines else "")
        + f" (sha256 {it.sha256[:16]})\n"
        for name, it in outcome.materials.items()
    ]
    return "\n".join(said) + "\nMaterials:\n\n" + "".join(brought)


def _machine(runs: Sequence[Mapping[str, Any]]) -> str:
    if not runs:
        return ""
    found = runs[0]["environment"]
    threads = sorted({run["environment"]["threads"] for run in runs})
    versions = found["versions"]
    return (
        f" (threads of a row: {', '.join(map(str, threads))}; {found['cpu']}; torch "
        f"{versions['torch']}; contrasent {versions['contrasent']})"
    )


def _records(lines: Sequence[TableRow]) -> dict[str, list[Record]]:
    return {line.row.label: list(line.records) for line in lines if line.records}


def _sts_protocol(lines: Sequence[TableRow], tasks: Sequence[str]) -> list[str]:
    said = protocol(_records(lines), Layout(tasks=[TaskName(task) for task in tasks]))
    places = [line.geometry for line in lines if line.geometry]
    if places:
        close = places[0].records[0]
        said.append(
            f"Alignment over the {close.pairs:,} pairs of {places[0].heading} rated "
            f"{close.subset}, uniformity over its {places[0].sentences:,} distinct sentences."
        )
    return [*_without_encoders(said), "Difference: our average less the published one."]


def _without_encoders(said: Sequence[str]) -> list[str]:
    """Without what is told of every encoder, which stands under how the rows were made."""
    return [line for line in said if ": pooler " not in line]


def _said(lines: Sequence[str]) -> str:
    return " ".join(lines) + "\n"


def making(lines: Sequence[TableRow]) -> str:
    """How every row was made, with which settings, in how many seconds, and what is to be noted."""
    rows = [
        [line.row.label, _made(line), _how(line), _seconds(line), _noted(line)] for line in lines
    ]
    return markdown_table(["", "made", "settings", "seconds", "note"], rows, left=5)


def _made(line: TableRow) -> str:
    row = line.row
    of = f" of {row.of}" if row.of else ""
    on = f" on {row.data}" if row.data else ""
    what = f"`train {row.recipe}`" if row.make == "train" else row.make
    return f"{what}{of}{on}"


def _how(line: TableRow) -> str:
    if not line.run:
        return ""
    first = next(iter(line.records), None)
    used = [f"pooler {first.pooler}", first.precision] if first else []
    recipe = line.run["recipe"]
    if not recipe:
        return ", ".join(used)
    train = recipe["train"]
    steps = f"{train['max_steps']} steps" if train["max_steps"] else f"{train['epochs']} epochs"
    made = [steps, f"batch {train['batch_size']}", f"rate {train['learning_rate']:g}"]
    return ", ".join([*made, f"seed {train['seed']}", *used])


def _seconds(line: TableRow) -> str:
    if not line.run:
        return ""
    spent = line.run["seconds"]
    return f"{spent['make']:.0f} + {spent['score']:.0f}"


def _noted(line: TableRow) -> str:
    problems = [_without_text(said) for said in line.run["problems"]] if line.run else []
    return "; ".join(dict.fromkeys(it for it in (line.row.note, line.missing, *problems) if it))


def _without_text(problem: str) -> str:
    """What is wrong with which task, without a sentence of it, whose licence may forbid that."""
    told = problem.partition("; the first is ")[0]
    return told.partition(": ")[2] or told


def _sources(lines: Sequence[TableRow]) -> str:
    cited = [(line.row.label, "; ".join(_cited(line))) for line in lines if line.published]
    return "".join(f"* {label}: {said}.\n" for label, said in cited)


def _cited(line: TableRow) -> Iterator[str]:
    for what, found in line.published.items():
        name = {"sts": "STS", "transfer": "transfer", "study": "study"}[what]
        yield f"{name} from {found.source}, row {found.row!r} ({found.note})"


def write_table(
    outcome: RowResult, lines: Sequence[TableRow], name: str, output: Path
) -> list[Path]:
    """Write ``NAME.md``, ``NAME.csv``, records, geometry and the figure, each whole or not at all.

    Returns:
        The files.
    """
    drawn = _plane(lines)
    made = {
        output / f"{name}.md": page(outcome, lines, figure=drawn is not None),
        output / f"{name}.csv": _numbers(lines),
    }
    for path, text in made.items():
        write_text(path, text)
    records, geometry = output / "records.jsonl", output / "geometry.jsonl"
    write_records(records, [record for line in lines for record in line.records])
    write_geometry(geometry, [line.geometry for line in lines if line.geometry])
    pictures = write_pictures(output, [drawn]) if drawn else []
    return [*made, records, geometry, *pictures]


def _plane(lines: Sequence[TableRow]) -> Picture | None:
    """SimCSE's Figure 3 of the rows: colour is the average over the STS tasks that were scored."""
    found = {line.row.label: line for line in lines if line.geometry}
    if not found:
        return None
    sts, _ = tasks_of(lines)
    averages = {label: line.average(sts) for label, line in found.items()}
    colours = {label: value / 100 for label, value in averages.items() if value is not None}
    title = "STS Avg." if set(sts) == set(STS) else f"Avg. of {', '.join(sts)}"
    places = {label: line.geometry for label, line in found.items() if line.geometry}
    return plane(places, Colours(title, colours), size=(9.0, 6.4))


def _numbers(lines: Sequence[TableRow]) -> str:
    """Every number in full precision, one a line."""
    sts, transfer = tasks_of(lines)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["row", "label", "column", "ours", "published", "difference"])
    for line in lines:
        cells = {task: (line.value(task), line.published_value(task)) for task in (*sts, *transfer)}
        for of, tasks in (("sts", sts), ("transfer", transfer)):
            if tasks:
                theirs = line.published_average(tasks, of)
                cells[f"{of} average"] = line.average(tasks), theirs
        place = line.geometry
        for metric in ("alignment", "uniformity"):
            cells[metric] = place.value(metric) if place else None, None
        for column, (ours, theirs) in cells.items():
            less = None if ours is None or theirs is None else ours - theirs
            if ours is not None or theirs is not None:
                shown = ["" if it is None else repr(it) for it in (ours, theirs, less)]
                writer.writerow([line.name, line.row.label, column, *shown])
    return buffer.getvalue()
