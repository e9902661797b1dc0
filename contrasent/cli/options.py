"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[
    str, typer.Argument(help="The encoder: a folder, a training run or a Hugging Face id.")
]
Pooler = Annotated[
    str | None,
    typer.Option(
        help="cls, mean, mean_top2, mean_first_last, mean_embed_last; else the encoder's own.",
        show_default=False,
    ),
]
Head = Annotated[
    str | None,
    typer.Option(help="none or mlp; else the encoder's own.", show_default=False),
]
Precision = Annotated[
    str, typer.Option(help="fp32, bf16, or auto: bf16 where the hardware has it.")
]
OwnPrecision = Annotated[
    str | None,
    typer.Option(
        help="fp32, bf16 or auto; else fp32, or what an engine other than torch computes in.",
        show_default=False,
    ),
]
Engine = Annotated[
    str,
    typer.Option(help="What computes the transformer: torch, or on a CPU int8, onnx, openvino."),
]


def own_precision(asked: str | None, engine: str) -> str:
    """What ``OwnPrecision`` stands for with ``engine``."""
    return asked or ("fp32" if engine == "torch" else "auto")
