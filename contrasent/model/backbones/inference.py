"""Maps for inference: no gradients, no dropout, few operators, weights laid out once.

The residual is added inside oneDNN's products, and the state stays in their number format. A short
sentence takes as long as reading the weights and starting the operators.

Shapes: T tokens, R >= T rows that are computed, S sentences, D width, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contrasent.model.backbones.attention import attention
from contrasent.model.backbones.layers import Layer, LayerModules, LayerWeights, Linear, States
from contrasent.model.backbones.packing import Blocks
from contrasent.model.precision import SharedContext


class Map(NamedTuple):
    """``x W^T + b``, with ``W`` in a layout that only this can read."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, linear: Linear, rows: int) -> Self:
        """Lay the weight out for products of about ``rows`` rows; any number can be had."""
        weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.contiguous(), rows)
        return cls(weight, linear.bias)

    def __call__(self, x: Tensor) -> Tensor:
        mapped: Tensor = torch.ops.mkldnn._linear_pointwise(x, *self, "none", [], "")
        return mapped

    def add_norm(self, x: Tensor, state: Tensor, norm: nn.LayerNorm, _: float) -> States:
        normed = norm(torch.ops.mkldnn._linear_pointwise.binary(x, state, *self, "add"))
        return normed, normed


@dataclass(frozen=True, slots=True)
class _Maps:
    """The maps of a layer: for single sentences ``alone``, or with ``qkv`` ``parted`` in two."""

    qkv: Map
    output: Map
    up: Map
    down: Map
    parted: tuple[Map, ...]
    alone: bool

    def mix(self, state: Tensor, blocks: Blocks, rows: Tensor | None, _: float) -> Tensor:
        """As :meth:`LayerWeights.mix`, without dropout; rows of a single sentence are a block."""
        if rows is not None:
            first, rest = self.parted
            return attention(rest(state), blocks, 0.0, first(state[rows]))
        packed = self.qkv(state)
        if not self.alone:
            return attention(packed, blocks, 0.0)
        parts = packed.view(1, len(packed), 3, blocks.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        bias = blocks.bias(packed.dtype)
        mask = None if bias is None else bias[:1].unsqueeze(0)
        mixed = F.scaled_dot_product_attention(query, key, value, mask)
        return mixed.transpose(1, 2).reshape(len(packed), -1)


def lay_out(
    modules: LayerModules,
    dtype: torch.dtype,
    rows: int,
    *,
    parted: bool = False,
    alone: bool = False,
) -> Layer:
    """A layer with its weights laid out for about ``rows`` rows."""
    weights = LayerWeights.of(modules, dtype)
    parts = tuple(Map.of(each, rows) for each in weights.parted()) if parted else ()
    qkv, output, up, down = (Map.of(each, rows) for each in weights)
    return modules.layer(_Maps(qkv, output, up, down, parts, alone))


T = TypeVar("T")


class WeightCache(SharedContext):
    """A promise that no weight changes; what is made of them is kept while anybody gives it."""

    def __init__(self) -> None:
        super().__init__(self._empty)
        self._kept: dict[Hashable, Any] = {}

    @contextmanager
    def _empty(self) -> Iterator[None]:
        self._kept = {}  # a thread may have put something here after the last promise ended
        yield
        self._kept = {}

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._kept

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is kept under ``key``, or is made now."""
        kept = self._kept
        value: T | None = kept.get(key)
        if value is None:
            value = kept[key] = make()
        return value
