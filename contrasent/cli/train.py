"""``contrasent train`` and ``recipes``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contrasent.cli.parameters import (
    command,
    complete_recipe,
    listed,
    numbers_of_seeds,
    print_settings,
)
from contrasent.options import OnDevice, StartEncoder, TextColumns
from contrasent.settings import Spelling, TrainSettings, settings

if TYPE_CHECKING:
    from contrasent.profiling import StepProfile
    from contrasent.recipe import Recipe
    from contrasent.training.run_folder import RunFolder
    from contrasent.training.scoring import BeforeAndAfter, Result


_HEADINGS = ("recipe", "objective", "needs", "source")


@settings
class RecipesOptions:
    """Options of ``recipes``."""

    name: Annotated[str | None, Spelling(argument=True, complete=complete_recipe)] = None
    """Print this one instead, with every setting explained: a recipe file."""


@command
def recipes(options: RecipesOptions) -> None:
    """List the packaged recipes: what they minimise, the data they need, and their paper."""
    from contrasent.recipe import load_recipe, summarize_recipes

    if options.name is not None:
        print_settings(load_recipe(options.name))
        return
    rows = [_HEADINGS, *(astuple(summary) for summary in summarize_recipes())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


_ELSE = "Else the recipe's."
_SETTING = Spelling(of=TrainSettings, end=_ELSE)


@settings
class RunOptions(TextColumns, OnDevice):
    """Settings of the recipe that are set often, which :func:`load_settings` reads; and the run."""

    batch_size: Annotated[int | None, _SETTING] = None
    epochs: Annotated[int | None, _SETTING] = None
    max_steps: Annotated[int | None, _SETTING] = None
    learning_rate: Annotated[
        float | None, Spelling(of=TrainSettings, end=_ELSE, flag="--learning-rate/--lr")
    ] = None
    precision: Annotated[str | None, _SETTING] = None
    seed: Annotated[int | None, _SETTING] = None

    resume: bool = False
    """Continue what the same command began; 'train --resume RUN' continues a training run without
    its other options."""

    overwrite: bool = False
    """Replace the run in the output folder."""

    settings: bool = False
    """Print the recipe with every setting, and exit."""


_SHORT = {
    "encoder": "encoder.name",
    "model": "encoder.name",
    "data": "data.file",
    "columns": "data.columns",
    **{
        name: f"train.{name}"
        for name in ("batch_size", "epochs", "max_steps", "learning_rate", "precision", "seed")
    },
}
"""The settings that have an option of their own, by the name of its parameter."""


@settings
class TrainOptions(RunOptions, StartEncoder):
    """Options of ``train``."""

    recipe: Annotated[
        str | None, Spelling(argument=True, metavar="RECIPE", complete=complete_recipe)
    ] = None
    """A packaged recipe: unsup-simcse, sup-simcse or diffcse, or one of the papers' such as
    unsup-simcse-bert-base ('contrasent recipes' lists them); or a YAML file; or, with --resume, the
    folder of a run."""

    data: str | None = None
    """Training text: .txt, .csv, .tsv, .jsonl, .parquet, .gz of these, or a Hugging Face dataset
    id."""

    output: Path | None = None
    """Folder of the run; else runs/RECIPE."""

    seeds: Annotated[str | None, Spelling(metavar="S1,S2,...")] = None
    """Train once for each of these seeds, into seed-S of the output folder, and print mean,
    deviation and the difference to the start."""

    profile: bool = False
    """Record steps 4 to 6 into profile/trace.json.gz of the run, and tell where their time went."""


@command
def train(*, context: typer.Context, options: TrainOptions) -> None:
    """Train a sentence encoder on your text.

    Any setting of the recipe can follow as --section.key VALUE, for example --data.max_tokens 64
    --objective.temperature 0.1; --settings shows them all.
    """
    run = _run_to_resume(options.recipe, options.output, options)
    loaded = load_settings(context, str(run / "recipe.yaml") if run else options.recipe or "")
    if options.settings:
        print_settings(loaded)
        return

    folder = run or options.output or Path("runs") / Path(options.recipe or "").stem
    if options.seeds is not None:
        _refuse_with_seeds(context, options, profile=options.profile, run=run)
        _train_seeds(folder, loaded, numbers_of_seeds(options.seeds), options)
        return
    check_run(folder, loaded, options)
    recorded = _profile(loaded, folder, options.overwrite) if options.profile and leads() else None

    with recorded.of_updates() if recorded else nullcontext():
        result = run_in(folder, loaded, options)
    if result is not None:
        _print_result(result, loaded)
    if recorded is not None:
        typer.echo(recorded.summary, err=True)


def _refuse_with_seeds(
    context: typer.Context, options: RunOptions, *, profile: bool, run: Path | None
) -> None:
    """Raise ConfigError for what is of one run."""
    from contrasent.errors import ConfigError

    named = "--train.seed" in " ".join(context.args)
    for name, there in {"--seed": options.seed is not None or named, "--profile": profile}.items():
        if there:
            raise ConfigError(f"{name} is of one run, and --seeds of several; give one of them")
    if run is not None:
        raise ConfigError(
            "with --seeds, repeat the command with the recipe and --resume: complete runs stay"
        )


def _train_seeds(folder: Path, recipe: Recipe, seeds: tuple[int, ...], options: RunOptions) -> None:
    """Train once for each seed, and print the runs and what they have in common."""
    from rich.console import Console

    from contrasent.distributed import leave
    from contrasent.report.comparison import seeds_table
    from contrasent.report.table import print_table
    from contrasent.training.seeds import check_places, train_seeds

    kept: dict[str, Any] = {"resume": options.resume, "overwrite": options.overwrite}
    for place in check_places(folder, seeds, **kept).values():
        check_run(place, recipe, options)

    def tell(seed: int, result: Result | None) -> None:
        if result is None:
            typer.echo(f"seed {seed}: complete before", err=True)
            return
        print_speed(result)
        typer.echo(f"seed {seed}: {result.best or result.last}", err=True)

    kept |= {"on_run": tell, "device": options.device, "show_progress": True}
    try:
        runs = train_seeds(recipe, folder, seeds, **kept)
        leave()
    except KeyboardInterrupt as error:
        how = "interrupted; what was written is whole; go on with the same command and --resume"
        raise KeyboardInterrupt(how) from error
    if runs is not None:
        print_table(Console(), seeds_table(runs.folders, runs.scores))
        _print_encoder(runs.best)


def leads() -> bool:
    """Whether this is the first of the processes of a run."""
    return os.environ.get("RANK", "0") == "0"


def _run_to_resume(recipe: str | None, output: Path | None, options: RunOptions) -> Path | None:
    """The run that --resume names without a recipe; None if there is one.

    Raises:
        ConfigError: neither is named, or there is no run in the folder.
    """
    from contrasent.errors import ConfigError
    from contrasent.training.run_folder import RunFolder

    run = (output if recipe is None else Path(recipe)) if options.resume else None
    if recipe is None and run is None:
        raise ConfigError("name a recipe, such as unsup-simcse, or a run: train --resume RUN")
    is_name = recipe is not None and "/" not in recipe and not Path(recipe).is_dir()
    if run is None or run.suffix in (".yaml", ".yml") or is_name:
        return None
    if not RunFolder(run).is_run:
        raise ConfigError(f"{run} holds no training run, so there is nothing to resume")
    if recipe is not None and output is not None:
        raise ConfigError(f"--resume goes on in {run}; leave --output {output} out")
    return run


def check_run(root: Path, recipe: Recipe, options: RunOptions) -> RunFolder:
    """The folder of a run, and the file of its text, looked at before anything is loaded.

    Raises:
        ConfigError: a run cannot be there.
        DataError: the training text is no file that can be read.
    """
    from contrasent.data.examples import text_kind
    from contrasent.training.run_folder import RunFolder

    folder = RunFolder(root)
    if not leads():
        return folder
    folder.check_place(resume=options.resume, overwrite=options.overwrite)
    if recipe.data.file and not (options.resume and folder.is_complete):
        text_kind(recipe.data.file)
    return folder


def run_in(folder: Path, recipe: Recipe, options: RunOptions) -> Result | None:
    """Train in ``folder``; whoever interrupts that is told how to go on."""
    from contrasent.distributed import leave
    from contrasent.training.run import train as run

    try:
        kept: dict[str, Any] = {"resume": options.resume, "overwrite": options.overwrite}
        result = run(recipe, folder, **kept, device=options.device, show_progress=True)
        leave()
        return result
    except KeyboardInterrupt as error:
        if not (folder / "recipe.yaml").is_file():
            raise
        where = f"{error}; " if str(error) else "interrupted; what was written is whole; "
        how = f"contrasent train --resume {shlex.quote(str(folder))}"
        raise KeyboardInterrupt(f"{where}go on with: {how}") from error


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


def _print_result(result: Result, recipe: Recipe) -> None:
    from contrasent.training.callbacks import metric_name
    from contrasent.training.scoring import next_to_try

    print_speed(result)
    if result.best_score is not None and result.dev_metric is not None:
        metric, score = metric_name(result.dev_metric), result.best_score * 100
        typer.echo(f"best dev {metric} {score:.2f} at step {result.best_step}")
    print_gains(result.scores)
    if result.best_is_start:
        typer.echo(
            "Nothing beat the start on the dev task, so best is the start as it comes. To try "
            f"next: {next_to_try(recipe)}."
        )
    _print_encoder(result.best or result.last)


def print_gains(scores: BeforeAndAfter) -> None:
    """Print how start and result compare."""
    from rich.console import Console

    from contrasent.report.comparison import before_and_after
    from contrasent.report.table import print_table

    if scores.tasks is not None:
        for table in before_and_after(scores.tasks, scores.rows, scores.difference):
            print_table(Console(), table)
    for gain in scores.gains:
        typer.echo(gain.sentence)


def _print_encoder(encoder: Path) -> None:
    """Say where it is and what to do with it."""
    typer.echo(f"encoder: {encoder}")
    shown = shlex.quote(str(encoder))
    typer.echo(f"next: contrasent similarity {shown} 'a sentence' 'another sentence'", err=True)


def print_speed(result: Result) -> None:
    """Say how much was done in how long."""
    rate = result.examples / result.seconds if result.seconds else 0.0
    loss = "" if result.last_loss is None else f", last loss {result.last_loss:#.4g}"
    typer.echo(
        f"{result.steps} steps, {result.examples} examples in {result.seconds:.1f} s "
        f"({rate:.0f}/s, evaluation left out){loss}",
        err=True,
    )
    if result.cost is not None:
        typer.echo(result.cost.sentence, err=True)


def load_settings(context: typer.Context, recipe: str) -> Recipe:
    """The recipe with the settings of the command line.

    Raises:
        ConfigError: a setting is given twice, by its option and by its name; or as `load_recipe`.
    """
    from contrasent.errors import ConfigError
    from contrasent.recipe import load_recipe, overrides_in

    def objective() -> Iterable[str]:
        from contrasent.objectives import config_of

        return asdict(config_of(str(load_recipe(recipe).objective["name"]), {}))

    options = {it.name or "": it.opts[0] for it in context.command.params}
    short = {
        key: (options[name], context.params[name])
        for name, key in _SHORT.items()
        if context.params.get(name) is not None
    }
    overrides = overrides_in(
        context.args,
        [word.removeprefix("--") for word in options.values()],
        objective,
    )
    for key, (option, value) in short.items():
        if key in overrides:
            shown = f"{option} {value}" if option.startswith("--") else f"{option.upper()} {value}"
            raise ConfigError(
                f"{shown} and --{key} {overrides[key]} are the same setting; give one of them"
            )
    given = {key: value for key, (_, value) in short.items()}
    if "data.columns" in given:
        given["data.columns"] = listed(given["data.columns"])
    return load_recipe(recipe, {**given, **overrides})
