"""The outcome of a reproduction: tables made from jobs; their Markdown, CSV and figures."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from contrasent.data import senteval
from contrasent.errors import ConfigError, pick
from contrasent.evaluation import Geometry, read_geometry, read_trajectory
from contrasent.files import exclusive, read_json, remove_folder, write_json, write_text
from contrasent.recipe import validate
from contrasent.report import FIGURES, FigureData, Picture, Table, text_table, write_pictures
from contrasent.reproduce import papers
from contrasent.reproduce.cells import FilledTable, Filler, short_reason, write_records
from contrasent.reproduce.jobs import TEACHERS, Job, Planner, Store, plan_work, run_work
from contrasent.reproduce.materials import Materials, task_folder
from contrasent.reproduce.papers import PAPER, PaperTable, System, load_scales, load_tables
from contrasent.reproduce.verdicts import verdict_table, verdicts

_REQUEST = "request.json"
_PANELS = ("Unsupervised", "Supervised")


@dataclass(frozen=True, slots=True)
class PaperRequest:
    """What tables are reproduced with; in a folder what its commands asked for, taken together.

    A command that asks for some rows leaves the others in the files of its table, and one that
    makes nothing, such as ``list``, needs not be given the materials again.
    """

    scale: str = "small"  # or ``smoke``, ``paper``
    # files, folders and ids by material, or by the id of a model
    given: Mapping[str, str] = field(default_factory=dict)
    seeds: tuple[int, ...] = ()  # of the training runs; every cell is their mean
    data_dir: str | None = None  # SentEval's folder
    # of a folder: labels of rows and headings of columns that were asked for, by table
    tables: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    device: str | None = None  # what computes; None takes the accelerator if there is one

    @classmethod
    def read(cls, output: Path) -> Self:
        """Records of a folder; none of a new one."""
        path = output / _REQUEST
        return validate(cls, read_json(path) if path.is_file() else {}, str(path))

    def followed_by(self, scale: str | None, request: Self) -> Self:
        """A request, in which what is not given is as before; of another scale nothing is."""
        if scale is not None and scale != self.scale:
            return replace(request, scale=scale)
        return replace(
            request,
            scale=self.scale,
            given={**self.given, **request.given},
            data_dir=request.data_dir or self.data_dir,
            device=request.device or self.device,
        )

    def extended(self, request: "PaperRequest", tables: Iterable[PaperTable]) -> "PaperRequest":
        """With a further request; ConfigError if it is of another scale."""
        if self.tables and request.scale != self.scale:
            other = f"name another --output for {request.scale}"
            raise ConfigError(f"the folder's tables are of scale {self.scale}; {other}")
        parts = dict(self.tables)
        for table in tables:
            before = parts.get(table.name, {})
            asked = {
                "rows": [*before.get("rows", ()), *(it.label for it in table.rows)],
                "columns": [*before.get("columns", ()), *(it.heading for it in table.columns)],
            }
            parts[table.name] = {key: tuple(dict.fromkeys(it)) for key, it in asked.items()}
        return replace(
            request,
            seeds=tuple(sorted({*self.seeds, *request.seeds})),
            given={name: _absolute(path) for name, path in request.given.items()},
            data_dir=request.data_dir and _absolute(request.data_dir),
            tables=parts,
        )

    def part(self, name: str) -> PaperTable:
        """The rows and columns of a table that were asked for, in its order."""
        table, part = load_tables()[name], self.tables[name]
        rows = tuple(row for row in table.rows if row.label in part["rows"])
        columns = tuple(it for it in table.columns if it.heading in part["columns"])
        return replace(table, rows=rows, columns=columns)


def _absolute(path: str) -> str:
    place = Path(path).expanduser()
    return str(place.resolve()) if place.exists() else path


def open_filler(request: PaperRequest, output: Path, *, download: bool = False) -> Filler:
    """What fills tables from what is in a folder; models are downloaded only to make jobs."""
    pick("scale", request.scale, load_scales()[1])
    for name in request.given:
        pick("material", name, known_models())
    # A run that was cut off goes on only with the paths that it began with.
    output, data_dir = output.resolve(), request.data_dir and _absolute(request.data_dir)
    folder = task_folder(request.scale, data_dir)
    data_dir = str(senteval.senteval_root(folder).resolve())
    given = {name: _absolute(path) for name, path in request.given.items()}
    materials = Materials(request.scale, given, output / "materials", download=download)
    store = Store(output, request.scale, data_dir, request.device)
    return Filler(Planner(materials, store), store, request.seeds)


def reproduce_tables(
    request: PaperRequest,
    tables: Sequence[PaperTable],
    output: Path,
    notify: Callable[[str], None],
    *,
    jobs: int = 1,
    overwrite: bool = False,
) -> list[FilledTable]:
    """Make what is missing for tables, ``jobs`` at once, and write them into a folder.

    With ``overwrite``, the jobs of these tables are made again, and what they are made from; what
    other tables measured of them goes too. ``notify`` takes a line on every job.
    """
    with exclusive(output):
        asked = PaperRequest.read(output).extended(request, tables)
        filler = open_filler(request, output, download=True)
        write_json(output / _REQUEST, asdict(asked), indent=1)
        store = filler.store
        wanted = list(filler.measurements(tables))
        if overwrite:
            for job in {job.key: job for it in wanted for job in it.job.chain()}.values():
                remove_folder(store.folder(job))
        work = plan_work(wanted, store)
        done = len({it.job.key for it in wanted}) - len({it.job.key for it in work})
        notify(f"{len(work)} jobs to do, {max(0, done)} done")
        run_work(work, jobs, notify)
        everything = Filler(filler.planner, store, asked.seeds)
        for table in tables:
            filled = everything.table(asked.part(table.name))
            picture = figure(everything, filled)
            write_text(output / f"{filled.name}.md", document(filled, drawn=picture is not None))
            filled.write_numbers(output / f"{filled.name}.csv")
            write_records(output / f"{filled.name}.parquet", filled)
            write_pictures(output, [picture] if picture else [])
        return [filler.table(table) for table in tables]


def failures(filled: Sequence[FilledTable]) -> list[str]:
    """What was tried and failed, each reason once."""
    known = {
        cell.reason: f"  {table.table.name} {row.label}: {cell.reason}"
        for table in filled
        for row in table.rows
        for cell in row.cells.values()
        if cell.failed
    }
    return list(known.values())


def document(filled: FilledTable, *, drawn: bool = False) -> str:
    """A table as a Markdown page, with its figure if that is ``drawn`` beside it."""
    table, scale = filled.shown(), load_scales()[1][filled.scale]
    seeds = f"Seed {filled.seeds[0]}"
    if len(filled.seeds) > 1:
        seeds = f"Seeds {', '.join(map(str, filled.seeds))}; ± is the standard deviation over them"
    about = f"Scale {filled.scale}: {scale.about}. {seeds}. Differences are ours less published."
    image = f"\n![{filled.heading}]({filled.name}.svg)\n" if drawn else ""
    return _markdown(replace(table, notes=(about, *table.notes))) + image


def fill_tables(
    request: PaperRequest, tables: Sequence[PaperTable], output: Path
) -> list[FilledTable]:
    """Tables, all their rows, with what is in a folder."""
    filler, known = open_filler(request, output), load_tables()
    return [filler.table(known[table.name]) for table in tables]


def verdicts_document(tables: Sequence[FilledTable]) -> str:
    """Verdicts on the claims about tables of one scale, as Markdown."""
    return _markdown(verdict_table(verdicts(tables), tables[0].scale))


def _markdown(table: Table) -> str:
    notes = "".join(f"\n{note}\n" for note in table.notes)
    return f"# {table.title}\n\n{table.markdown()}{notes}"


def listing(request: PaperRequest, tables: Sequence[PaperTable], output: Path) -> Table:
    """Every table: its rows, and what is done in a folder; notes say what it needs."""
    filler = open_filler(request, output)
    rows, notes = [], list[str]()
    for table in tables:
        cells = filler.table(table).cells
        filled = sum(bool(cell.ours or cell.text) and not cell.reason for cell in cells)
        failed = sum(cell.failed for cell in cells)
        needs = dict.fromkeys(
            part.removeprefix("needs ")
            for cell in cells
            if cell.reason.startswith("needs ")
            for part in short_reason(cell.reason).split("; ")
        )
        of = f"{filled} of {len(cells)}" + (f", {failed} failed" if failed else "")
        rows.append((table.name, table.title, str(len(table.rows)), of))
        notes += [f"{table.name} needs {'; '.join(needs)}"] if needs else []
    if not senteval.senteval_root(filler.store.data_dir).is_dir():
        notes.append("all need SentEval's data: 'contrasent data fetch', or --data-dir")
    title = f"Tables and figures (scale {request.scale})"
    listed = text_table(("table", "title", "rows", "cells done"), rows, title=title)
    return replace(listed, notes=tuple(notes))


def figure(filler: Filler, filled: FilledTable) -> Picture | None:
    """What a figure shows of the first seed; None for a table, and where nothing was measured."""
    table, store = filled.table, filler.store
    column = next((it for it in table.columns if it.is_of_geometry), None)
    if not table.figure or column is None:  # --tasks left it out
        return None
    plans = {row.label: filler.plan(row, column)[0] for row in table.rows}
    chosen = {label: of_seeds[0][0] for label, of_seeds in plans.items() if of_seeds}
    kind = next(it for it in FIGURES if it.name == table.figure)
    if kind.of_runs:
        runs = dict[str, tuple[str, Job]]()  # rows of one run are drawn once
        for label, it in chosen.items():
            runs.setdefault(it.job.run.key, (label, it.job.run))
        trained = {k: job for k, job in runs.values() if job.kind == "train"}
        paths = {k: store.folder(job) / "run" for k, job in trained.items() if store.is_made(job)}
        data = FigureData(runs={k: read_trajectory(path) for k, path in paths.items()})
    else:
        paths = {k: store.path(it, ".jsonl") for k, it in chosen.items() if store.result(it)}
        places = {k: read_geometry(path)[0] for k, path in paths.items()}
        averages = {row.label: row.cells["Avg"].mean for row in filled.rows if "Avg" in row.cells}
        colours = {k: v / 100 for k, v in averages.items() if k in places and v is not None}
        panels: dict[str, dict[str, Geometry]] = {}
        for number, row in enumerate(load_tables()[table.name].rows):
            title = _PANELS[number // table.panels] if table.panels else ""
            if row.label in places:
                panels.setdefault(title, {})[row.label] = places[row.label]
        data = FigureData(places, panels, title="STS Avg.", colours=colours)
    return replace(kind.draw(data), name=filled.name) if paths else None


def known_models() -> list[str]:
    """The names that materials may have: those of the plan, and ids of models."""
    names: list[Any] = [*load_scales()[0]]
    for system in (row.system(PAPER) for table in load_tables().values() for row in table.rows):
        names += [system.start, system.settings.get("objective.generator")]
        if system.recipe:
            recipe = papers.packaged(system.recipe)
            names += [recipe.encoder.name, recipe.objective.get("generator")]
    return list(dict.fromkeys(filter(None, names)))


def _command_of(system: System) -> str:
    teachers = zip(TEACHERS, system.teachers, strict=False)
    settings = {f"objective.{key}": it.upper() for key, it in teachers} | system.settings
    if system.head:
        settings |= {"objective.keep_head": True}
    if system.trace:
        settings |= {**load_scales()[1][PAPER].trace, "evaluation.geometry_pairs": "'stsb>4'"}
    scored = f", scored with `--head {system.head}`" if system.head else ""
    shown = {k: str(it).lower() if isinstance(it, bool) else str(it) for k, it in settings.items()}
    options = "".join(f" --{key} {value}" for key, value in shown.items())
    above = _command_of(papers.system_row(system.of).system(PAPER)) if system.of else ""
    if system.make == "train":
        start = f" --encoder {system.start}" if system.start else ""
        origin = f", from the run of {above}" if above else ""
        last = ", its last step" if system.step == "last" else ""
        return f"`train {system.recipe}{start}{options}`{origin}{scored}{last}"
    if system.make == "start":
        pooler = f", pooler `{system.pooler}`" if system.pooler else ""
        return f"{above or f'{system.start} as it is'}{pooler}"
    other = {"data": f"the data {system.data}", "cited": "published only"}
    return other.get(system.make, f"`fit {system.make}` of {system.of}")


def plan_lines(names: Sequence[str] = ()) -> Iterator[str]:
    """Lines of Markdown: how every row of tables is made at scale paper."""
    if not names:
        materials, _ = load_scales()
        yield from ("## Data", "", "| data | is |", "|---|---|")
        yield from (f"| {name} | {it.about} |" for name, it in materials.items())
        yield from ("", "`sample:` before a name: 134,000 of its rows, drawn; of a text the first.")
        yield "`target`: the text of the task that is scored, without its scores."
    for table in papers.choose(names):
        yield from ("", f"## `{table.name}` {table.heading}", "")
        if table.note:
            yield from (table.note, "")
        for column in table.columns:
            for recipe, other in column.recipes.items():
                yield from (f"For {column.heading}, `{other}` in place of `{recipe}`.", "")
        yield from ("| row | made by | data | note |", "|---|---|---|---|")
        for row in table.rows:
            system = row.system(PAPER)
            source = system
            if system.of and not system.data:
                source = papers.system_row(system.of).system(PAPER)
            data = "" if system.make == "data" else source.data
            yield f"| {row.label} | {_command_of(system)} | {data} | {system.note} |"
