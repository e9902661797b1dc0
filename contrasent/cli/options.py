"""Arguments and options that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from contrasent.recipe import Recipe
    from contrasent.report.html.contents import Contents


STDOUT = "-"
"""What names standard output in place of a file."""

Model = Annotated[
    str, typer.Argument(help="The encoder: a folder, a training run or a Hugging Face id.")
]
Pooler = Annotated[
    str | None,
    typer.Option(help="cls, mean, max, mean_top2, mean_first_last, mean_embed_last; else its own."),
]
Head = Annotated[str | None, typer.Option(help="none or mlp; else the encoder's own.")]
Precision = Annotated[
    str, typer.Option(help="fp32, bf16, or auto: bf16 where the hardware has it.")
]
OwnPrecision = Annotated[
    str | None,
    typer.Option(
        help="fp32, bf16 or auto; else fp32, or what an engine other than torch computes in."
    ),
]
Engine = Annotated[
    str,
    typer.Option(help="What computes the transformer: torch, or on a CPU int8, onnx, openvino."),
]
Device = Annotated[
    str | None,
    typer.Option(help="cpu, cuda, cuda:1 and the like; else the accelerator if there is one."),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder in SentEval's layout; else $CONTRASENT_DATA, else the folder that "
        "'contrasent data fetch' fills."
    ),
]
MaxSteps = Annotated[int | None, typer.Option(help="Stop after this many steps.")]
BatchSize = Annotated[int | None, typer.Option(help="Examples per step; else the recipe's.")]
Epochs = Annotated[int | None, typer.Option(help="Passes over the data; else the recipe's.")]
LearningRate = Annotated[
    float | None, typer.Option("--learning-rate", "--lr", help="Else the recipe's.")
]
TrainPrecision = Annotated[
    str | None,
    typer.Option(help="fp32, bf16, or auto: bf16 where the hardware has it; else the recipe's."),
]
Seed = Annotated[
    int | None, typer.Option(help="Decides new weights, order and dropout; else the recipe's.")
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


_SHORT = {
    "encoder": "encoder.name",
    "model": "encoder.name",
    "data": "data.file",
    **{
        name: f"train.{name}"
        for name in ("max_steps", "batch_size", "epochs", "learning_rate", "precision", "seed")
    },
}
"""The settings that have an option of their own, by the name of its parameter."""


def print_settings(recipe: Recipe) -> None:
    """Print a recipe as YAML, with every setting explained."""
    from contrasent.report.settings import describe

    typer.echo(describe(recipe), nl=False)


def complete_recipe(incomplete: str) -> list[str]:
    """The packaged recipes that a shell may complete a word to."""
    from contrasent.recipe import recipes

    return [name for name in recipes() if name.startswith(incomplete)]


def load_settings(context: typer.Context, recipe: str) -> Recipe:
    """The recipe with the settings of the command line.

    Raises:
        ConfigError: a setting is given twice, by its option and by its name; or as `load_recipe`.
    """
    from contrasent.errors import ConfigError
    from contrasent.recipe import load_recipe

    options = {it.name or "": it.opts[0] for it in context.command.params}
    short = {
        key: (options[name], context.params[name])
        for name, key in _SHORT.items()
        if context.params.get(name) is not None
    }
    overrides = overrides_in(context.args, [word.removeprefix("--") for word in options.values()])
    for key, (option, value) in short.items():
        if key in overrides:
            shown = f"{option} {value}" if option.startswith("--") else f"{option.upper()} {value}"
            raise ConfigError(
                f"{shown} and --{key} {overrides[key]} are the same setting; give one of them"
            )
    return load_recipe(recipe, {**{key: value for key, (_, value) in short.items()}, **overrides})


def overrides_in(words: Sequence[str], options: Sequence[str]) -> dict[str, Any]:
    """``--section.key value`` and ``--section.key=value`` as a mapping; ``-`` in a key is ``_``.

    Raises:
        ConfigError: another word is among them; ``options`` are what it may have been meant for.
    """
    from contrasent.errors import ConfigError, pick

    settings: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or "." not in name:
            if word.startswith("--"):
                pick("option", name, options)
            raise ConfigError(f"unexpected {word!r}: settings are given as --section.key VALUE")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise ConfigError(f"--{name} needs a value: --{name} VALUE")
            value = rest.pop(0)
        name = name.replace("-", "_")
        settings[name] = _listed(name, value)
    return settings


def _listed(name: str, value: str) -> str | list[str]:
    """``a,b`` as a list where the setting is one; ``[a, b]`` and null are left to YAML."""
    from contrasent.recipe import Recipe, fields_of

    section, _, key = name.partition(".")
    setting = fields_of(type(getattr(Recipe(), section, None))).get(key)
    if setting is None or "list[" not in str(setting.type) or value == "null" or value[:1] == "[":
        return value
    return [part.strip() for part in value.split(",")]


Html = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Write a report to FILE: tables, figures, settings and how to repeat them, in one "
        "page that loads nothing.",
    ),
]


def report(path: Path | None, contents: Contents) -> None:
    """Write a report that names the command that was called, where one is asked for."""
    from contrasent.report.html.page import write_report

    if path is not None:
        write_report(path, replace(contents, command=("contrasent", *sys.argv[1:])))
        typer.echo(f"{path}", err=True)
