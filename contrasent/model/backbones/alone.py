"""One sentence at a time, as a server is asked: weights laid out once, and no blocks.

A short sentence takes as long as reading the weights and starting the operators, so this forward
has few operators, and matrices in the layout that oneDNN's products read.

Shapes: T tokens of the sentence, R >= T rows that are computed, D width, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from contrasent.model.backbones.inference import InferenceLayer
from contrasent.model.backbones.layers import LayerModules

_ROWS = 16
"""Bf16 products are compiled for each number of rows, and 16 rows take no longer than 1."""


class Alone:
    """The layers of a backbone for one sentence at a time, without gradients or dropout.

    The weights are copied: it must be made anew when they change.
    """

    def __init__(self, layers: Sequence[LayerModules], heads: int, dtype: torch.dtype) -> None:
        self._layers = [InferenceLayer.of(layer, dtype, _ROWS) for layer in layers]
        self._heads = heads
        self._dtype = dtype

    def __call__(self, state: Tensor, wanted: Sequence[int]) -> dict[int, Tensor]:
        """States of the layers ``wanted``, numbered from 0, the embedding layer.

        Args:
            state: ``(T, D)`` fp32, the embedding layer's.
            wanted: numbers of layers.

        Returns:
            ``(T, D)`` fp32 each, by its number.
        """
        tokens = len(state)
        found = {0: state}
        spare = -tokens % _ROWS if self._dtype == torch.bfloat16 else 0
        bias = None
        if spare:
            bias = torch.zeros(1, 1, 1, tokens + spare, dtype=self._dtype)
            bias[..., tokens:] = float("-inf")
            state = F.pad(state, (0, 0, 0, spare))

        def attend(packed: Tensor) -> Tensor:
            parts = packed.view(1, tokens + spare, 3, self._heads, -1)
            query, key, value = parts.permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(query, key, value, bias)
            return mixed.transpose(1, 2).reshape(tokens + spare, -1)

        state = state.to(self._dtype)
        for number, layer in enumerate(self._layers[: max(wanted)], start=1):
            state = layer(state, attend)
            if number in wanted:
                found[number] = state[:tokens].float()
        return {number: found[number] for number in wanted}
