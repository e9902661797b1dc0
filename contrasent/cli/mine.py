"""``contrasent data mine``: hard negatives for pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from contrasent.cli.options import Device, Model, Precision, listed


def mine(  # noqa: PLR0913 - the arguments are the command's options
    *,
    model: Model,
    pairs: Annotated[
        str,
        typer.Argument(
            help="Anchors and positives: a file (.csv, .tsv, .jsonl, .parquet) or a data set on "
            "the Hugging Face hub as org/name:config@split."
        ),
    ],
    output: Annotated[
        Path, typer.Option(help="The file to write: .csv, .tsv or .jsonl, each also .gz.")
    ],
    corpus: Annotated[
        str | None,
        typer.Option(
            help="Sentences to take negatives from, as a file of text; else the positives."
        ),
    ] = None,
    negatives: Annotated[int, typer.Option(min=1, help="Hard negatives of each pair.")] = 1,
    margin: Annotated[
        float,
        typer.Option(
            help="A negative's cosine with the anchor is below the positive's by this share of it "
            "or more; what is nearer may be a positive that nobody labelled."
        ),
    ] = 0.05,
    columns: Annotated[
        str | None,
        typer.Option(help="Columns of PAIRS, anchor and positive: names, or numbers from 0."),
    ] = None,
    device: Device = None,
    precision: Precision = "auto",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUTPUT if it is there.")
    ] = False,
) -> None:
    """Find hard negatives for pairs: near the anchor, and clearly farther than its positive.

    Writes sent0, sent1 and hard_neg, as 'contrasent train sup-simcse' takes them. Never takes the
    anchor or one of its positives, however they are cased and punctuated.
    """
    from rich.console import Console

    from contrasent import api
    from contrasent.report.table import print_table
    from contrasent.report.training_text import mined_table

    mined = api.mine(
        model,
        pairs,
        corpus=corpus,
        output=output,
        negatives=negatives,
        margin=margin,
        columns=listed(columns),
        device=device,
        precision=precision,
        overwrite=overwrite,
        show_progress=True,
    )
    print_table(Console(), mined_table(mined))
    typer.echo(f"next: contrasent train sup-simcse --encoder {model} --data {output}")
