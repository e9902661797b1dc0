"""The tree of commands."""

from __future__ import annotations

from typing import Annotated

import typer

from contrasent import __version__
from contrasent.cli.data import check
from contrasent.cli.encode import encode
from contrasent.cli.evaluate import evaluate
from contrasent.cli.fetch import fetch
from contrasent.cli.guard import guarded
from contrasent.cli.index import add, build, info
from contrasent.cli.quickstart import quickstart
from contrasent.cli.search import search
from contrasent.cli.similarity import similarity
from contrasent.cli.train import train

_HELP = {"help_option_names": ["-h", "--help"]}
# Every other word of `train` may be a setting of the recipe: --section.key value.
_SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}

app = typer.Typer(
    name="contrasent",
    help="Train, evaluate and use contrastive sentence embeddings.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=_HELP,
)
data_app = typer.Typer(help="Check training text; get evaluation data.", no_args_is_help=True)
index_app = typer.Typer(help="Build and extend a search index.", no_args_is_help=True)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    """Train, evaluate and use contrastive sentence embeddings."""
    if version:
        typer.echo(f"contrasent {__version__}")
        raise typer.Exit


app.command()(guarded(quickstart))
app.command(context_settings=_SETTINGS)(guarded(train))
for _command in (evaluate, encode, similarity):
    app.command()(guarded(_command))
for _command in (build, add, info):
    index_app.command()(guarded(_command))
app.add_typer(index_app, name="index")
app.command()(guarded(search))
for _command in (check, fetch):
    data_app.command()(guarded(_command))
app.add_typer(data_app, name="data")


def main() -> None:
    """Run the command line."""
    app()
