"""``contrasent mteb``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contrasent.cli.options import (
    STDOUT,
    Device,
    Engine,
    Head,
    OwnPrecision,
    Pooler,
    own_precision,
    refuse_json_folder,
)

if TYPE_CHECKING:
    from contrasent.records import Record


def mteb(  # noqa: PLR0913 - the arguments are the command's options
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="Encoders, a row each: a folder, a training run or a Hugging Face id.",
            show_default=False,
        ),
    ],
    tasks: Annotated[
        str,
        typer.Option(
            help="Comma-separated names of MTEB's tasks, such as STSBenchmark,SICK-R.",
            show_default=False,
        ),
    ],
    pooler: Pooler = None,
    head: Head = None,
    engine: Engine = "torch",
    device: Device = None,
    precision: OwnPrecision = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write MTEB's own files of results into FOLDER too.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write every metric, subset and split as JSON lines to FILE; '-' prints them "
            "instead of the table.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Score encoders on tasks of MTEB, by its own runner and on its own data."""
    from contrasent.cli.evaluate import listed
    from contrasent.errors import ContrasentError, pick
    from contrasent.evaluate.described import PRECISIONS
    from contrasent.evaluate.mteb_encoder import MtebEncoder
    from contrasent.evaluate.mteb_tasks import mteb_tasks, run_mteb
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
