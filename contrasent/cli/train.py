"""``contrasent train``."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contrasent.cli.options import MaxSteps, OverwriteRun, PrintSettings, Resume

if TYPE_CHECKING:
    from contrasent.config import Recipe
    from contrasent.profiling import StepProfile
    from contrasent.train.run import Result

_OPTIONS = (
    *("encoder", "data", "output", "max-steps"),
    *("resume", "overwrite", "profile", "settings"),
)


def train(  # noqa: PLR0913 - the arguments are the command's options
    context: typer.Context,
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help="A packaged recipe: unsup-simcse, sup-simcse or diffcse, or one of the papers' "
            "such as unsup-simcse-bert-base; or a YAML file.",
            show_default=False,
        ),
    ],
    encoder: Annotated[
        str | None,
        typer.Option(help="Start from this folder, run or Hugging Face id.", show_default=False),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Training text: .txt, .csv, .tsv, .jsonl, .parquet, .gz of these, or a Hugging "
            "Face dataset id.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder of the run; else runs/RECIPE.", show_default=False),
    ] = None,
    max_steps: MaxSteps = None,
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

    Any setting of the recipe can follow as --section.key VALUE, for example --train.batch_size
    128 --objective.temperature 0.1; --settings shows them all.
    """
    from contrasent.config import load_recipe

    named = {"encoder.name": encoder, "data.file": data, "train.max_steps": max_steps}
    overrides = {key: value for key, value in named.items() if value is not None}
    loaded = load_recipe(recipe, {**overrides, **overrides_in(context.args)})
    if settings:
        from contrasent.report.settings import describe

        typer.echo(describe(loaded), nl=False)
        return

    from contrasent.train.folder import RunFolder

    folder = output or Path("runs") / Path(recipe).stem
    RunFolder(folder).check_place(resume=resume, overwrite=overwrite)

    recorded = _profile(loaded, folder, overwrite) if profile else None

    with recorded.of_updates() if recorded else nullcontext():
        result = run_in(folder, loaded, resume=resume, overwrite=overwrite)
    if result is not None:
        _report(result)
    if recorded is not None:
        from rich.console import Console

        from contrasent.report.profile import print_profile

        print_profile(Console(stderr=True), recorded)


def run_in(folder: Path, recipe: Recipe, *, resume: bool, overwrite: bool) -> Result | None:
    """Train in ``folder``; whoever interrupts that is told how to go on."""
    from contrasent.train.run import train as run

    try:
        return run(recipe, folder, resume=resume, overwrite=overwrite, show_progress=True)
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


def overrides_in(words: Sequence[str], options: Collection[str] = _OPTIONS) -> dict[str, Any]:
    """``--section.key value`` and ``--section.key=value`` as a mapping.

    Raises:
        ConfigError: another word is among them; ``options`` are what it may have been meant for.
    """
    from contrasent.errors import ConfigError, pick

    found: dict[str, Any] = {}
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
        found[name] = _listed(name, value)
    return found


def _listed(name: str, value: str) -> str | list[str]:
    """``a,b`` as a list where the setting is one; ``[a, b]`` and null are left to YAML."""
    from contrasent.config import Recipe, fields_of

    section, _, key = name.partition(".")
    setting = fields_of(type(getattr(Recipe(), section, None))).get(key)
    if setting is None or "list[" not in str(setting.type) or value == "null" or value[:1] == "[":
        return value
    return [part.strip() for part in value.split(",")]


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
