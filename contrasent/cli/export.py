"""``contrasent export``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contrasent.cli.options import DataDir, Head, Json, Model, Pooler, listed, print_json

if TYPE_CHECKING:
    from contrasent.formats import Parity

_NONE = "none"


def export(  # noqa: PLR0913 - the arguments are the command's options
    *,
    model: Model,
    output: Annotated[Path, typer.Argument(help="The folder to write.")],
    format: Annotated[  # noqa: A002 - the option's name
        str,
        typer.Option(
            help="onnx and openvino (for sentence-transformers' backends, onnx also for "
            "fastembed), static (a table of vectors of word pieces: much faster, less exact), or "
            "simcse (a Hugging Face folder with the head as pooler.dense)."
        ),
    ],
    pooler: Pooler = None,
    head: Head = None,
    tolerance: Annotated[
        float,
        typer.Option(
            help="The largest gap between 1 and the cosine of a sentence's two embeddings; above "
            "it nothing is written. Not for static."
        ),
    ] = 1e-4,
    tasks: Annotated[
        str | None,
        typer.Option(
            help="Scored before and after, as for evaluate, or none; else rated pairs that ship "
            "with the package."
        ),
    ] = None,
    data_dir: DataDir = None,
    dimensions: Annotated[int, typer.Option(help="Of a static table's vectors.")] = 256,
    data: Annotated[
        str | None,
        typer.Option(
            help="Text to count word pieces in, for static; else their ranks in the vocabulary "
            "tell how frequent they are."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an export that is there already.")
    ] = False,
    json: Json = False,
) -> None:
    """Write an encoder in the format of another library, checked against the encoder."""
    from dataclasses import asdict

    from contrasent.errors import pick
    from contrasent.formats import FORMATS, export
    from contrasent.model.encoder import SentenceEncoder

    pick("format", format, FORMATS)
    chosen = {} if tasks is None else {"tasks": [] if tasks == _NONE else listed(tasks) or []}
    encoder = SentenceEncoder.load(model, pooler=pooler, head=head, device="cpu")
    parity = export(
        encoder,
        output,
        format,
        tolerance=tolerance,
        data_dir=data_dir,
        dimensions=dimensions,
        text=data,
        overwrite=overwrite,
        show_progress=True,
        **chosen,
    )
    if json:
        print_json({"output": str(output), **asdict(parity)})
    else:
        _print(output, parity)


def _print(output: Path, parity: Parity) -> None:
    typer.echo(f"{output}: {parity.format}")
    if parity.largest_gap is not None:
        typer.echo(
            f"largest gap of a cosine to 1: {parity.largest_gap:.1e}, of {parity.sentences} "
            "sentences"
        )
    for task, before in parity.before.items():
        after = parity.after[task]
        typer.echo(
            f"{task}: {100 * before:.2f} before, {100 * after:.2f} after "
            f"({100 * (after - before):+.2f})"
        )
    typer.echo(
        f"sentences/s in fp32: {parity.speed:,.0f} before, {parity.export_speed:,.0f} after "
        f"({parity.export_speed / parity.speed:.1f}x)"
    )
