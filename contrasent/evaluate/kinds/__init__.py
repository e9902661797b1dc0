"""One kind of tasks per file. The folder is the registry: a file holds its kind as ``KIND``."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from contrasent.evaluate.kinds.base import Kind

_NO_KINDS = {"base"}


def kinds() -> list[Kind[Any]]:
    """All kinds, in the order of their tables."""
    names = {module.name for module in pkgutil.iter_modules(__path__)} - _NO_KINDS
    found = [import_module(f"{__name__}.{name}").KIND for name in names]
    return sorted(found, key=lambda kind: kind.place)
