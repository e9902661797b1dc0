"""``contrasent adapt``, ``tune``, ``pretrain`` and ``data mine``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import Field, PositiveInt

from contrasent.cli.parameters import command, complete_recipe, print_settings
from contrasent.cli.train import (
    RunOptions,
    check_run,
    leads,
    load_settings,
    print_gains,
    print_speed,
    run_in,
)
from contrasent.options import Listed, MiningOptions, Named, NewFile, OnDevice, StartEncoder, shared
from contrasent.settings import ARGUMENT, Spelling, settings

if TYPE_CHECKING:
    from contrasent.adaptation.halving import Adaptation
    from contrasent.adaptation.tuning import Tuning
    from contrasent.report.table import Table
    from contrasent.training.masked_text import HeldOutScores


@settings
class AdaptOptions(OnDevice):
    """Options of ``adapt``."""

    encoder: Annotated[str, Spelling(argument=True, of=StartEncoder)]

    data: str
    """Text without labels, a sentence or text per line or row; in a .txt an empty line ends a
    document."""

    output: Path = Path("runs/adapt")
    """Folder of the search."""

    minutes: Annotated[float, Field(ge=0)] = 30
    """Time for all of it."""

    dev: str | None = None
    """A task or file of rated pairs that chooses; else held-out text."""

    test: Listed = ()
    """Comma-separated tasks to score the start and the result on."""

    candidates: Listed | None = None
    """Comma-separated names of what is tried; else all that fit."""

    seed: int = 42
    """Seed of the held-out text and all runs."""

    resume: bool = False
    """Go on with the search in the output folder."""

    overwrite: bool = False
    """Replace the search in the output folder."""


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
    try:
        result = search(
            options.encoder,
            data=options.data,
            output=options.output,
            minutes=options.minutes,
            dev=options.dev,
            test=options.test,
            candidates=options.candidates,
            settings=overrides_in(context.args, flags),
            seed=options.seed,
            resume=options.resume,
            overwrite=options.overwrite,
            device=options.device,
            show_progress=True,
        )
    except KeyboardInterrupt as error:
        if not (options.output / "search.json").is_file():
            raise
        how = "interrupted; what was written is whole; go on with the same command and --resume"
        raise KeyboardInterrupt(how) from error
    print_result(result)


def print_result(result: Adaptation) -> None:
    """Print what was tried, how start and result compare, and what to do next."""
    from rich.console import Console

    from contrasent.report.table import print_table

    print_table(Console(), trials_table(result))
    for failure in result.failures:
        typer.echo(f"{failure.candidate} failed: {failure.reason}", err=True)
    print_gains(result.scores)
    if result.recipe is None:
        typer.echo(
            "Nothing that was tried beat the start, so the result is the start as it comes. To try "
            "next: more text, more --minutes, or labelled pairs with --dev."
        )
    typer.echo(f"encoder: {result.encoder} ({result.seconds / 60:.1f} minutes)")
    typer.echo(f"report: {result.report}")
    encoder = shlex.quote(str(result.encoder))
    typer.echo(f"next: contrasent similarity {encoder} 'a sentence' 'another sentence'", err=True)
    if result.recipe is not None:
        recipe = shlex.quote(str(result.recipe))
        typer.echo(f"make it again: contrasent train {recipe} --output runs/again", err=True)


def trials_table(result: Adaptation) -> Table:
    """What was tried, in the order in which it was."""
    from contrasent.adaptation.candidates import CANDIDATES
    from contrasent.report.table import Cell, Table, number, score
    from contrasent.training.callbacks import metric_name

    start, empty = result.start_score, Cell("")
    rows = [
        (
            Cell(trial.candidate),
            Cell(CANDIDATES[trial.candidate].description),
            number(trial.steps, 0),
            score(trial.score),
            score(trial.score - start, sign="+"),
            number(trial.seconds, 0),
        )
        for trial in result.trials
    ]
    failed = [
        (
            Cell(it.candidate),
            Cell(CANDIDATES[it.candidate].description),
            Cell("failed"),
            *[empty] * 3,
        )
        for it in result.failures
    ]
    metric = metric_name(result.dev_metric)
    headings = ("tried", "what it trains on", "steps", f"dev {metric}", "gain", "seconds")
    start_row = (Cell("start"), Cell("the encoder as it comes"), empty, score(start), empty, empty)
    return Table(headings, (start_row, *rows, *failed), texts=frozenset({1}))


_RECIPE = "pretrain-mlm"


@settings
class PretrainOptions(RunOptions):
    """Options of ``pretrain``."""

    model: Annotated[str, Spelling(argument=True, of=StartEncoder, name="encoder")]

    data: str | None = None
    """Training text, a sentence or paragraph per line or row: .txt, .csv, .tsv, .jsonl, .parquet,
    .gz of these, or a Hugging Face dataset id."""

    output: Path | None = None
    """Folder of the run; else runs/pretrain-mlm."""

    held_out: Path | None = None
    """Text that is not trained on, to measure the loss on before and after."""


@command
def pretrain(*, context: typer.Context, options: PretrainOptions) -> None:
    """Train a masked language model on your text.

    It serves as a start adapted to your domain or language, and as a generator. Any setting of
    the recipe pretrain-mlm can follow as --section.key VALUE, for example --data.max_tokens 256
    --objective.mask_rate 0.2; --settings shows them all.
    """
    recipe = load_settings(context, _RECIPE)
    if options.settings:
        print_settings(recipe)
        return

    folder = check_run(options.output or Path("runs") / _RECIPE, recipe, options)
    from contrasent.errors import ConfigError
    from contrasent.training.masked_text import HeldOutScores
    from contrasent.training.run_folder import complete

    recipe = complete(recipe)
    if recipe.objective["name"] != "mlm":
        raise ConfigError(
            f"objective.name is {recipe.objective['name']}, but pretrain trains with mlm alone; "
            "for other objectives take contrasent train"
        )
    scores = (
        HeldOutScores.of_start(recipe, options.held_out, options.device)
        if options.held_out and leads()
        else None
    )
    result = run_in(folder.root, recipe, options)
    if result is not None:
        print_speed(result)
    if scores is not None and folder.is_complete:
        _print_held_out(scores.with_result(folder))
    if result is not None:
        typer.echo(f"masked language model: {result.last}")
        shown = shlex.quote(str(result.last))
        typer.echo(f"next: contrasent train unsup-simcse --encoder {shown} --data FILE", err=True)


def _print_held_out(scores: HeldOutScores) -> None:
    if scores.after is None:
        return
    typer.echo(f"{scores.after.tokens} hidden tokens of {scores.file.name}:")
    for when, score in {"before": scores.before, "after": scores.after}.items():
        text = "no masked-LM head yet"
        if score is not None:
            text = f"loss {score.loss:.3f} nats, accuracy {score.accuracy:.1%}"
        typer.echo(f"  {when:6} {text}")


@settings
class TuneOptions(RunOptions, StartEncoder):
    """Options of ``tune``."""

    recipe: Annotated[str, Spelling(argument=True, metavar="RECIPE", complete=complete_recipe)]
    """A packaged recipe or a YAML file."""

    space: Annotated[list[str], Spelling(metavar="SETTING=VALUES")]
    """A setting and what to try: values, as train.batch_size=64,128, or a range, as
    train.learning_rate=1e-6..1e-4:log. Or a paper's grid: simcse or diffcse. Repeatable."""

    trials: PositiveInt | None = None
    """Training runs; else one for each combination of values, or 20 with a range."""

    data: str | None = None
    """Training text, as for train."""

    output: Path | None = None
    """Folder of the search; else runs/tune-RECIPE."""


