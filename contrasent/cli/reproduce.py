"""``contrasent reproduce``, ``quickstart`` and ``mteb``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import PositiveInt

from contrasent.cli.parameters import (
    command,
    for_each,
    labels,
    load,
    raise_failures,
    require,
    resumable,
    with_command,
    write_lines,
)
from contrasent.files import refuse_existing_file
from contrasent.options import AsJsonLines, DataFolder, Listed, Measuring, OnDevice, Seeds
from contrasent.settings import Spelling, settings

if TYPE_CHECKING:
    from contrasent.evaluation.embed import Scores
    from contrasent.reproduce.outcome import PaperRequest
    from contrasent.reproduce.papers import PaperTable


@settings
class QuickstartOptions(OnDevice):
    """Options of ``quickstart``."""

    output: Path = Path("quickstart")
    """The folder to write."""

    overwrite: bool = False
    """Replace what an earlier quickstart wrote there."""


@command
def quickstart(options: QuickstartOptions) -> None:
    """Train, score, index and search on shipped text, in a minute or two, without a network."""
    typer.echo("loading", err=True)
    from contrasent.quickstart import quickstart as run
    from contrasent.quickstart import summary

    result = run(
        options.output,
        overwrite=options.overwrite,
        device=options.device,
        tell=partial(typer.echo, err=True),
        show_progress=True,
    )
    typer.echo(summary(result, options.output))


@settings
class ReproduceOptions(DataFolder, OnDevice):
    """Options of ``reproduce``."""

    tables: Annotated[list[str], Spelling(argument=True, metavar="TABLE")]
    """Tables and figures: simcse/T1, diffcse/T3, study/T4, simcse/F2, a paper (simcse, diffcse,
    study), baselines, successors, or all. Before them 'list' shows what there is and needs,
    'verdicts' which claims hold, 'commands' how every row is made."""

    output: Path = Path("reproduction")
    """The folder; what is done in it already is kept, so that the same command goes on with a run
    that was cut off."""

    encoder: str | None = None
    """Start of every trained transformer: a masked language model, folder or id."""

    words: str | None = None
    """Word vectors, a .txt or .vec file such as GloVe's."""

    sentences: str | None = None
    """Training text, one sentence per line, also .gz."""

    documents: str | None = None
    """Sentences in their order, documents parted by blank lines."""

    labelled: str | None = None
    """Premise, hypothesis, label: 'data build nli --make labelled'."""

    triplets: str | None = None
    """Premise, entailment, contradiction: 'contrasent data build nli'."""

    material: Annotated[list[str] | None, Spelling(metavar="NAME=PATH")] = None
    """A further text, or a model in place of one by its id: qqp=qqp.csv, roberta-base=FOLDER.
    Repeatable."""

    scale: Annotated[str | None, Spelling(default="that of the folder, else small")] = None
    """small: short runs of the encoder and data at hand; smoke: tiny models, made on the spot, two
    steps each; paper: the papers' encoders, data and settings."""

    seeds: Annotated[
        Seeds | None,
        Spelling(default="42; for list and verdicts those of the folder", metavar="TEXT"),
    ] = None
    """Comma-separated seeds of training; a cell is mean and deviation."""

    html: Annotated[str | None, Spelling(metavar="FILE")] = None
    """Write tables, figures and verdicts as one page too."""

    rows: str | None = None
    """Comma-separated rows, by name or a part of it; else all."""

    tasks: Listed = ()
    """What is scored, in place of the scale's tasks: such as sts,transfer."""

    jobs: PositiveInt = 1
    """Rows that are worked on at once, sharing the cores."""

    overwrite: bool = False
    """Make these tables' runs again; what other tables measured of them is dropped."""


@command
def reproduce(options: ReproduceOptions) -> None:
    """Reproduce tables and figures from the papers, with the published numbers beside ours.

    A row whose material is not given has the published numbers alone, and its note names what is
    missing. Finished runs are kept.
    """
    from contrasent.errors import ConfigError
    from contrasent.reproduce import outcome
    from contrasent.reproduce.papers import choose, named_rows
    from contrasent.reproduce.verdicts import verdicts

    what = options.tables[0] if options.tables[0] in ("list", "verdicts", "commands") else ""
    names = options.tables[1:] if what else options.tables
    for name in ("rows", "tasks", "html", "seeds"):
        if what and getattr(options, name) and name not in _EFFECTS[what]:
            raise ConfigError(f"--{name} has no effect on 'reproduce {what}'; leave it out")
    if what == "commands":
        typer.echo("\n".join(outcome.plan_lines(names)))
        return
    chosen = choose(names, named_rows(options.rows or ""), options.tasks)
    refuse_existing_file(options.html, overwrite=True)  # a folder
    folder = outcome.PaperRequest.read(options.output)
    asked = outcome.PaperRequest(
        given=_materials(options),
        seeds=tuple(options.seeds or (what and folder.seeds) or (42,)),
        data_dir=None if options.data_dir is None else str(options.data_dir),
        device=options.device,
    )
    request = folder.followed_by(options.scale, asked)
    if what == "list":
        overview = outcome.listing(request, chosen, options.output)
        notes = ("\n".join(wrap(note, 100, break_on_hyphens=False)) for note in overview.notes)
        _show("\n".join((overview.markdown(), *(f"{note}\n" for note in notes))))
    elif what == "verdicts":
        filler = outcome.open_filler(request, options.output)
        judged = verdicts(filler, chosen)
        _show(outcome.verdicts_document(judged, request.scale))
        if options.html:
            outcome.write_page(Path(options.html), filler, chosen, judged)
    else:
        _make(request, chosen, options)


