"""A transformer layer without gradients or dropout: few operators, weights laid out once.

The residual is added inside oneDNN's products, and the state stays in their number format between
layers.

Shapes: R rows, S sentences, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from contrasent.model.backbones.layers import LayerModules, LayerWeights


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

    def added(self, x: Tensor, rest: Tensor) -> Tensor:
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
        width = len(weights.output)
        qkv, bias = weights.qkv, weights.qkv_bias
        return cls(
            qkv=Map.of(qkv, bias, rows),
            query=Map.of(qkv[:width], bias[:width], rows) if parted else None,
            rest=Map.of(qkv[width:], bias[width:], rows) if parted else None,
            output=Map.of(weights.output, weights.output_bias, rows),
            up=Map.of(weights.up, weights.up_bias, rows),
            down=Map.of(weights.down, weights.down_bias, rows),
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
        state = self.modules.attention_norm(self.output.added(mixed, state))
        inner = self.modules.activation(self.up(state))
        normed: Tensor = self.modules.norm(self.down.added(inner, state))
        return normed
