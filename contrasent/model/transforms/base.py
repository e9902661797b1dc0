"""The interface of fitted maps, which come after the head and are saved with the encoder.

Shapes: S sentences, D width of an embedding, K of a transformed one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contrasent.errors import pick
from contrasent.model.precision import FULL_FP32


class Transform(nn.Module, ABC):
    """A map of embeddings from ``input_width`` to ``width``, always computed in fp32.

    A class is found again by its ``name``; ``described`` says what it was fitted on. One that
    ``is_dense`` has ``weight`` and ``bias``, as a Dense module.
    """

    kinds: ClassVar[dict[str, type[Transform]]] = {}
    name: str
    is_dense: ClassVar[bool] = False
    input_width: int
    width: int

    def __init_subclass__(cls) -> None:
        cls.kinds[cls.name] = cls

    def __init__(self) -> None:
        super().__init__()
        self.described = self.name

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What its class makes an equal one from, weights aside."""

    @abstractmethod
    def map_rows(self, rows: Tensor) -> Tensor:
        """Map ``(S, D)`` fp32 to ``(S, K)``."""

    def forward(self, rows: Tensor) -> Tensor:
        """Map ``(S, D)`` to ``(S, K)`` fp32."""
        # Small directions are scaled up by orders of magnitude: bf16 or TF32 would leave noise.
        with torch.autocast(rows.device.type, enabled=False), FULL_FP32:
            return self.map_rows(rows.float())


class DenseMap(Transform):
    """``x W + b``, which sentence-transformers has as a Dense without activation."""

    name, is_dense = "linear", True

    def __init__(self, input_width: int, width: int) -> None:
        super().__init__()
        self.input_width, self.width = input_width, width
        self.weight = nn.Buffer(torch.zeros(width, input_width))
        self.bias = nn.Buffer(torch.zeros(width))

    def settings(self) -> dict[str, Any]:
        return {"input_width": self.input_width, "width": self.width}

    def map_rows(self, rows: Tensor) -> Tensor:
        return F.linear(rows, self.weight, self.bias)

    def then(self, after: DenseMap) -> DenseMap:
        """This map and ``after`` as one."""
        both = DenseMap(self.input_width, after.width)
        weight, bias = after.weight.double(), self.bias.double()
        both.weight.copy_(weight @ self.weight.double())
        both.bias.copy_(weight @ bias + after.bias.double())
        return both


def transform_named(name: str, settings: dict[str, Any]) -> Transform:
    """A transform whose weights are still to be loaded; TypeError for settings of another kind."""
    return Transform.kinds[pick("transform", name, Transform.kinds)](**settings)
