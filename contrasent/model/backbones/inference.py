"""Inference layers: no gradients, no dropout, few operators, weights laid out once.

The residual is added inside oneDNN's products, and the state stays in their number format. A short
sentence takes as long as reading the weights and starting the operators.

Shapes: T tokens, R >= T rows that are computed, S sentences, D width, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from contrasent.model.backbones.layers import LayerModules, LayerWeights
from contrasent.model.precision import SharedContext


@dataclass(frozen=True, slots=True)
class Map:
    """``x W^T + b``, with ``W`` in a layout that only this can read."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor, rows: int) -> Self:
        """Lay ``weight`` out for products of about ``rows`` rows; any number can be had."""
        return cls(torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows), bias)

    def __call__(self, x: Tensor) -> Tensor:
        """``(R, I)`` to ``(R, O)``."""
        mapped: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.weight, self.bias, "none", [], ""
        )
        return mapped

    def add_to(self, x: Tensor, rest: Tensor) -> Tensor:
        """The map of ``x``, plus ``rest``."""
        total: Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            x, rest, self.weight, self.bias, "add"
        )
        return total


@dataclass(frozen=True, slots=True)
class InferenceLayer:
    """One transformer layer.

    ``query`` and ``rest`` are the two parts of ``qkv``, where first tokens are asked for alone.
    """

    qkv: Map
    query: Map | None
    rest: Map | None
    output: Map
    up: Map
    down: Map
    modules: LayerModules

    @classmethod
    def of(
        cls, modules: LayerModules, dtype: torch.dtype, rows: int, *, parted: bool = False
    ) -> Self:
        """Lay the weights of a layer out; ``parted`` makes ``query`` and ``rest`` too."""
        weights = LayerWeights.of(modules, dtype)
        width = len(weights.output.weight)
        qkv, bias = weights.qkv
        return cls(
            qkv=Map.of(qkv, bias, rows),
            query=Map.of(qkv[:width], bias[:width], rows) if parted else None,
            rest=Map.of(qkv[width:], bias[width:], rows) if parted else None,
            output=Map.of(*weights.output, rows),
            up=Map.of(*weights.up, rows),
            down=Map.of(*weights.down, rows),
            modules=modules,
        )

    def __call__(self, state: Tensor, attend: Callable[[Tensor], Tensor]) -> Tensor:
        """``(R, D)`` to ``(R, D)``; ``attend`` mixes the values of ``(R, 3 D)``."""
        return self._after(attend(self.qkv(state)), state)

    def first(
        self, state: Tensor, rows: Tensor, attend: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """``(S, D)``, only the ``rows`` of first tokens of what :meth:`__call__` gives.

        ``attend`` mixes for the queries ``(S, D)`` the values of ``(R, 2 D)``.
        """
        if self.query is None or self.rest is None:
            raise ValueError("this layer was not made with parted weights")
        alone = state[rows]
        return self._after(attend(self.query(alone), self.rest(state)), alone)

    def _after(self, mixed: Tensor, state: Tensor) -> Tensor:
        state = self.modules.attention_norm(self.output.add_to(mixed, state))
        inner = self.modules.activation(self.up(state))
        normed: Tensor = self.modules.norm(self.down.add_to(inner, state))
        return normed


_ROWS = 16
"""Bf16 products are compiled for each number of rows, and 16 rows take no longer than 1."""


class SingleSentence:
    """The layers of a backbone for one sentence at a time; it holds a copy of their weights."""

    def __init__(self, layers: Sequence[LayerModules], heads: int, dtype: torch.dtype) -> None:
        self._layers = [InferenceLayer.of(layer, dtype, _ROWS) for layer in layers]
        self._heads = heads
        self._dtype = dtype

    def __call__(self, state: Tensor, wanted: Set[int]) -> dict[int, Tensor]:
        """The states ``wanted``, numbered from 0, of the embedding layer's ``(T, D)``; all fp32."""
        tokens = len(state)
        states = {0: state}
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
                states[number] = state[:tokens].float()
        return {number: states[number] for number in wanted}


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
