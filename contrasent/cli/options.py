"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

STDOUT = "-"
"""What names standard output in place of a file."""

Model = Annotated[
    str, typer.Argument(help="The encoder: a folder, a training run or a Hugging Face id.")
]
Pooler = Annotated[
    str | None,
    typer.Option(
        help="cls, mean, max, mean_top2, mean_first_last, mean_embed_last; else its own.",
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
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder in SentEval's layout; else $CONTRASENT_DATA, else the folder that "
        "'contrasent data fetch' fills.",
        show_default=False,
    ),
]
MaxSteps = Annotated[
    int | None, typer.Option(help="Stop after this many steps.", show_default=False)
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in the output folder.")]
OverwriteRun = Annotated[
    bool, typer.Option("--overwrite", help="Replace the run in the output folder.")
]
PrintSettings = Annotated[
    bool, typer.Option("--settings", help="Print the recipe with every setting, and exit.")
]


def own_precision(asked: str | None, engine: str) -> str:
    """What ``OwnPrecision`` stands for with ``engine``."""
    return asked or ("fp32" if engine == "torch" else "auto")


def refuse_json_folder(json: str | None) -> None:
    """Find now that JSON lines cannot be written, before any work.

    Raises:
        ConfigError: ``json`` is a folder.
    """
    from contrasent.errors import ConfigError

    if json is not None and json != STDOUT and Path(json).is_dir():
        raise ConfigError(f"--json {json} is a folder; name a file in it, or - to print")