_EFFECTS = {"list": ("rows", "tasks", "seeds"), "verdicts": ("html", "seeds"), "commands": ()}
"""The options that matter to what makes nothing, of those that matter to what makes tables."""


def _materials(options: ReproduceOptions) -> dict[str, str]:
    """What was given, by the name of the material."""
    from contrasent.errors import ConfigError
    from contrasent.reproduce.materials import ENCODER

    given = {ENCODER: options.encoder}
    for name in ("words", "sentences", "documents", "labelled", "triplets"):
        given[name] = getattr(options, name)
    for text in options.material or ():
        name, _, path = text.partition("=")
        if not (name and path):
            raise ConfigError(f"--material {text} is not NAME=PATH, such as qqp=qqp.csv")
        given[name] = path
    return {name: value for name, value in given.items() if value is not None}


def _make(request: PaperRequest, tables: list[PaperTable], options: ReproduceOptions) -> None:
    """Make tables, show them, and tell what failed at the end."""
    from contrasent.errors import ContrasentError
    from contrasent.reproduce import outcome
    from contrasent.reproduce.verdicts import verdicts

    tell, output = partial(typer.echo, err=True), options.output
    with resumable("run the same command again to continue"):
        filled = outcome.reproduce_tables(
            request, tables, output, tell, jobs=options.jobs, overwrite=options.overwrite
        )
    _show("\n".join(outcome.document(table) for table in filled))
    if options.html:
        filler = outcome.open_filler(request, output)
        outcome.write_page(Path(options.html), filler, tables, verdicts(filler, tables))
    if failed := outcome.failures(filled):
        raise ContrasentError("cells that could not be made:\n" + "\n".join(failed))


def _show(text: str) -> None:
    """Markdown, laid out on a terminal and as it is elsewhere."""
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    console.print(Markdown(text)) if console.is_terminal else typer.echo(text, nl=False)


@settings
class MtebOptions(Measuring, AsJsonLines):
    """Options of ``mteb``."""

    models: Annotated[list[str], Spelling(argument=True, metavar="MODEL")]
    """Encoders, a row each: a folder, a training run or a Hugging Face id."""

    tasks: Listed = ()
    """Comma-separated names of MTEB's tasks, such as STSBenchmark,SICK-R."""

    benchmark: Annotated[str | None, Spelling(metavar="NAME")] = None
    """All tasks of a benchmark, 'MTEB(eng, v2)', or of one type: 'MTEB(eng, v2):STS'."""

    output: Annotated[Path | None, Spelling(metavar="FOLDER")] = None
    """Write MTEB's own files of results into FOLDER too."""


@command
def mteb(options: MtebOptions) -> None:
    """Score encoders on tasks of MTEB, by its own runner and on its own data."""
    from rich.console import Console

    from contrasent.errors import ConfigError
    from contrasent.evaluation.mteb_encoder import (
        MtebEncoder,
        benchmark_tasks,
        mteb_tasks,
        run_mteb,
    )
    from contrasent.records import json_lines
    from contrasent.report.scores_table import mteb_table
    from contrasent.report.table import print_table

    refuse_existing_file(options.json, overwrite=options.overwrite)
    require(options)
    if options.benchmark is None:
        wanted = mteb_tasks(options.tasks)
    elif options.tasks:
        raise ConfigError("--tasks and --benchmark: give one of the two")
    else:
        wanted = benchmark_tasks(options.benchmark)

    def measure(model: str) -> Scores:
        encoder = MtebEncoder(load(options, model), options.precision_name)
        return run_mteb(encoder, wanted, output=options.output, show_progress=True)

    results, failures = for_each(options.models, measure)
    rows = {model: with_command(scores.records) for model, scores in results.items()}
    for model, scores in results.items():
        failures.extend(f"{model}: {problem.message}" for problem in scores.problems)
    records = [record for of_model in rows.values() for record in of_model]
    if records and not write_lines(options.json, json_lines(records)):
        shown = {label: rows[model] for label, model in labels(list(rows)).items()}
        print_table(Console(), mteb_table(shown))
    raise_failures(failures)
