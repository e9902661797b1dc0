"""Maps that are fitted on embeddings of text and applied to every embedding after the head.

A file each; the folder is the registry. A fitted map is saved with its encoder, in one folder.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from contrasent.errors import pick
from contrasent.model.transforms.base import Transform

_NOT_KINDS = ("base", "folder")


def available() -> list[str]:
    """Names of all kinds of transforms, without importing them."""
    return [module.name for module in iter_modules(__path__) if module.name not in _NOT_KINDS]


def empty(name: str, settings: dict[str, Any]) -> Transform:
    """A transform of one kind whose weights are still to be loaded.

    Raises:
        ConfigError: no such kind.
        TypeError: the settings are not those of this kind.
    """
    module = import_module(f"{__name__}.{pick('transform', name, available())}")
    transform: Transform = module.build(**settings)
    return transform
