"""The files of a table: page, numbers, records and figure."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from contrasent.evaluate.saved_geometry import write_geometry
from contrasent.evaluate.tasks import STS
from contrasent.files import write_text
from contrasent.records import write_records
from contrasent.report.figures.canvas import Picture, write_pictures
from contrasent.report.figures.plane import Colours, plane
from contrasent.reproduce.document import page, tasks_of
from contrasent.reproduce.results import Line
from contrasent.reproduce.run import Outcome


def write_table(outcome: Outcome, lines: Sequence[Line], name: str, output: Path) -> list[Path]:
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


def _plane(lines: Sequence[Line]) -> Picture | None:
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


def _numbers(lines: Sequence[Line]) -> str:
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
