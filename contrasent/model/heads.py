"""Trained maps after the pooler. D is the width of a token state."""

from __future__ import annotations

from torch import Tensor, nn
from typing_extensions import override


class MlpHead(nn.Module):
    """``tanh(W h + b)``, the layer that BERT has over [CLS] and SimCSE trains from scratch.

    Weights start as N(0, 0.02) with zero bias, as in SimCSE's code: the layer that comes with a
    pretrained BERT was trained for next-sentence prediction and is not used.
    """

    def __init__(self, width: int, embedding_width: int | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(width, embedding_width or width)
        nn.init.normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)

    @override
    def forward(self, embeddings: Tensor) -> Tensor:
        """Map ``(..., D)`` to ``(..., embedding_width)``, each number in (-1, 1)."""
        mapped: Tensor = self.linear(embeddings)
        return mapped.tanh()
