"""The registry of objectives: a file of this folder each.

``simcse.py`` is the objective "simcse". A class in any other module that can be imported is named
``module:Class``.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any

from contrasent.errors import ConfigError, pick
from contrasent.model.encoder import SentenceEncoder
from contrasent.objectives.base import (
    MATRYOSHKA,
    Matryoshka,
    Objective,
    Start,
    Terms,
    read_dimensions,
)
from contrasent.recipe import validate

__all__ = [
    "MATRYOSHKA",
    "Objective",
    "Start",
    "Terms",
    "available",
    "build",
    "config_of",
    "name_of",
    "objective_class",
]


def available() -> list[str]:
    """The objectives of this folder, without importing them."""
    names = {module.name for module in pkgutil.iter_modules(__path__)}
    return sorted(names - {"base"})


def build(
    name: str,
    settings: Mapping[str, Any],
    *,
    width: int,
    data_views: int,
    encoder: SentenceEncoder | None = None,
    batch_size: int | None = None,
) -> Objective:
    """Make the objective ``name`` of fields of its ``Config``, and of ``matryoshka`` if asked for.

    ConfigError if there is no such objective or setting, or examples have too few sentences.
    """
    config, kind = config_of(name, settings), objective_class(name)
    start, dimensions = Start(width, data_views, encoder, batch_size), read_dimensions(settings)
    return (
        Matryoshka(partial(kind, config), start, dimensions) if dimensions else kind(config, start)
    )


def config_of(name: str, settings: Mapping[str, Any]) -> Any:
    """The validated settings of the objective ``name``, those of ``MATRYOSHKA`` left out."""
    read_dimensions(settings)
    own = {key: value for key, value in settings.items() if key not in MATRYOSHKA}
    return validate(objective_class(name).config_class, own, "objective")


def objective_class(name: str) -> type[Objective]:
    """The class of the objective ``name``; errors as ``build``."""
    module, _, of_module = name.rpartition(":")
    if not module:
        module = f"{__name__}.{pick('objective', name, available())}"
    try:
        values = vars(import_module(module))
    except ImportError as error:
        raise ConfigError(f"cannot import the objective {name!r}: {error}") from error
    if ":" in name:
        named = [values.get(of_module)]
    else:
        named = [it for it in values.values() if getattr(it, "__module__", "") == module]
    for it in named:
        if isinstance(it, type) and issubclass(it, Objective):
            return it
    raise ConfigError(f"{name} is not a subclass of contrasent.objectives.Objective")


def name_of(objective: type[Objective]) -> str:
    """The name under which recipes know a class, which stands at the top of a module."""
    module, name = objective.__module__, objective.__qualname__
    return module.rpartition(".")[2] if module.startswith(f"{__name__}.") else f"{module}:{name}"
