"""``contrasent calibrate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from contrasent.cli.options import (
    DataDir,
    Device,
    Engine,
    Head,
    Model,
    OwnPrecision,
    Pooler,
    own_precision,
)

if TYPE_CHECKING:
    from contrasent.evaluate.calibrate import Calibration


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
            help="Sentence, sentence and label of your file: three names, or numbers from 0.",
            show_default=False,
        ),
    ] = None,
    min_precision: Annotated[
        float | None,
        typer.Option(
            help="Find as many similar pairs as this precision allows, such as 0.9; else the "
            "largest F1.",
            show_default=False,
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
    from contrasent.evaluate.calibrate import calibrate as calibrated
    from contrasent.evaluate.calibrate import read_judged
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
    from contrasent.evaluate.calibrate import FOLDS

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
