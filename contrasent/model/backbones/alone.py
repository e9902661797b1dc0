"""One sentence at a time, as a server is asked: weights laid out once, and no blocks.

A short sentence takes as long as reading the weights and starting the operators, so this forward
has few operators, and matrices in the layout that oneDNN's products read.

Shapes: T tokens of the sentence, R >= T rows that are computed, D width, H heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import GELUActivation
from typing_extensions import override

from contrasent.data.batch import Batch
from contrasent.model.backbones.layers import LayerModules, LayerWeights

_ROWS = 16
"""Bf16 products are compiled for each number of rows, and 16 rows take no longer than 1."""

_COUNTING = Lock()


@dataclass(frozen=True, slots=True)
class _Map:
    """``x W^T + b``, with ``W`` in a layout that only :meth:`__call__` can read."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor) -> _Map:
        return cls(torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS), bias)

    def __call__(self, x: Tensor, then: str = "none") -> Tensor:
        mapped: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.weight, self.bias, then, [], "none"
        )
        return mapped


@dataclass(frozen=True, slots=True)
class _Layer:
    """One transformer layer."""

    qkv: _Map
    output: _Map
    up: _Map
    down: _Map
    modules: LayerModules
    gelu: bool

    @classmethod
    def of(cls, modules: LayerModules, dtype: torch.dtype) -> _Layer:
        weights = LayerWeights.of(modules, dtype)
        act = modules.activation
        return cls(
            qkv=_Map.of(weights.qkv, weights.qkv_bias),
            output=_Map.of(weights.output, weights.output_bias),
            up=_Map.of(weights.up, weights.up_bias),
            down=_Map.of(weights.down, weights.down_bias),
            modules=modules,
            gelu=isinstance(act, nn.GELU | GELUActivation) and _is_exact(act),
        )

    def __call__(self, state: Tensor, bias: Tensor | None, heads: int) -> Tensor:
        """``(R, D)`` to ``(R, D)`` fp32; ``bias`` is minus infinity at rows without token."""
        dtype, rows = self.qkv.bias.dtype, len(state)
        packed = self.qkv(state.to(dtype)).view(1, rows, 3, heads, -1)
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, bias)
        mixed = self.output(mixed.transpose(1, 2).reshape(rows, -1))
        state = self.modules.attention_norm(state + mixed)
        if self.gelu:
            inner = self.up(state.to(dtype), "gelu")
        else:
            inner = self.modules.activation(self.up(state.to(dtype)))
        normed: Tensor = self.modules.norm(state + self.down(inner))
        return normed


class Alone:
    """The layers of a backbone for one sentence at a time, without gradients or dropout.

    The weights are copied: it must be made anew when they change.
    """

    def __init__(self, layers: Sequence[LayerModules], heads: int, dtype: torch.dtype) -> None:
        self._layers = [_Layer.of(layer, dtype) for layer in layers]
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
        for number, layer in enumerate(self._layers[: max(wanted)], start=1):
            state = layer(state, bias, self._heads)
            found[number] = state[:tokens]
        return {number: found[number] for number in wanted}


class Serving(AbstractContextManager[None]):
    """What is kept of a backbone while somebody serves with it; any thread may enter, and again."""

    def __init__(self, layers: Sequence[LayerModules], heads: int) -> None:
        self._layers = layers
        self._heads = heads
        self._users = 0
        self._kept: dict[torch.dtype, Alone] = {}

    @override
    def __enter__(self) -> None:
        with _COUNTING:
            self._users += 1

    @override
    def __exit__(self, *_: object) -> None:
        with _COUNTING:
            self._users -= 1
            self._kept = self._kept if self._users else {}

    def takes(self, batch: Batch, dtype: torch.dtype) -> bool:
        """Whether :meth:`alone` computes this batch here."""
        if not self._users or batch.sentences > 1 or torch.is_grad_enabled():
            return False
        return batch.token_ids.device.type == "cpu" and _has_products(dtype)

    def alone(self, dtype: torch.dtype) -> Alone:
        """The layers for one sentence in ``dtype``, made when it is first asked for."""
        kept = self._kept
        made = kept.get(dtype)
        if made is None:
            made = kept[dtype] = Alone(self._layers, self._heads, dtype)
        return made


def _has_products(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype == torch.float32 or (
        dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


def _is_exact(activation: nn.GELU | GELUActivation) -> bool:
    if isinstance(activation, nn.GELU):
        return activation.approximate == "none"
    return activation.act is F.gelu
