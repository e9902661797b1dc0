"""The outcome of a reproduction: tables made from jobs; their Markdown, CSV, figures and page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from contrasent.data.senteval import senteval_root
from contrasent.errors import pick
from contrasent.evaluation.geometry import Geometry
from contrasent.files import exclusive, remove_folder, write_text
from contrasent.report.figures.curves import densities, spectra, trajectories
from contrasent.report.figures.plane import plane
from contrasent.report.figures.style import Colours, Picture, inline_svg, write_pictures
from contrasent.report.html.page import render
from contrasent.report.table import Table, text_table
from contrasent.reproduce import smoke
from contrasent.reproduce.cells import FilledTable, Filler, short_reason
from contrasent.reproduce.jobs import TEACHERS, Planner, Store
from contrasent.reproduce.materials import PAPER, SMOKE, Materials
from contrasent.reproduce.measures import geometry_of, measure_of
from contrasent.reproduce.papers import (
    ALL,
    PaperTable,
    System,
    chosen_tables,
    load_scales,
    load_tables,
    packaged,
    system_row,
)
from contrasent.reproduce.request import FolderRequest, PaperRequest, absolute
from contrasent.reproduce.runner import Notify, duration, plan_work, run_work, seconds_left
from contrasent.reproduce.verdicts import Verdict, verdict_table

_PANELS = ("Unsupervised", "Supervised")


def open_filler(request: PaperRequest, output: Path, *, download: bool = False) -> Filler:
    """What fills tables from what is in a folder; models are downloaded only to make jobs.

    Raises:
        ConfigError: a material is of another name.
        ContrasentError: a file or folder that was named is not there.
    """
    pick("scale", request.scale, load_scales()[1])
    for name in request.given:
        pick("material", name, known_models())
    # A run that was cut off goes on only with the paths that it began with.
    output, data_dir = output.resolve(), request.data_dir and absolute(request.data_dir)
    made = output / "materials"
    if request.scale == SMOKE and data_dir is None:
        data_dir = str(smoke.make_tasks(made / "senteval"))
    else:
        data_dir = str(senteval_root(data_dir).resolve())
    given = {name: absolute(path) for name, path in request.given.items()}
    materials = Materials(request.scale, given, made, download=download)
    materials.check()
    planner = Planner(request.scale, materials, data_dir, request.device)
    return Filler(planner, Store(output), request.seeds)


def reproduce_tables(
    request: PaperRequest,
    tables: Sequence[PaperTable],
    output: Path,
    notify: Notify,
    *,
    overwrite: bool = False,
) -> list[FilledTable]:
    """Make what is missing for tables, and write them.

    Args:
        request: at what scale, with what.
        tables: to make.
        output: the folder; jobs that are done in it are left as they are.
        notify: takes a line on every job.
        overwrite: make the jobs of these tables again, and what they are made from; what other
            tables measured of them goes too.

    Raises:
        ConfigError: another process writes to the folder; or it has a table of another scale.
        DataError: a folder was named for SentEval's data, and it is not there.
    """
    with exclusive(output):
        asked = FolderRequest.read(output).extended(request, tables)
        filler = open_filler(request, output, download=True)
        asked.write(output)
        wanted = list(filler.measurements(tables))
        if overwrite:
            for job in {job.key: job for it in wanted for job in it.job.chain()}.values():
                remove_folder(filler.store.folder(job))
        planner = filler.planner
        common = {
            "scale": request.scale,
            "data_dir": planner.data_dir,
            "preset": planner.scale.preset,
            "device": request.device,
        }
        work = plan_work(wanted, filler.store, common)
        cost = seconds_left(work, planner.scale.seconds) / request.jobs
        done = len({it.job.key for it in wanted}) - len({it.job.key for it in work})
        notify(f"{len(work)} jobs to do, {max(0, done)} done: about {duration(cost)}")
        run_work(work, request.jobs, planner.scale.seconds, notify)
        everything = Filler(planner, filler.store, asked.seeds)
        for table in tables:
            filled = everything.table(asked.part(table.name))
            picture = figure(everything, filled)
            write_text(output / f"{filled.name}.md", document(filled, drawn=picture is not None))
            write_text(output / f"{filled.name}.csv", filled.numbers())
            if picture:
                write_pictures(output, [picture])
        return [filler.table(table) for table in tables]


def verdicts_document(judged: Sequence[Verdict], scale: str) -> str:
    """Verdicts as Markdown."""
    table = verdict_table(judged, scale)
    notes = "".join(f"\n{note}\n" for note in table.notes)
    return f"# {table.title}\n\n{table.markdown()}{notes}"


def failures(filled: Sequence[FilledTable]) -> list[str]:
    """What was tried and failed, each reason once."""
    known = {
        cell.reason: f"  {table.table.name} {row.row.label}: {cell.reason}"
        for table in filled
        for row in table.rows
        for cell in row.cells.values()
        if cell.failed
    }
    return list(known.values())


def write_page(
    path: Path, filler: Filler, tables: Sequence[PaperTable], judged: Sequence[Verdict]
) -> None:
    """Write tables, figures and verdicts as one page, whole or not at all."""
    write_text(path, html(filler, [filler.table(table) for table in tables], judged))


def document(filled: FilledTable, *, drawn: bool = False) -> str:
    """A table as a Markdown page, with its figure if that is ``drawn`` beside it."""
    table = filled.shown()
    image = f"\n![{filled.heading}]({filled.name}.svg)\n" if drawn else ""
    notes = "".join(f"\n{note}\n" for note in (_about(filled), *table.notes))
    return f"# {filled.heading}\n\n{table.markdown()}{notes}{image}"


def _about(filled: FilledTable) -> str:
    scale = load_scales()[1][filled.scale]
    seeds = f"Seed {filled.seeds[0]}"
    if len(filled.seeds) > 1:
        seeds = f"Seeds {', '.join(map(str, filled.seeds))}; ± is the standard deviation over them"
    return f"Scale {filled.scale}: {scale.about}. {seeds}. Differences are ours less published."


def listing(request: PaperRequest, tables: Sequence[PaperTable], output: Path) -> Table:
    """Every table: its rows, what is done in a folder and what it costs; notes say what it needs.

    The last row is of all of them, which share runs.
    """
    filler = open_filler(request, output)
    common = {"scale": request.scale, "data_dir": None, "preset": "", "device": None}

    def cost(of: Sequence[PaperTable]) -> str:
        work = plan_work(filler.measurements(of), filler.store, common)
        return duration(seconds_left(work, filler.planner.scale.seconds)) if work else "-"

    rows, notes, done = [], list[str](), 0
    for table in tables:
        cells = [filler.cell(table, row, of) for row in table.rows for of in table.columns_of(row)]
        filled = sum(bool(cell.ours or cell.text) and not cell.reason for cell in cells)
        failed = sum(cell.failed for cell in cells)
        needs = dict.fromkeys(
            part.removeprefix("needs ")
            for cell in cells
            if cell.is_out_of_reach
            for part in short_reason(cell.reason).split("; ")
        )
        counts = (
            str(len(table.rows)),
            f"{filled} of {len(cells)}" + (f", {failed} failed" if failed else ""),
            cost([table]),
        )
        rows.append((table.name, table.title, *counts))
        if needs:
            notes.append(f"{table.name} needs {'; '.join(needs)}")
        done += filled
    has_tasks = senteval_root(filler.planner.data_dir).is_dir()
    if not has_tasks:
        notes.append("all need SentEval's data: 'contrasent data fetch', or --data-dir")
    rows.append(("all of these", "", "", f"{done} filled", cost(tables)))
    headings = ("table", "title", "rows", "cells done", "cost")
    listed = text_table(headings, rows, "tables", f"Tables and figures (scale {request.scale})")
    return replace(listed, notes=tuple(notes))


def figure(filler: Filler, filled: FilledTable) -> Picture | None:
    """What a figure shows of the first seed; None for a table, and where nothing was measured."""
    table = filled.table
    if not table.figure:
        return None
    column = next((it for it in table.columns if _is_drawn(it.value)), None)
    if column is None:  # --tasks left it out
        return None
    plans = {row.label: filler.plan(row, column)[0] for row in table.rows}
    chosen = {label: of_seeds[0][0] for label, of_seeds in plans.items() if of_seeds}
    if table.figure == "trajectories":
        runs = {label: filler.trajectory(it) for label, it in chosen.items()}
        drawn = {label: run for label, run in runs.items() if run is not None}
        return replace(trajectories(drawn), name=filled.name) if drawn else None
    places = {
        label: geometry_of(filler.store.path(it))
        for label, it in chosen.items()
        if filler.store.result(it) is not None
    }
    if not places:
        return None
    if table.figure == "plane":
        averages = {r.row.label: r.cells["Avg"].mean for r in filled.rows if "Avg" in r.cells}
        colours = {k: v / 100 for k, v in averages.items() if k in places and v is not None}
        picture = plane(places, Colours("STS Avg.", colours), size=(9.0, 6.4))
    else:
        draw: Callable[[Mapping[str, Mapping[str, Geometry]]], Picture]
        draw = spectra if table.figure == "spectra" else densities
        picture = draw(_panels(table, places))
    return replace(picture, name=filled.name)


def _is_drawn(value: str) -> bool:
    return value.startswith("trace:") or measure_of(value).startswith("geometry:")


def _panels(table: PaperTable, places: Mapping[str, Geometry]) -> dict[str, dict[str, Geometry]]:
    if not table.panels:
        return {"": dict(places)}
    every = load_tables()[table.name].rows
    order = {row.label: _PANELS[k // table.panels] for k, row in enumerate(every)}
    panels: dict[str, dict[str, Geometry]] = {}
    for label, geometry in places.items():
        panels.setdefault(order[label], {})[label] = geometry
    return panels


def html(filler: Filler, filled: Sequence[FilledTable], judged: Sequence[Verdict]) -> str:
    """Tables, verdicts and figures as one page that loads nothing."""
    parts: list[dict[str, Any]] = []
    for table in filled:
        drawn = figure(filler, table)
        name = table.name.replace(".", "-")
        svg = inline_svg(drawn, f"{name}-", table.heading) if drawn else ""
        shown = replace(table.shown(), name=name, title=table.heading)
        parts.append({"table": shown, "svg": svg, "short": table.table.name})
    scale = filler.planner.scale_name
    claims = verdict_table(judged, scale)
    cells = [cell for table in filled for row in table.rows for cell in row.cells.values()]
    made = sum(bool(cell.ours or cell.text) for cell in cells)
    about = f"{_about(filled[0])} {made:,} of {len(cells):,} cells are filled." if filled else ""
    return render(
        "reproduction.html",
        heading=f"Reproduction at scale {scale}",
        about=about,
        parts=parts,
        claims=claims,
        judged=judged,
    )


def models_of(tables: Iterable[PaperTable]) -> list[str]:
    """The ids of the models that tables start from or generate with, each once."""
    found: dict[str, None] = {}
    for table in tables:
        rows = [row.system(PAPER) for row in table.rows]
        teachers = [system_row(name).system(PAPER) for it in rows for name in it.teachers]
        for system in (*rows, *teachers):
            if system.recipe:
                recipe = packaged(system.recipe)
                usual = recipe.objective.get("generator")
                generator = system.settings.get("objective.generator", usual)
                found |= {system.start or recipe.encoder.name: None}
                found |= {str(generator): None} if generator else {}
            elif system.start:
                found[system.start] = None
    return list(found)


def known_models() -> list[str]:
    """The names that materials may have: those of the plan, and ids of models."""
    return [*load_scales()[0], *models_of(load_tables().values())]


def command_of(system: System) -> str:
    """What ``contrasent train`` takes to make a row, or what else makes it."""
    teachers = zip(TEACHERS, system.teachers, strict=False)
    settings = {f"objective.{key}": it.upper() for key, it in teachers} | system.settings
    if system.head:
        settings |= {"objective.keep_head": True}
    if system.trace:
        settings |= {**load_scales()[1][PAPER].trace, "evaluation.geometry_pairs": "'stsb>4'"}
    scored = f", scored with `--head {system.head}`" if system.head else ""
    options = "".join(f" --{key} {_shown(value)}" for key, value in settings.items())
    above = command_of(system_row(system.of).system(PAPER)) if system.of else ""
    start = f" --encoder {system.start}" if system.start and system.recipe else ""
    made = f", from the run of {above}" if system.of else ""
    return {
        "train": f"`train {system.recipe}{start}{options}`{made}{scored}",
        "start": (above or f"{system.start} as it is")
        + (f", pooler `{system.pooler}`" if system.pooler else ""),
        "data": f"the data {system.data}",
        "cited": "published only",
    }.get(system.make, f"`fit {system.make}` of {system.of}")


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def plan_lines(names: Sequence[str] = ()) -> Iterator[str]:
    """Lines of Markdown: how every row of tables is made at scale paper."""
    if not names:
        materials, _ = load_scales()
        yield from ("## Data", "", "| data | is |", "|---|---|")
        yield from (f"| {name} | {it.about} |" for name, it in materials.items())
        yield from ("", "`sample:` before a name: 134,000 of its rows, drawn; of a text the first.")
        yield "`target`: the text of the task that is scored, without its scores."
    for table in chosen_tables(names or [ALL]):
        yield from ("", f"## `{table.name}` {table.heading}", "")
        if table.note:
            yield from (f"{table.note[0].upper()}{table.note[1:]}.", "")
        for heading, recipe, other in table.swapped_recipes:
            yield from (f"For {heading}, `{other}` in place of `{recipe}`.", "")
        yield from ("| row | made by | data | note |", "|---|---|---|---|")
        for row in table.rows:
            system = row.system("paper")
            source = system if system.data or not system.of else system_row(system.of).system(PAPER)
            data = "" if system.make == "data" else source.data
            yield f"| {row.label} | {command_of(system)} | {data} | {system.note} |"
