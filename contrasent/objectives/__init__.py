"""The registry of objectives: a file of this folder each, and those of other packages.

``simcse.py`` is the objective "simcse". Another package adds one under the entry point group
``contrasent.objectives``; a class in any module that can be imported is named ``module:Class``.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

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

_GROUP = "contrasent.objectives"


def available() -> list[str]:
    """Names that `build` takes, of this folder and of entry points, without importing them."""
    return sorted({*_packaged(), *entry_points(group=_GROUP).names})


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
    if name in _packaged():
        module = import_module(f"{__name__}.{name}")
        classes = (it for it in vars(module).values() if _is_objective(it, module.__name__))
        return cast(type[Objective], next(classes))
    if ":" in name:
        entry = EntryPoint(name, name, _GROUP)
    else:
        entry = entry_points(group=_GROUP)[pick("objective", name, available())]
    try:
        loaded = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"cannot import the objective {name!r}: {error}") from error
    if not _is_objective(loaded):
        raise ConfigError(f"{entry.value} is not a subclass of contrasent.objectives.Objective")
    return cast(type[Objective], loaded)


def name_of(objective: type[Objective]) -> str:
    """The name under which recipes know a class; ConfigError if a resumed run cannot import it."""
    module, name = objective.__module__, objective.__qualname__
    if "<locals>" in name:
        raise ConfigError(f"{name} is defined in a function; define it at the top of a module")
    return module.rpartition(".")[2] if module.startswith(f"{__name__}.") else f"{module}:{name}"


def _packaged() -> set[str]:
    names = {module.name for module in pkgutil.iter_modules(__path__)}
    return {name for name in names if not name.startswith("_")} - {"base"}


def _is_objective(value: Any, module: str | None = None) -> bool:
    is_one = isinstance(value, type) and issubclass(value, Objective)
    return is_one and (module is None or value.__module__ == module)
