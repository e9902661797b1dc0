"""One objective per file. The folder is the registry: ``simcse.py`` is the objective "simcse"."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from contrasent.errors import pick
from contrasent.model.encoder import SentenceEncoder
from contrasent.objectives.base import Objective, Start
from contrasent.recipe import checked

_NOT_OBJECTIVES = {"base", "parts"}


def available() -> list[str]:
    """Names that `build` takes, read from the file names without importing them."""
    return sorted({m.name for m in pkgutil.iter_modules(__path__)} - _NOT_OBJECTIVES)


def build(
    name: str,
    settings: Mapping[str, Any],
    *,
    width: int,
    data_views: int,
    encoder: SentenceEncoder | None = None,
    precision: str = "fp32",
    batch_size: int | None = None,
) -> Objective:
    """Make the objective ``name``.

    Args:
        name: one of :func:`available`.
        settings: fields of its ``Config``.
        width: D, numbers in an embedding.
        data_views: how many sentences each example of the training data has.
        encoder: the encoder before the first step, for objectives that start from copies of its
            parts.
        precision: of the matrix products of its own transformers, ``fp32`` or ``bf16``.
        batch_size: examples per step, for objectives that need some number of them.

    Raises:
        ConfigError: no such objective, a setting it does not have or cannot take, or data that
            has too few sentences in each example.
    """
    config = config_of(name, settings)
    start = Start(width, data_views, encoder, precision, batch_size)
    objective: Objective = _module(name).build(config, start)
    return objective


def config_of(name: str, settings: Mapping[str, Any]) -> Any:
    """The checked ``Config`` of the objective ``name``; errors as :func:`build`."""
    return checked(_module(name).Config, settings, "objective")


def _module(name: str) -> ModuleType:
    return import_module(f"{__name__}.{pick('objective', name, available())}")
