"""``contrasent reproduce``, ``quickstart`` and ``mteb``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer

from contrasent.cli.options import (
    DataDir,
    Device,
    Measuring,
    for_each,
    grouped,
    labels,
    listed,
    numbers_of_seeds,
    raise_failures,
    refuse_existing_json,
    with_command,
    write_lines,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mteb.abstasks import AbsTask

    from contrasent.evaluation.embed import Scores
    from contrasent.reproduce.papers import PaperTable
    from contrasent.reproduce.request import PaperRequest


def quickstart(
    output: Annotated[Path, typer.Option(help="The folder to write.")] = Path("quickstart"),
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what an earlier quickstart wrote there.")
    ] = False,
    device: Device = None,
) -> None:
    """Train, score, index and search on shipped text, in a minute or two, without a network."""
    typer.echo("loading", err=True)
    from contrasent.quickstart import quickstart as run
    from contrasent.quickstart import summary

    result = run(
        output,
        overwrite=overwrite,
        device=device,
        tell=partial(typer.echo, err=True),
        show_progress=True,
    )
    typer.echo(summary(result, output))


def reproduce(  # noqa: PLR0913 - the arguments are the command's options
    tables: Annotated[
        list[str],
        typer.Argument(
            metavar="TABLE",
            help="Tables and figures: simcse/T1, diffcse/T3, study/T4, simcse/F2, a paper (simcse, "
            "diffcse, study), baselines, successors, or all. Before them 'list' shows what "
            "there is and needs, 'verdicts' which claims hold, 'commands' how every row is made.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            help="The folder; what is done in it already is kept, so that the same command goes "
            "on with a run that was cut off."
        ),
    ] = Path("reproduction"),
    encoder: Annotated[
        str | None,
        typer.Option(
            help="Start of every trained transformer: a masked language model, folder or id."
        ),
    ] = None,
    words: Annotated[
        str | None, typer.Option(help="Word vectors, a .txt or .vec file such as GloVe's.")
    ] = None,
    sentences: Annotated[
        str | None, typer.Option(help="Training text, one sentence per line, also .gz.")
    ] = None,
    documents: Annotated[
        str | None, typer.Option(help="Sentences in their order, documents parted by blank lines.")
    ] = None,
    labelled: Annotated[
        str | None,
        typer.Option(help="Premise, hypothesis, label: 'data build nli --make labelled'."),
    ] = None,
    triplets: Annotated[
        str | None,
        typer.Option(help="Premise, entailment, contradiction: 'contrasent data build nli'."),
    ] = None,
    material: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help="A further text, or a model in place of one by its id: qqp=qqp.csv, "
            "roberta-base=FOLDER. Repeatable.",
        ),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            help="small: short runs of the encoder and data at hand; smoke: tiny models, made on "
            "the spot, two steps each; paper: the papers' encoders, data and settings.",
            show_default="that of the folder, else small",
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated seeds of training; a cell is mean and deviation.",
            show_default="42; for list and verdicts those of the folder",
        ),
    ] = None,
    html: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write tables, figures and verdicts as one page too."),
    ] = None,
    rows: Annotated[
        str | None, typer.Option(help="Comma-separated rows, by name or a part of it; else all.")
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(help="What is scored, in place of the scale's tasks: such as sts,transfer."),
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Rows that are worked on at once, sharing the cores.")
    ] = 1,
    data_dir: DataDir = None,
    device: Device = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Make these tables' runs again; what other tables measured of them is dropped.",
        ),
    ] = False,
) -> None:
    """Reproduce tables and figures from the papers, with the published numbers beside ours.

    A row whose material is not given has the published numbers alone, and its note names what is
    missing. Finished runs are kept.
    """
    from contrasent.reproduce.materials import ENCODER

    materials = {
        ENCODER: encoder,
        "words": words,
        "sentences": sentences,
        "documents": documents,
        "labelled": labelled,
        "triplets": triplets,
    }
    given = {name: value for name, value in materials.items() if value is not None}
    given |= dict(map(_named, material or ()))
    from contrasent.report.html.page import refuse_existing_report
    from contrasent.reproduce import outcome
    from contrasent.reproduce.request import FolderRequest, choose, named_rows
    from contrasent.reproduce.verdicts import verdicts

    what = tables[0] if tables[0] in ("list", "verdicts", "commands") else ""
    names = tables[1:] if what else tables
    _refuse_without_effect(what, {"rows": rows, "tasks": tasks, "html": html, "seeds": seeds})
    if what == "commands":
        typer.echo("\n".join(outcome.plan_lines(names)))
        return
    chosen = choose(names, named_rows(rows or ""), listed(tasks or ""))
    refuse_existing_report(html, overwrite=True)  # a folder
    folder = FolderRequest.read(output)
    usual = (what and folder.seeds) or (42,)
    request = folder.request(
        scale,
        given,
        numbers_of_seeds(seeds) if seeds else usual,
        None if data_dir is None else str(data_dir),
        device,
    )
    request = replace(request, jobs=jobs)
    if what == "list":
        overview = outcome.listing(request, chosen, output)
        notes = ("\n".join(wrap(note, 100, break_on_hyphens=False)) for note in overview.notes)
        _show("\n".join((overview.markdown(), *(f"{note}\n" for note in notes))))
    elif what == "verdicts":
        filler = outcome.open_filler(request, output)
        judged = verdicts(filler, chosen)
        _show(outcome.verdicts_document(judged, request.scale))
        if html:
            outcome.write_page(Path(html), filler, chosen, judged)
    else:
        _make(request, chosen, output, html, overwrite)


_EFFECTS = {"list": ("rows", "tasks", "seeds"), "verdicts": ("html", "seeds"), "commands": ()}
"""The options that matter to what makes nothing, of those that matter to what makes tables."""


def _refuse_without_effect(what: str, given: Mapping[str, str | None]) -> None:
    from contrasent.errors import ConfigError

    for name, value in given.items():
        if what and value is not None and name not in _EFFECTS[what]:
            raise ConfigError(f"--{name} has no effect on 'reproduce {what}'; leave it out")


def _named(text: str) -> tuple[str, str]:
    """The two sides of NAME=PATH."""
    from contrasent.errors import ConfigError

    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise ConfigError(f"--material {text} is not NAME=PATH, such as qqp=qqp.csv")
    return name, path


def _make(
    request: PaperRequest, tables: list[PaperTable], output: Path, html: str | None, overwrite: bool
) -> None:
    """Make tables, show them, and tell what failed at the end."""
    from contrasent.errors import ContrasentError
    from contrasent.reproduce import outcome
    from contrasent.reproduce.verdicts import verdicts

    tell = partial(typer.echo, err=True)
    try:
        filled = outcome.reproduce_tables(request, tables, output, tell, overwrite=overwrite)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(
            "interrupted; what was written is whole; run the same command again to continue"
        ) from error
    _show("\n".join(outcome.document(table) for table in filled))
    if html:
        filler = outcome.open_filler(request, output)
        outcome.write_page(Path(html), filler, tables, verdicts(filler, tables))
    if failed := outcome.failures(filled):
        raise ContrasentError("cells that could not be made:\n" + "\n".join(failed))


def _show(text: str) -> None:
    """Markdown, laid out on a terminal and as it is elsewhere."""
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    console.print(Markdown(text)) if console.is_terminal else typer.echo(text, nl=False)


@grouped
def mteb(
    *,
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="Encoders, a row each: a folder, a training run or a Hugging Face id.",
        ),
    ],
    tasks: Annotated[
        str | None,
        typer.Option(help="Comma-separated names of MTEB's tasks, such as STSBenchmark,SICK-R."),
    ] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="All tasks of a benchmark, 'MTEB(eng, v2)', or of one type: 'MTEB(eng, v2):STS'.",
        ),
    ] = None,
    measuring: Measuring,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write MTEB's own files of results into FOLDER too."),
    ] = None,
    json: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write every metric, subset and split as JSON lines to FILE; '-' prints them "
            "instead of the table.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace FILE if it is there.")
    ] = False,
) -> None:
    """Score encoders on tasks of MTEB, by its own runner and on its own data."""
    from rich.console import Console

    from contrasent.errors import ConfigError
    from contrasent.evaluation.mteb_encoder import MtebEncoder, run_mteb
    from contrasent.records import json_lines
    from contrasent.report.scores_table import mteb_table
    from contrasent.report.table import print_table

    refuse_existing_json(json, overwrite=overwrite)
    if output is not None and output.is_file():
        raise ConfigError(f"--output {output} is a file; name a folder")
    measuring.require()
    wanted = _mteb_tasks(tasks, benchmark)

    def measure(model: str) -> Scores:
        encoder = MtebEncoder(measuring.load(model), measuring.precision_name)
        return run_mteb(encoder, wanted, output=output, show_progress=True)

    outcomes = for_each(models, measure)
    rows = {model: with_command(scores.records) for model, scores in outcomes.results.items()}
    for model, scores in outcomes.results.items():
        outcomes.failures.extend(f"{model}: {problem.message}" for problem in scores.problems)
    records = [record for of_model in rows.values() for record in of_model]
    if records and not write_lines(json, json_lines(records)):
        shown = {label: rows[model] for label, model in labels(list(rows)).items()}
        print_table(Console(), mteb_table(shown))
    raise_failures(outcomes.failures)


def _mteb_tasks(tasks: str | None, benchmark: str | None) -> Sequence[AbsTask]:
    from contrasent.errors import ConfigError
    from contrasent.evaluation.mteb_encoder import benchmark_tasks, mteb_tasks

    if benchmark is None:
        return mteb_tasks(listed(tasks or ""))
    if tasks is not None:
        raise ConfigError(f"--tasks {tasks} and --benchmark {benchmark}: give one of the two")
    return benchmark_tasks(benchmark)
