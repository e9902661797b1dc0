"""The tree of commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from contrasent import __version__
from contrasent.cli.analyze import analyze
from contrasent.cli.build import captions, duplicates, nli, paraphrases
from contrasent.cli.calibrate import calibrate
from contrasent.cli.data import check
from contrasent.cli.encode import encode
from contrasent.cli.evaluate import evaluate
from contrasent.cli.fetch import fetch
from contrasent.cli.fit import flow, sif, whitening
from contrasent.cli.guard import guarded
from contrasent.cli.index import add, build, info
from contrasent.cli.leaks import leaks
from contrasent.cli.mteb import mteb
from contrasent.cli.neighbours import neighbours
from contrasent.cli.pretrain import pretrain
from contrasent.cli.published import infersent
from contrasent.cli.quickstart import quickstart
from contrasent.cli.recipes import recipes
from contrasent.cli.reproduce import reproduce
from contrasent.cli.search import search
from contrasent.cli.similarity import similarity
from contrasent.cli.train import train

_HELP = {"help_option_names": ["-h", "--help"]}
# Every other word of `train` and `pretrain` may be a setting of the recipe: --section.key value.
_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}

# Plain help: the framed one wraps some texts at odd places, and takes [ ] in them for markup.
app = typer.Typer(
    name="contrasent",
    help="Train, evaluate and use contrastive sentence embeddings.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=_HELP,
)
data_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
build_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
index_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
fit_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
import_app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"contrasent {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            is_eager=True,
            callback=_tell_version,
        ),
    ] = False,
) -> None:
    """Train, evaluate and use contrastive sentence embeddings."""


def _add(
    to: typer.Typer, command: Callable[..., None], settings: dict[str, Any] | None = None
) -> None:
    """Make a function a command; the list of commands shows the first paragraph of its text."""
    first = " ".join((command.__doc__ or "").partition("\n\n")[0].split())
    to.command(short_help=first, context_settings=settings)(guarded(command))


_add(app, quickstart)
_add(app, train, _SETTINGS)
_add(app, pretrain, _SETTINGS)
_add(app, recipes)
_add(fit_app, whitening)
_add(fit_app, flow)
_add(fit_app, sif)
app.add_typer(fit_app, name="fit", help="Fit a map to an encoder's embeddings, to go with it.")
_add(import_app, infersent)
app.add_typer(import_app, name="import", help="Make encoders of published weights of other forms.")
_add(app, evaluate)
_add(app, analyze)
_add(app, neighbours)
_add(app, mteb)
_add(app, reproduce)
_add(app, encode)
_add(app, similarity)
_add(app, calibrate)
_add(index_app, build)
_add(index_app, add)
_add(index_app, info)
app.add_typer(index_app, name="index", help="Build and extend a search index.")
_add(app, search)
_add(data_app, check)
_add(data_app, fetch)
_add(data_app, leaks)
_add(build_app, nli)
_add(build_app, captions)
_add(build_app, duplicates)
_add(build_app, paraphrases)
data_app.add_typer(build_app, name="build", help="Make training files from labelled sentences.")
app.add_typer(data_app, name="data", help="Check and build training text; get evaluation data.")


def main() -> None:
    """Run the command line."""
    app()
