"""Train, evaluate and use contrastive sentence embeddings."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contrasent import objectives as objectives
    from contrasent.adaptation.halving import adapt as adapt
    from contrasent.api import analyze as analyze
    from contrasent.api import evaluate as evaluate
    from contrasent.api import fit as fit
    from contrasent.api import mine as mine
    from contrasent.api import pretrain as pretrain
    from contrasent.api import train as train
    from contrasent.api import tune as tune
    from contrasent.model.encoder import SentenceEncoder as SentenceEncoder
    from contrasent.model.loading import load_encoder as load_encoder
    from contrasent.recipe import load_recipe as load_recipe
    from contrasent.records import Record as Record
    from contrasent.search.index import Index as Index

__version__ = "0.1.0"

_HOMES = {
    "Index": "search.index",
    "Record": "records",
    "SentenceEncoder": "model.encoder",
    "adapt": "adaptation.halving",
    "load_encoder": "model.loading",
    "load_recipe": "recipe",
    **dict.fromkeys(("analyze", "evaluate", "fit", "mine", "pretrain", "train", "tune"), "api"),
}
__all__ = ["__version__", "objectives", *_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for, so that ``import contrasent`` is instant."""
    if name == "objectives":
        return import_module("contrasent.objectives")
    if name in _HOMES:
        return getattr(import_module(f"contrasent.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
