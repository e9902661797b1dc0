"""``contrasent train`` and ``contrasent pretrain``."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
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
    complete_recipe,
    load_settings,
    print_settings,
)

if TYPE_CHECKING:
    from contrasent.profiling import StepProfile
    from contrasent.recipe import Recipe
    from contrasent.training.folder import RunFolder
    from contrasent.training.mlm_eval import HeldOut, HeldOutText
    from contrasent.training.run import Result


def train(  # noqa: PLR0913 - the arguments are the command's options
    context: typer.Context,
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A packaged recipe: unsup-simcse, sup-simcse or diffcse, or one of the papers' "
            "such as unsup-simcse-bert-base ('contrasent recipes' lists them); or a YAML file.",
            autocompletion=complete_recipe,
        ),
    ],
    encoder: Annotated[
        str | None, typer.Option(help="Start from this folder, run or Hugging Face id.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Training text: .txt, .csv, .tsv, .jsonl, .parquet, .gz of these, or a Hugging "
            "Face dataset id."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the run; else runs/RECIPE.")
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
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="Record steps 4 to 6 into profile/trace.json.gz of the run, and tell where their "
            "time went.",
        ),
    ] = False,
    settings: PrintSettings = False,
) -> None:
    """Train a sentence encoder on your text.

    Any setting of the recipe can follow as --section.key VALUE, for example --data.max_tokens 64
    --objective.temperature 0.1; --settings shows them all.
    """
    del encoder, data, batch_size, epochs, max_steps, learning_rate, precision, seed  # in context
    loaded = load_settings(context, recipe)
    if settings:
        print_settings(loaded)
        return

    folder = output or Path("runs") / Path(recipe).stem
    check_run(folder, loaded, resume=resume, overwrite=overwrite)
    recorded = _profile(loaded, folder, overwrite) if profile else None

    with recorded.of_updates() if recorded else nullcontext():
        result = run_in(folder, loaded, device, resume=resume, overwrite=overwrite)
    if result is not None:
        _report(result)
    if recorded is not None:
        from rich.console import Console

        from contrasent.report.profile import print_profile

        print_profile(Console(stderr=True), recorded)


def check_run(root: Path, recipe: Recipe, *, resume: bool, overwrite: bool) -> RunFolder:
    """The folder of a run, and the file of its text, looked at before anything is loaded.

    Raises:
        ConfigError: a run cannot be there.
        DataError: the training text is no file that can be read.
    """
    from contrasent.data.sources import source_kind
    from contrasent.training.folder import RunFolder

    folder = RunFolder(root)
    folder.check_place(resume=resume, overwrite=overwrite)
    if recipe.data.file and not (resume and folder.is_complete):
        source_kind(recipe.data.file)
    return folder


def run_in(
    folder: Path, recipe: Recipe, device: str | None, *, resume: bool, overwrite: bool
) -> Result | None:
    """Train in ``folder``; whoever interrupts that is told how to go on."""
    from contrasent.training.run import train as run

    try:
        return run(
            recipe, folder, resume=resume, overwrite=overwrite, device=device, show_progress=True
        )
    except KeyboardInterrupt as error:
        if not (folder / "recipe.yaml").is_file():
            raise
        raise KeyboardInterrupt("go on with the same command and --resume") from error


def _profile(recipe: Recipe, folder: Path, overwrite: bool) -> StepProfile:
    """The profile of a run in ``folder``; ConfigError where there cannot be one."""
    from contrasent.errors import ConfigError
    from contrasent.profiling import StepProfile

    steps = recipe.train.max_steps
    if steps is not None and steps < StepProfile.needed:
        raise ConfigError(
            f"train.max_steps is {steps}, but --profile records up to step {StepProfile.needed}; "
            "make more steps, or leave it out"
        )
    return StepProfile(folder / "profile" / "trace.json.gz", overwrite=overwrite)


def _report(result: Result) -> None:
    from rich.console import Console

    from contrasent.report.tables import Layout, print_sts

    report_speed(result)
    if result.best_score is not None:
        typer.echo(f"best dev Spearman {result.best_score * 100:.2f} at step {result.best_step}")
    if result.before and result.after:
        rows = {"before": result.before, "after": result.after}
        print_sts(Console(), rows, Layout(difference=("before", "after")))
    encoder = result.best or result.last
    typer.echo(f"encoder: {encoder}")
    shown = shlex.quote(str(encoder))
    typer.echo(f"next: contrasent similarity {shown} 'a sentence' 'another sentence'", err=True)


def report_speed(result: Result) -> None:
    """Say how much was done in how long."""
    rate = result.examples / result.seconds if result.seconds else 0.0
    typer.echo(
        f"{result.steps} steps, {result.examples} examples in {result.seconds:.1f} s "
        f"({rate:.0f}/s, evaluation left out)",
        err=True,
    )


_RECIPE = "pretrain-mlm"


def pretrain(  # noqa: PLR0913 - the arguments are the command's options
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Start from this folder, run or Hugging Face id.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Training text, a sentence or paragraph per line or row: .txt, .csv, .tsv, "
            ".jsonl, .parquet, .gz of these, or a Hugging Face dataset id."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the run; else runs/pretrain-mlm.")
    ] = None,
    held_out: Annotated[
        Path | None,
        typer.Option(help="Text that is not trained on, to measure the loss on before and after."),
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
    from contrasent.training.setup import complete

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
    from contrasent.data.tokenizer import Tokenizer
    from contrasent.errors import CheckpointError
    from contrasent.model.hub import resolve
    from contrasent.model.masked_lm import MaskedLm
    from contrasent.training.mlm_eval import HeldOutText

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
