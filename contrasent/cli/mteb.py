"""``contrasent mteb`` and ``contrasent calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contrasent.cli.options import (
    STDOUT,
    DataDir,
    Device,
    Engine,
    Head,
    Model,
    OwnPrecision,
    Pooler,
    own_precision,
    refuse_json_folder,
)

if TYPE_CHECKING:
    from contrasent.evaluation.calibrate import Calibration
    from contrasent.records import Record


def mteb(  # noqa: PLR0913 - the arguments are the command's options
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
    pooler: Pooler = None,
    head: Head = None,
    engine: Engine = "torch",
    device: Device = None,
    precision: OwnPrecision = None,
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
    from contrasent.cli.evaluate import listed
    from contrasent.errors import ContrasentError, pick
    from contrasent.evaluation.embed import PRECISIONS
    from contrasent.evaluation.mteb_encoder import MtebEncoder, mteb_tasks, run_mteb
    from contrasent.model.engines import require
    from contrasent.model.loading import load_encoder

    asked = own_precision(precision, engine)
    pick("precision", asked, ("auto", *PRECISIONS))
    _refuse(output, json)
    require(engine, device)
    wanted = mteb_tasks(listed(tasks))
    rows: dict[str, list[Record]] = {}
    failures: list[str] = []
    for model in dict.fromkeys(models):
        try:
            encoder = load_encoder(model, pooler=pooler, head=head, engine=engine, device=device)
            scores = run_mteb(
                MtebEncoder(encoder, asked), wanted, output=output, show_progress=True
            )
        except ContrasentError as error:
            if len(models) == 1:
                raise
            failures.append(f"{model}: {error}")
        else:
            rows[model] = list(scores.records)
            failures += [f"{model}: {problem.message}" for problem in scores.problems]
    if any(rows.values()):
        _write(rows, json)
    if failures:
        raise ContrasentError("\n".join(failures))


def _refuse(output: Path | None, json: str | None) -> None:
    from contrasent.errors import ConfigError

    refuse_json_folder(json)
    if output is not None and output.is_file():
        raise ConfigError(f"--output {output} is a file; name a folder")


def _write(rows: dict[str, list[Record]], json: str | None) -> None:
    from rich.console import Console

    from contrasent.cli.evaluate import labels
    from contrasent.records import json_lines, write_records
    from contrasent.report.mteb import print_mteb

    records = [record for found in rows.values() for record in found]
    if json == STDOUT:
        typer.echo(json_lines(records), nl=False)
        return
    if json is not None:
        write_records(json, records)
    print_mteb(Console(), {label: rows[model] for label, model in labels(list(rows)).items()})


def calibrate(  # noqa: PLR0913 - the arguments are the command's options
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
    pooler: Pooler = None,
    head: Head = None,
    engine: Engine = "torch",
    device: Device = None,
    precision: OwnPrecision = None,
    data_dir: DataDir = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON in full precision.")] = False,
) -> None:
    """Propose the cosine from which on two sentences are to count as similar."""
    from contrasent.cli.evaluate import listed
    from contrasent.evaluation.calibrate import calibrate as calibrated
    from contrasent.evaluation.calibrate import read_judged
    from contrasent.model.loading import load_encoder

    judged = read_judged(pairs, data_dir, None if columns is None else listed(columns))
    if judged.task.note:
        typer.echo(judged.task.note, err=True)
    encoder = load_encoder(model, pooler=pooler, head=head, engine=engine, device=device)
    found = calibrated(
        encoder,
        judged,
        least_precision=min_precision,
        precision=encoder.resolve_precision(own_precision(precision, engine)),
        show_progress=True,
    )
    if json:
        from dataclasses import asdict
        from json import dumps

        typer.echo(dumps(asdict(found)))
    else:
        _tell(found)


def _tell(found: Calibration) -> None:
    from contrasent.evaluation.calibrate import FOLDS

    aim = "largest F1" if found.aim == "f1" else f"largest recall with {found.aim}"
    typer.echo(f"threshold  {found.threshold:.4f} ({aim})")
    typer.echo(f"pairs      {found.count:,}, {found.similar:,} of them similar ({found.pairs})")
    told = {"on them": found.reached, "held out": found.held_out}
    for name, it in told.items():
        if it:
            numbers = f"precision {it.precision:.4f}, recall {it.recall:.4f}, F1 {it.f1:.4f}"
            typer.echo(f"{name:<11}{numbers}")
    if found.held_out:
        typer.echo(f"Held out: chosen on the other pairs each time, {FOLDS} folds.")
    else:
        typer.echo("Too few pairs to hold some out: what is reached on others will be less.")
