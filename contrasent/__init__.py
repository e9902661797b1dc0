"""Train, evaluate and use contrastive sentence embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contrasent.model.encoder import SentenceEncoder

__version__ = "0.1.0"
__all__ = ["SentenceEncoder", "__version__"]


def __getattr__(name: str) -> Any:
    """Import torch only when the encoder is asked for, so that ``import contrasent`` is instant."""
    if name == "SentenceEncoder":
        from contrasent.model.encoder import SentenceEncoder

        return SentenceEncoder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
