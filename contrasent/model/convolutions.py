"""Convolutions over the token states of a sentence, behind the transformer (Zhang et al. 2020).

Shapes: S sentences, T tokens end to end, D width of a token state.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from typing_extensions import override

from contrasent.data.batch import Batch


class Convolutions(nn.Module):
    """One-dimensional convolutions of several widths side by side, without an activation.

    Beyond either end of a sentence there are zeros, and no tokens of another one.

    Attributes:
        widths: tokens that each of them sees, odd numbers.
        channels: numbers that each of them gives for a token.
    """

    def __init__(self, width: int, widths: Sequence[int], channels: int) -> None:
        super().__init__()
        self.widths, self.channels = tuple(widths), channels
        self.convs = nn.ModuleList(
            nn.Conv1d(width, channels, seen, padding=seen // 2) for seen in widths
        )

    @property
    def width(self) -> int:
        """Numbers in a token state behind them."""
        return len(self.widths) * self.channels

    @override
    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Map the ``(T, D)`` states of the sentences of ``batch`` to ``(T, width)``."""
        gap = max(self.widths) // 2
        tokens, device = len(states), states.device
        numbers = torch.arange(batch.sentences, device=device)
        sentence = torch.repeat_interleave(numbers, batch.lengths, output_size=tokens)
        places = torch.arange(tokens, device=device) + gap * sentence
        spaced = states.new_zeros(tokens + gap * (batch.sentences - 1), states.shape[-1])
        columns = spaced.index_copy(0, places, states).T.unsqueeze(0)
        mapped = torch.cat([conv(columns) for conv in self.convs], dim=1)
        return mapped.squeeze(0).T[places]
