"""``contrasent reproduce``, ``quickstart``, ``mteb`` and ``calibrate``."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contrasent.cli.options import (
    DataDir,
    Device,
    Json,
    Measuring,
    Model,
    for_each,
    grouped,
    labels,
    listed,
    print_json,
    raise_failures,
    refuse_json_folder,
    with_command,
    write_lines,
)

if TYPE_CHECKING:
    from contrasent.evaluation.calibrate import Calibration
    from contrasent.evaluation.embed import Scores


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
    table: Annotated[str, typer.Argument(help="The table: baselines.")],
    output: Annotated[
        Path,
        typer.Option(
            help="The folder; what is done in it already is kept, so that the same command goes "
            "on with a run that was cut off."
        ),
    ],
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
        str | None,
        typer.Option(
            help="Text in its order: a sentence per line, a blank line between documents."
        ),
    ] = None,
    labelled: Annotated[
        str | None,
        typer.Option(
            help="Premise, hypothesis, label: 'contrasent data build nli --make labelled'."
        ),
    ] = None,
    triplets: Annotated[
        str | None,
        typer.Option(help="Premise, entailment, contradiction: 'contrasent data build nli'."),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            help="small: short runs, about an hour on two cores with a small encoder; smoke: two "
            "steps each; paper: the recipes as they are.",
            show_default="small",
        ),
    ] = None,
    rows: Annotated[
        str | None, typer.Option(help="Comma-separated rows, by name; else all.")
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
        typer.Option("--overwrite", help="Make rows again that were made with other settings."),
    ] = False,
) -> None:
    """Make a table of the papers again: train, fit and score its rows, with the published numbers.

    A row whose material is not given is left out, and the table says so.
    """
    from rich.console import Console
    from rich.markdown import Markdown

    from contrasent.errors import ContrasentError
    from contrasent.reproduce.document import page, read_rows, write_table
    from contrasent.reproduce.reproduction import Request
    from contrasent.reproduce.reproduction import reproduce as run

    materials = {
        "encoder": encoder,
        "words": words,
        "sentences": sentences,
        "documents": documents,
        "labelled": labelled,
        "triplets": triplets,
    }
    request = Request(
        table=table,
        scale=scale,
        given={name: value for name, value in materials.items() if value is not None},
        rows=tuple(listed(rows or "")),
        tasks=tuple(listed(tasks or "")),
        data_dir=None if data_dir is None else str(data_dir),
        jobs=jobs,
        overwrite=overwrite,
        device=device,
    )
    try:
        reproduction = run(request, output, partial(typer.echo, err=True))
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt("the same command goes on with it") from error
    done = read_rows(reproduction, output)
    written = write_table(reproduction, done, table, output)
    text = page(reproduction, done, figure=False)
    console = Console()
    console.print(Markdown(text)) if console.is_terminal else typer.echo(text, nl=False)
    typer.echo(f"written: {', '.join(path.name for path in written)} in {output}", err=True)
    if reproduction.failed:
        failures = "\n".join(f"  {name}: {why}" for name, why in reproduction.failed.items())
        raise ContrasentError(f"rows that could not be made:\n{failures}")


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
        str,
        typer.Option(help="Comma-separated names of MTEB's tasks, such as STSBenchmark,SICK-R."),
    ],
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
) -> None:
    """Score encoders on tasks of MTEB, by its own runner and on its own data."""
    from rich.console import Console

    from contrasent.errors import ConfigError
    from contrasent.evaluation.mteb_encoder import MtebEncoder, mteb_tasks, run_mteb
    from contrasent.records import json_lines
    from contrasent.report.scores_table import mteb_table
    from contrasent.report.table import print_table

    refuse_json_folder(json)
    if output is not None and output.is_file():
        raise ConfigError(f"--output {output} is a file; name a folder")
    measuring.require()
    wanted = mteb_tasks(listed(tasks))

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


@grouped
def calibrate(
    *,
    model: Model,
    pairs: Annotated[
        str,
        typer.Argument(
            help="Judged pairs: a .tsv, .csv, .jsonl or .parquet file of sentence, sentence and "
            "label (1 similar, 0 not), or one of ratings or a task, with the rating from which on "
            "sentences are similar: 'pairs.tsv>=4', 'stsb-dev>=4'."
        ),
    ],
    columns: Annotated[
        str | None,
        typer.Option(
            help="Sentence, sentence and label of your file: three names, or numbers from 0."
        ),
    ] = None,
    min_precision: Annotated[
        float | None,
        typer.Option(
            help="Find as many similar pairs as this precision allows, such as 0.9; else the "
            "largest F1."
        ),
    ] = None,
    measuring: Measuring,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Propose the cosine from which on two sentences are to count as similar."""
    from contrasent.evaluation.calibrate import calibrate as propose
    from contrasent.evaluation.calibrate import read_judged

    judged = read_judged(pairs, data_dir, listed(columns))
    if judged.task.note:
        typer.echo(judged.task.note, err=True)
    calibration = propose(measuring.use(measuring.load(model)), judged, min_precision)
    if json:
        print_json(asdict(calibration))
    else:
        _print(calibration)


def _print(calibration: Calibration) -> None:
    from contrasent.evaluation.calibrate import FOLDS

    aim = calibration.aim
    reason = "largest F1" if aim == "f1" else f"largest recall with {aim}"
    typer.echo(f"threshold  {calibration.threshold:.4f} ({reason})")
    similar = f"{calibration.similar:,} of them similar ({calibration.pairs})"
    typer.echo(f"pairs      {calibration.count:,}, {similar}")
    rows = {"on them": calibration.reached, "held out": calibration.held_out}
    for name, row in rows.items():
        if row:
            numbers = f"precision {row.precision:.4f}, recall {row.recall:.4f}, F1 {row.f1:.4f}"
            typer.echo(f"{name:<11}{numbers}")
    if calibration.held_out:
        typer.echo(f"Held out: chosen on the other pairs each time, {FOLDS} folds.")
    else:
        typer.echo("Too few pairs to hold some out: what is reached on others will be less.")
