"""``contrasent import``: published weights that do not come as the folder of an encoder."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

Weights = Annotated[
    Path, typer.Argument(help="infersent1.pkl or infersent2.pkl.", show_default=False)
]
Words = Annotated[
    Path,
    typer.Argument(
        help="The word vectors it was trained over: glove.840B.300d.txt, or crawl-300d-2M.vec.",
        show_default=False,
    ),
]
Output = Annotated[
    Path, typer.Option(help="The folder to write; it must not exist.", show_default=False)
]
Version = Annotated[
    int,
    typer.Option(
        min=1,
        max=2,
        help="1 is over GloVe, with <s> and </s> around a sentence, 2 over fastText, with <p> and "
        "</p>.",
    ),
]


def infersent(weights: Weights, words: Words, output: Output, version: Version = 1) -> None:
    """Make an encoder of InferSent's published weights and its word vectors.

    OUTPUT is an encoder for every command. The weights are read as tensors and nothing else; the
    word vectors go into OUTPUT too, linked to the cache where the disk allows it.
    """
    from contrasent.files import refuse_existing
    from contrasent.model.infersent import origin_of, read_infersent

    refuse_existing(output, "name another folder with --output, or remove it")
    encoder = read_infersent(weights, words, version)
    encoder.save(output, {"imported": origin_of(weights, words, version)})
    typer.echo(f"{output}: {encoder.width} numbers, over {encoder.tokenizer.source}")
    typer.echo(f"next: contrasent evaluate {shlex.quote(str(output))}", err=True)
