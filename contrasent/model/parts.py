"""What an encoder is made of, and what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from contrasent.data.tokens import Tokenizer
from contrasent.model.backbones.base import Backbone
from contrasent.model.convolutions import Convolutions
from contrasent.model.heads import MlpHead
from contrasent.model.transforms.base import Transform


@dataclass(frozen=True, slots=True)
class Encoded:
    """What one forward call gives an objective.

    Attributes:
        pooled: ``(V, B, D)`` embeddings, view by view.
        states: the token states that were asked for, each ``(T, D)``, by their layer number.
        convolved: the last ones behind the encoder's convolutions, if it has any.
    """

    pooled: Tensor
    states: Mapping[int, Tensor]
    convolved: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What is saved of an encoder; the attributes of `SentenceEncoder` explain them."""

    backbone: Backbone
    tokenizer: Tokenizer
    pooler: str
    head: MlpHead | None
    convolutions: Convolutions | None = None
    transform: Transform | None = None
    normalize: bool
    max_tokens: int | None
