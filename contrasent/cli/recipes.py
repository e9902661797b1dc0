"""``contrasent recipes``, and recipes as commented YAML."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import asdict, astuple
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from contrasent.recipe import Recipe

_HEADINGS = ("recipe", "objective", "needs", "source")
_WIDTH = 96


def complete_recipe(incomplete: str) -> list[str]:
    """The packaged recipes that a shell may complete a word to."""
    from contrasent.recipe import recipes as packaged

    return [name for name in packaged() if name.startswith(incomplete)]


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


def print_settings(recipe: Recipe) -> None:
    """Print a recipe as YAML, with every setting explained."""
    typer.echo(describe(recipe), nl=False)


def describe(recipe: Recipe) -> str:
    """Every setting of ``recipe`` with its value, under a comment that explains it.

    The text is a recipe file that `contrasent train` takes.

    Raises:
        ConfigError: the objective or one of its settings is unknown.
    """
    from contrasent.objectives import available, config_of
    from contrasent.recipe import explanations

    intro = explanations(type(recipe))
    text = []
    for section, values in asdict(recipe).items():
        settings, part, comments = values, getattr(recipe, section), {}
        if section == "objective":
            name = str(values.get("name", "simcse"))
            part = config_of(name, {k: v for k, v in values.items() if k != "name"})
            settings = {"name": name, **asdict(part)}
            comments = {"name": f"One of: {', '.join(available())}."}
        lines = _section(settings, {**comments, **explanations(type(part))})
        text.append(f"{_comment(intro[section])}{section}:\n{lines}")
    return "\n".join(text)


def _section(settings: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    import yaml

    lines = [
        _comment(comments.get(key, "")) + yaml.safe_dump({key: value}, allow_unicode=True)
        for key, value in settings.items()
    ]
    return textwrap.indent("".join(lines), "  ")


def _comment(text: str) -> str:
    wrapped = textwrap.wrap(" ".join(text.split()), _WIDTH)
    return "".join(f"# {line}\n" for line in wrapped)
