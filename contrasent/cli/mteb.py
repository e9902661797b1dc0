"""``contrasent mteb`` and ``contrasent calibrate``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contrasent.cli.options import (
    DataDir,
    Json,
    Measuring,
    Model,
    for_each,
    grouped,
    labels,
    listed,
    print_json,
    refuse_json_folder,
    with_command,
    write_lines,
)

if TYPE_CHECKING:
    from contrasent.evaluation.calibrate import Calibration
    from contrasent.evaluation.scores import Scores


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
    from contrasent.report.terminal import print_table

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
    outcomes.end()


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
    encoder = measuring.load(model)
    calibration = propose(
        encoder,
        judged,
        least_precision=min_precision,
        precision=encoder.resolve_precision(measuring.precision_name),
        show_progress=True,
    )
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
