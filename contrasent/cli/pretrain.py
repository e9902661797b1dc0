"""``contrasent pretrain``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contrasent.cli.options import (
    BatchSize,
    Device,
    Epochs,
    LearningRate,
    MaxSteps,
    OverwriteRun,
    PrintSettings,
    Resume,
    Seed,
    TrainPrecision,
    load_settings,
    print_settings,
)
from contrasent.cli.train import check_run, report_speed, run_in

if TYPE_CHECKING:
    from contrasent.config import Recipe
    from contrasent.train.folder import RunFolder
    from contrasent.train.held_out import HeldOut, HeldOutText

_RECIPE = "pretrain-mlm"


def pretrain(  # noqa: PLR0913 - the arguments are the command's options
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            help="Start from this folder, run or Hugging Face id.",
            show_default=False,
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            help="Training text, a sentence or paragraph per line or row: .txt, .csv, .tsv, "
            ".jsonl, .parquet, .gz of these, or a Hugging Face dataset id.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder of the run; else runs/pretrain-mlm.", show_default=False),
    ] = None,
    held_out: Annotated[
        Path | None,
        typer.Option(
            help="Text that is not trained on, to measure the loss on before and after.",
            show_default=False,
        ),
    ] = None,
    batch_size: BatchSize = None,
    epochs: Epochs = None,
    max_steps: MaxSteps = None,
    learning_rate: LearningRate = None,
    precision: TrainPrecision = None,
    seed: Seed = None,
    device: Device = None,
    resume: Resume = False,
    overwrite: OverwriteRun = False,
    settings: PrintSettings = False,
) -> None:
    """Train a masked language model on your text.

    It serves as a start adapted to your domain or language, and as a generator. Any setting of
    the recipe pretrain-mlm can follow as --section.key VALUE, for example --data.max_tokens 256
    --objective.mask_rate 0.2; --settings shows them all.
    """
    del model, data, batch_size, epochs, max_steps, learning_rate, precision, seed  # in context
    recipe = load_settings(context, _RECIPE)
    if settings:
        print_settings(recipe)
        return

    folder = check_run(output or Path("runs") / _RECIPE, recipe, resume=resume, overwrite=overwrite)
    from contrasent.errors import ConfigError
    from contrasent.train.start import complete

    recipe = complete(recipe)
    if recipe.objective["name"] != "mlm":
        raise ConfigError(
            f"objective.name is {recipe.objective['name']}, but pretrain trains with mlm alone; "
            "for other objectives take contrasent train"
        )
    text, before = _measured(recipe, held_out, device) if held_out else (None, None)
    result = run_in(folder.root, recipe, device, resume=resume, overwrite=overwrite)
    if result is not None:
        report_speed(result)
    if text is not None and held_out is not None and folder.is_complete:
        _compare(folder, held_out, device, text, before)
    if result is not None:
        typer.echo(f"masked language model: {result.last}")
        shown = shlex.quote(str(result.last))
        typer.echo(f"next: contrasent train unsup-simcse --encoder {shown} --data FILE", err=True)


def _measured(recipe: Recipe, file: Path, device: str | None) -> tuple[HeldOutText, HeldOut | None]:
    """The held-out text, and what the start scores on it; None if it has no head yet."""
    from contrasent.data.tokens import Tokenizer
    from contrasent.errors import CheckpointError
    from contrasent.model.hub import resolve
    from contrasent.model.masked_lm import MaskedLm
    from contrasent.train.held_out import HeldOutText

    name = recipe.encoder.name
    text = HeldOutText.read(
        file,
        Tokenizer.load(resolve(name)),
        recipe.data.max_tokens,
        recipe.objective["mask_rate"],
        recipe.train.seed,
    )
    try:
        return text, text.measure(MaskedLm.load(name), device=device)
    except CheckpointError:
        return text, None


def _compare(
    folder: RunFolder, file: Path, device: str | None, text: HeldOutText, before: HeldOut | None
) -> None:
    """Print and keep the scores before and after."""
    import json
    from dataclasses import asdict

    from contrasent.files import sha256_of, write_text
    from contrasent.model.masked_lm import MaskedLm

    after = text.measure(MaskedLm.load(folder.last), device=device)
    found = {"before": before, "after": after}
    typer.echo(f"{after.tokens} hidden tokens of {file.name}:")
    for when, score in found.items():
        told = (
            f"loss {score.loss:.3f} nats, accuracy {score.accuracy:.1%}"
            if score
            else "no masked-LM head yet"
        )
        typer.echo(f"  {when:6} {told}")
    kept = {
        "file": file.name,
        "sha256": sha256_of(file),
        "mask_rate": text.mask_rate,
        "seed": text.seed,
        **{when: score and asdict(score) for when, score in found.items()},
    }
    write_text(folder.held_out, json.dumps(kept, indent=2) + "\n")
