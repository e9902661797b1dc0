"""``contrasent train``, ``recipes``, ``pretrain``, ``tune`` and ``adapt``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contrasent.cli.parameters import AGAIN, command, complete_recipe, describe, resumable
from contrasent.options import (
    AdaptOptions,
    Named,
    RunOptions,
    Seeds,
    TrainingOptions,
    TuneOptions,
    shared,
)
from contrasent.settings import Spelling, settings

if TYPE_CHECKING:
    from contrasent.adaptation.halving import Adaptation
    from contrasent.adaptation.tuning import Tuning
    from contrasent.recipe import Recipe
    from contrasent.report.table import Table
    from contrasent.training.scoring import BeforeAndAfter, Result

_HEADINGS = ("recipe", "objective", "needs", "source")
_PRETRAINING = "pretrain-mlm"


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
        typer.echo(describe(load_recipe(options.name)), nl=False)
        return
    rows = [_HEADINGS, *(astuple(summary) for summary in summarize_recipes())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


@settings
class ShowSettings:
    """What is done with the recipe."""

    settings: bool = False
    """Print the recipe with every setting, and exit."""


@settings
class TrainOptions(TrainingOptions, ShowSettings):
    """Options of ``train``."""

    recipe: Annotated[
        str | None, Spelling(argument=True, metavar="RECIPE", complete=complete_recipe)
    ] = None
    """A packaged recipe: unsup-simcse, sup-simcse or diffcse, or one of the papers' such as
    unsup-simcse-bert-base ('contrasent recipes' lists them); or a YAML file; or, with --resume, the
    folder of a run."""

    seeds: Annotated[Seeds | None, Spelling(metavar="S1,S2,...")] = None
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
    from contrasent import api

    run = _run_to_resume(options)
    recipe = str(run / "recipe.yaml") if run else options.recipe or ""
    folder = run or options.output or Path("runs") / Path(recipe).stem
    given = _given(context, recipe, options, TrainingOptions) | {"output": folder}
    loaded, _ = api.recipe_with(recipe, given, TrainingOptions)
    if options.settings:
        typer.echo(describe(loaded), nl=False)
    elif options.seeds is not None:
        _refuse_with_seeds(given, options, run)
        _train_seeds(folder, loaded, options)
    else:
        recorded = None
        if options.profile and os.environ.get("RANK", "0") == "0":
            from contrasent.profiling import StepProfile

            trace = folder / "profile" / "trace.json.gz"
            recorded = StepProfile(trace, overwrite=options.overwrite)
        with recorded.of_updates() if recorded else nullcontext():
            result = _trained(folder, recipe, given)
        if result is not None:
            _print_result(result, loaded)
        if recorded is not None:
            typer.echo(recorded.summary, err=True)


def _given(
    context: typer.Context, recipe: str, options: RunOptions, cls: type[RunOptions]
) -> dict[str, Any]:
    """The options of ``cls`` by name, and the settings of the command line by dotted name."""
    from contrasent.recipe import load_recipe, overrides_in

    def objective() -> Iterable[str]:
        from contrasent.objectives import config_of

        return asdict(config_of(str(load_recipe(recipe).objective["name"]), {}))

    flags = [it.opts[0].removeprefix("--") for it in context.command.params]
    return shared(options, cls) | overrides_in(context.args, flags, objective)


def _run_to_resume(options: TrainOptions) -> Path | None:
    """The run that --resume names without a recipe; None if there is one."""
    from contrasent.errors import ConfigError
    from contrasent.training.run_folder import RunFolder

    recipe, output = options.recipe, options.output
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


def _trained(folder: Path, recipe: str, given: dict[str, Any]) -> Result | None:
    """Train in ``folder``; whoever interrupts that is told how to go on."""
    from contrasent import api

    how = f"go on with: contrasent train --resume {shlex.quote(str(folder))}"
    with resumable(how, folder / "recipe.yaml"):
        result = api.train(recipe, **given, show_progress=True)
        from contrasent.distributed import leave  # with torch, once mistakes are told

        leave()
    return result


def _refuse_with_seeds(given: dict[str, Any], options: TrainOptions, run: Path | None) -> None:
    from contrasent.errors import ConfigError

    named = options.seed is not None or "train.seed" in given
    for name, there in {"--seed": named, "--profile": options.profile}.items():
        if there:
            raise ConfigError(f"{name} is of one run, and --seeds of several; give one of them")
    if run is not None:
        raise ConfigError(
            "with --seeds, repeat the command with the recipe and --resume: complete runs stay"
        )


def _train_seeds(folder: Path, recipe: Recipe, options: TrainOptions) -> None:
    """Train once for each seed, and print the runs and what they have in common."""
    from rich.console import Console

    from contrasent.api import check_run
    from contrasent.distributed import leave
    from contrasent.report.comparison import seeds_table
    from contrasent.report.table import print_table
    from contrasent.training.run import train_seeds

    seeds = tuple(options.seeds or ())
    kept: dict[str, Any] = {"resume": options.resume, "overwrite": options.overwrite}
    for seed in seeds:
        check_run(recipe, folder / f"seed-{seed}", **kept)

    def tell(seed: int, result: Result | None) -> None:
        if result is None:
            typer.echo(f"seed {seed}: complete before", err=True)
            return
        _print_speed(result)
        typer.echo(f"seed {seed}: {result.best or result.last}", err=True)

    kept |= {"on_run": tell, "device": options.device, "show_progress": True}
    with resumable(AGAIN):
        runs = train_seeds(recipe, folder, seeds, **kept)
        leave()
    if runs is not None:
        print_table(Console(), seeds_table(runs.folders, runs.scores))
        _print_encoder(runs.best)


def _print_result(result: Result, recipe: Recipe) -> None:
    from contrasent.training.callbacks import metric_name

    _print_speed(result)
    if result.best_score is not None and result.dev_metric is not None:
        metric, score = metric_name(result.dev_metric), result.best_score * 100
        typer.echo(f"best dev {metric} {score:.2f} at step {result.best_step}")
    _print_gains(result.scores)
    if result.best_is_start:
        lower = f"--lr {recipe.train.learning_rate / 3:.1g}"
        typer.echo(
            "Nothing beat the start on the dev task, so best is the start as it comes. To try "
            f"next: a lower rate ({lower}), more text of the kind the encoder is for, another view "
            "(--view.name crop)."
        )
    _print_encoder(result.best or result.last)


def _print_gains(scores: BeforeAndAfter) -> None:
    """Print how start and result compare."""
    from rich.console import Console

    from contrasent.report.comparison import before_and_after
    from contrasent.report.table import print_table

    if scores.tasks is not None:
        for table in before_and_after(scores.tasks, scores.rows, scores.difference):
            print_table(Console(), table)
    for gain in scores.gains:
        typer.echo(gain.sentence)


def _print_encoder(encoder: Path, more: str = "") -> None:
    """Say where it is and what to do with it."""
    typer.echo(f"encoder: {encoder}{more}")
    shown = shlex.quote(str(encoder))
    typer.echo(f"next: contrasent similarity {shown} 'a sentence' 'another sentence'", err=True)


def _print_recipe(recipe: Path) -> None:
    shown = shlex.quote(str(recipe))
    typer.echo(f"make it again: contrasent train {shown} --output runs/again", err=True)


def _print_speed(result: Result) -> None:
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


@settings
class PretrainOptions(Named, RunOptions, ShowSettings):
    """Options of ``pretrain``."""


@command
def pretrain(*, context: typer.Context, options: PretrainOptions) -> None:
    """Train a masked language model on your text.

    It serves as a start adapted to your domain or language, and as a generator. Any setting of
    the recipe pretrain-mlm can follow as --section.key VALUE, for example --data.max_tokens 256
    --objective.mask_rate 0.2; --settings shows them all.
    """
    from contrasent import api

    output = options.output or Path("runs") / _PRETRAINING
    given = _given(context, _PRETRAINING, options, RunOptions)
    given |= {"encoder": options.model, "output": output}
    recipe, _ = api.recipe_with(_PRETRAINING, given, TrainingOptions)
    if options.settings:
        typer.echo(describe(recipe), nl=False)
        return
    api.check_run(recipe, output, resume=options.resume, overwrite=options.overwrite)
    result = _trained(output, _PRETRAINING, given)
    if result is not None:
        _print_speed(result)
        typer.echo(f"masked language model: {result.last}")
        shown = shlex.quote(str(result.last))
        typer.echo(f"next: contrasent train unsup-simcse --encoder {shown} --data FILE", err=True)


@settings
class TuneCommandOptions(TuneOptions, ShowSettings):
    """Options of ``tune``."""

    recipe: Annotated[str, Spelling(argument=True, metavar="RECIPE", complete=complete_recipe)]
    """A packaged recipe or a YAML file."""


@command
def tune(*, context: typer.Context, options: TuneCommandOptions) -> None:
    """Search settings of a recipe by the score on a dev task.

    Tries every combination of the values; with a range, or fewer --trials, Optuna chooses. The run
    with the highest score on evaluation.task is kept, and scored beside the start on
    evaluation.final. Other settings can follow as --section.key VALUE; --resume goes on.
    """
    from contrasent import api
    from contrasent.adaptation.tuning import TuningTrial

    given = _given(context, options.recipe, options, TuneOptions)
    if options.settings:
        typer.echo(describe(api.recipe_with(options.recipe, given, TuneOptions)[0]), nl=False)
        return

    def tell(trial: TuningTrial) -> None:
        shown = " ".join(f"{key}={value}" for key, value in trial.settings.items())
        ended = trial.failure if trial.score is None else f"dev {100 * trial.score:.2f}"
        typer.echo(f"trial {trial.number}: {shown}: {ended}", err=True)

    with resumable(AGAIN):
        result = api.tune(options.recipe, **given, show_progress=True, on_trial=tell)
    _print_tuning(result)


def _print_tuning(result: Tuning) -> None:
    from rich.console import Console

    from contrasent.report.table import Cell, Table, number, print_table, score

    names = list(result.best.settings)
    ranked = sorted(result.trials, key=lambda it: (it.score is None, -(it.score or 0), it.number))
    rows = []
    for it in ranked:
        values = [it.settings.get(name, "-") for name in names]
        cells = [Cell(f"{each:.3g}" if isinstance(each, float) else str(each)) for each in values]
        rows.append((number(it.number, 0), *cells, score(it.score)))
    rows.append((Cell("start"), *(Cell("as it comes") for _ in names), score(result.start)))
    print_table(Console(), Table(("trial", *names, "dev"), tuple(rows)))
    best, start = result.best.score, result.start
    if best is not None and start is not None and best <= start:
        typer.echo("no trial has a higher dev score than the start as it comes, which is kept")
    _print_gains(result.scores)
    for it in result.trials:
        if it.failure:
            typer.echo(f"trial {it.number} failed: {it.failure}", err=True)
    typer.echo(f"encoder: {result.run / 'best'}")
    _print_recipe(result.recipe)


@command
def adapt(*, context: typer.Context, options: AdaptOptions) -> None:
    """Search for the best encoder of your text in a given time, without labels.

    Tries several recipes for a few steps each, continues those that do best on held-out text, and
    tells whether the result is better than the encoder as it comes. Settings of the recipes can
    follow as --section.key VALUE, but for those that the search or a candidate sets itself.
    """
    from contrasent.adaptation.halving import adapt as search
    from contrasent.recipe import overrides_in

    flags = [flag.removeprefix("--") for it in context.command.params for flag in it.opts]
    overrides = overrides_in(context.args, flags)
    with resumable(AGAIN, options.output / "search.json"):
        result = search(**vars(options), settings=overrides, show_progress=True)
    print_result(result)


def print_result(result: Adaptation) -> None:
    """Print what was tried, how start and result compare, and what to do next."""
    from rich.console import Console

    from contrasent.report.table import print_table

    print_table(Console(), _trials_table(result))
    for failure in result.failures:
        typer.echo(f"{failure.candidate} failed: {failure.reason}", err=True)
    _print_gains(result.scores)
    if result.recipe is None:
        typer.echo(
            "Nothing that was tried beat the start, so the result is the start as it comes. To try "
            "next: more text, more --minutes, or labelled pairs with --dev."
        )
    _print_encoder(result.encoder, f" ({result.seconds / 60:.1f} minutes)")
    typer.echo(f"report: {result.report}")
    if result.recipe is not None:
        _print_recipe(result.recipe)


def _trials_table(result: Adaptation) -> Table:
    """What was tried, in the order in which it was."""
    from contrasent.adaptation.candidates import CANDIDATES
    from contrasent.report.table import Cell, Table, number, score
    from contrasent.training.callbacks import metric_name

    start, empty = result.start_score, Cell("")
    rows = [(Cell("start"), Cell("the encoder as it comes"), empty, score(start), empty, empty)]
    for trial in result.trials:
        gain = score(trial.score - start, sign="+")
        numbers = (number(trial.steps, 0), score(trial.score), gain, number(trial.seconds, 0))
        description = CANDIDATES[trial.candidate].description
        rows.append((Cell(trial.candidate), Cell(description), *numbers))
    for it in result.failures:
        described = Cell(CANDIDATES[it.candidate].description)
        rows.append((Cell(it.candidate), described, Cell("failed"), empty, empty, empty))
    metric = metric_name(result.dev_metric)
    headings = ("tried", "what it trains on", "steps", f"dev {metric}", "gain", "seconds")
    return Table(headings, tuple(rows), texts=frozenset({1}))
