"""``contrasent recipes``."""

from __future__ import annotations

from dataclasses import astuple
from typing import Annotated

import typer

from contrasent.cli.options import complete_recipe, print_settings

_HEADINGS = ("recipe", "objective", "needs", "source")


def recipes(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Print this one instead, with every setting explained: a recipe file.",
            autocompletion=complete_recipe,
        ),
    ] = None,
) -> None:
    """List the packaged recipes: what they minimise, the data they need, and their paper."""
    from contrasent.recipe import load_recipe, summarize_recipes

    if name is not None:
        print_settings(load_recipe(name))
        return
    rows = [_HEADINGS, *(astuple(summary) for summary in summarize_recipes())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())
