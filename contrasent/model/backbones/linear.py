"""Linear maps in bf16 on a CPU, with the bias added inside the product."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from typing_extensions import override


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``x weight^T + bias``, as ``F.linear``.

    That one writes the bias into every row first and reads it again while it multiplies; oneDNN's
    own operator, which torch's compiler uses, does not.

    Args:
        x: ``(R, I)``.
        weight: ``(O, I)``.
        bias: ``(O,)``.

    Returns:
        ``(R, O)``.
    """
    if x.dtype != torch.bfloat16 or not has_products(x.device, x.dtype):
        return F.linear(x, weight, bias)
    mapped: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return mapped


def has_products(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies ``dtype`` on ``device``."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype == torch.float32 or (
        dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


class _Linear(Function):
    @staticmethod
    @override
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        mapped: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return mapped

    @staticmethod
    @once_differentiable
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        across = gradient.t()
        if len(weight) < weight.shape[1]:
            across = across.contiguous()  # a copy of the narrower side is made up for
        return gradient @ weight, across @ x, gradient.sum(0)
