"""``contrasent similarity``."""

from __future__ import annotations

from typing import Annotated

import typer

from contrasent.cli.options import Device, Engine, Head, Model, OwnPrecision, Pooler, own_precision


def similarity(  # noqa: PLR0913 - the arguments are the command's options
    model: Model,
    text_a: Annotated[str, typer.Argument(help="A text.")],
    text_b: Annotated[str, typer.Argument(help="Another text.")],
    pooler: Pooler = None,
    head: Head = None,
    engine: Engine = "torch",
    device: Device = None,
    precision: OwnPrecision = None,
    json: Annotated[
        bool, typer.Option("--json", help="Full precision, with what it was computed with.")
    ] = False,
) -> None:
    """Print the cosine of the embeddings of two texts."""
    from json import dumps

    from contrasent.model.loading import load_encoder
    from contrasent.search.similarity import similarity as cosine_of

    encoder = load_encoder(model, pooler=pooler, head=head, engine=engine, device=device)
    used = encoder.resolve_precision(own_precision(precision, engine))
    cosine = cosine_of(encoder, text_a, text_b, precision=used)
    if not json:
        typer.echo(f"{cosine:.4f}")
        return
    described = {
        "cosine": cosine,
        "model": model,
        "pooler": encoder.pooler,
        "head": encoder.head_name,
        "engine": encoder.engine,
        "precision": used,
        "fingerprint": encoder.fingerprint(),
    }
    typer.echo(dumps(described))