@command
def tune(*, context: typer.Context, options: TuneOptions) -> None:
    """Search settings of a recipe by the score on a dev task.

    Tries every combination of the values; with a range, or fewer --trials, Optuna chooses. The run
    with the highest score on evaluation.task is kept, and scored beside the start on
    evaluation.final. Other settings can follow as --section.key VALUE; --resume goes on.
    """
    from contrasent.adaptation import tuning

    axes = tuning.read_space(options.space)
    loaded = load_settings(context, options.recipe)
    if options.settings:
        print_settings(loaded)
        return

    def tell(trial: tuning.TuningTrial) -> None:
        shown = " ".join(f"{key}={value}" for key, value in trial.settings.items())
        ended = trial.failure if trial.score is None else f"dev {100 * trial.score:.2f}"
        typer.echo(f"trial {trial.number}: {shown}: {ended}", err=True)

    try:
        result = tuning.tune(
            loaded,
            axes,
            options.output or Path("runs") / f"tune-{Path(options.recipe).stem}",
            trials=options.trials,
            resume=options.resume,
            overwrite=options.overwrite,
            device=options.device,
            show_progress=True,
            on_trial=tell,
        )
    except KeyboardInterrupt as error:
        how = "interrupted; what was written is whole; go on with the same command and --resume"
        raise KeyboardInterrupt(how) from error
    _print_tuning(result)


def _print_tuning(result: Tuning) -> None:
    from rich.console import Console

    from contrasent.report.table import Cell, Table, number, print_table, score

    names = list(result.best.settings)
    ranked = sorted(result.trials, key=lambda it: (it.score is None, -(it.score or 0), it.number))
    rows = [
        (
            number(it.number, 0),
            *(Cell(f"{value:.3g}" if isinstance(value, float) else str(value)) for value in values),
            score(it.score),
        )
        for it in ranked
        for values in [[it.settings.get(name, "-") for name in names]]
    ]
    rows.append((Cell("start"), *(Cell("as it comes") for _ in names), score(result.start)))
    print_table(Console(), Table(("trial", *names, "dev"), tuple(rows)))
    best, start = result.best.score, result.start
    if best is not None and start is not None and best <= start:
        typer.echo("no trial has a higher dev score than the start as it comes, which is kept")
    print_gains(result.scores)
    for it in result.trials:
        if it.failure:
            typer.echo(f"trial {it.number} failed: {it.failure}", err=True)
    typer.echo(f"encoder: {result.run / 'best'}")
    again = shlex.quote(str(result.recipe))
    typer.echo(f"make it again: contrasent train {again} --output runs/again", err=True)


@settings
class MineOptions(Named, MiningOptions, NewFile):
    """Options of ``mine``."""

    pairs: Annotated[str, ARGUMENT]
    """Anchors and positives: a file (.csv, .tsv, .jsonl, .parquet) or a data set on the Hugging
    Face hub as org/name:config@split."""


@command
def mine(options: MineOptions) -> None:
    """Find hard negatives for pairs: near the anchor, and clearly farther than its positive.

    Writes sent0, sent1 and hard_neg, as 'contrasent train sup-simcse' takes them. Never takes the
    anchor or one of its positives, however they are cased and punctuated.
    """
    from rich.console import Console

    from contrasent import api
    from contrasent.report.table import print_table
    from contrasent.report.training_text import mined_table

    mined = api.mine(
        options.model,
        options.pairs,
        output=options.output,
        show_progress=True,
        **shared(options, MiningOptions),
    )
    print_table(Console(), mined_table(mined))
    shown = f"--encoder {shlex.quote(options.model)} --data {shlex.quote(str(options.output))}"
    typer.echo(f"next: contrasent train sup-simcse {shown}", err=True)
