"""A recipe as commented YAML: the comments are the docstrings of the settings."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import yaml

from contrasent.objectives import available, config_of
from contrasent.recipe import Recipe, explanations

_WIDTH = 96


def describe(recipe: Recipe) -> str:
    """Every setting of ``recipe`` with its value, under a comment that explains it.

    The text is a recipe file that `contrasent train` takes.

    Raises:
        ConfigError: the objective or one of its settings is unknown.
    """
    sections: dict[str, str] = {}
    for section, values in asdict(recipe).items():
        part = getattr(recipe, section)
        said: dict[str, str] = {}
        if section == "objective":
            name = str(values.get("name", "simcse"))
            config = config_of(name, {k: v for k, v in values.items() if k != "name"})
            values = {"name": name, **asdict(config)}  # noqa: PLW2901
            part = config
            said = {"name": f"One of: {', '.join(available())}."}
        sections[section] = _section(values, {**said, **explanations(type(part))})
    intro = explanations(Recipe)
    return "\n".join(f"{_comment(intro[name])}{name}:\n{text}" for name, text in sections.items())


def _section(values: Mapping[str, Any], said: Mapping[str, str]) -> str:
    lines = []
    for key, value in values.items():
        content = yaml.safe_dump({key: value}, allow_unicode=True)
        lines.append(_comment(said.get(key, "")) + content)
    return textwrap.indent("".join(lines), "  ")


def _comment(text: str) -> str:
    wrapped = textwrap.wrap(" ".join(text.split()), _WIDTH)
    return "".join(f"# {line}\n" for line in wrapped)
