"""Train, evaluate and use contrastive sentence embeddings."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contrasent import objectives as objectives
    from contrasent.adaptation.halving import adapt
    from contrasent.api import analyze, fit, mine, pretrain, train, tune
    from contrasent.evaluation.suite import evaluate
    from contrasent.model.encoder import SentenceEncoder
    from contrasent.model.loading import load_encoder
    from contrasent.recipe import load_recipe
    from contrasent.records import Record
    from contrasent.search.index import Index

__version__ = "0.1.0"

_HOMES = {
    "Index": "contrasent.search.index",
    "Record": "contrasent.records",
    "SentenceEncoder": "contrasent.model.encoder",
    "adapt": "contrasent.adaptation.halving",
    "analyze": "contrasent.api",
    "evaluate": "contrasent.evaluation.suite",
    "fit": "contrasent.api",
    "load_encoder": "contrasent.model.loading",
    "load_recipe": "contrasent.recipe",
    "mine": "contrasent.api",
    "pretrain": "contrasent.api",
    "train": "contrasent.api",
    "tune": "contrasent.api",
}
__all__ = [
    "Index",
    "Record",
    "SentenceEncoder",
    "__version__",
    "adapt",
    "analyze",
    "evaluate",
    "fit",
    "load_encoder",
    "load_recipe",
    "mine",
    "objectives",
    "pretrain",
    "train",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for, so that ``import contrasent`` is instant."""
    if name == "objectives":
        return import_module("contrasent.objectives")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
