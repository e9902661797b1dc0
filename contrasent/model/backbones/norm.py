"""The end of each half of a transformer layer: dropout, residual, LayerNorm, and its cast."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from typing_extensions import override

from contrasent.model.dropout import dropout, keep_mask, masked


def dropped_norm(
    state: Tensor, x: Tensor, rate: float, norm: nn.LayerNorm
) -> tuple[Tensor, Tensor]:
    """``norm(state + dropout(x))``.

    Args:
        state: ``(R, D)``, in the number format of the weights of ``norm``.
        x: ``(R, D)``, in the number format of the products.
        rate: of the dropout.
        norm: applied to the sum.

    Returns:
        ``(R, D)`` in the number format of ``state``, and the same in that of ``x``.
    """
    if rate == 0 or x.device.type != "cpu" or state.dtype == x.dtype:
        normed = norm(state + dropout(x, rate))
        return normed, normed.to(x.dtype)
    both: tuple[Tensor, Tensor] = _DroppedNorm.apply(  # type: ignore[no-untyped-call]
        state, x, rate, norm.weight, norm.bias, norm.eps
    )
    return both


class _DroppedNorm(Function):
    """In one function, its two gradients are added and scaled in fewer passes."""

    @staticmethod
    @override
    def forward(
        ctx: Any, state: Tensor, x: Tensor, rate: float, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        mask, ctx.scale = keep_mask(x, rate)
        # Cast first: a sum of two number formats takes longer than both steps.
        kept = masked(x, mask).to(state.dtype)
        total = torch.add(state, kept, alpha=ctx.scale, out=kept)
        normed, mean, rstd = torch.native_layer_norm(total, weight.shape, weight, bias, eps)
        ctx.save_for_backward(total, mean, rstd, weight, bias, mask)
        ctx.set_materialize_grads(False)
        ctx.dtype = x.dtype
        return normed, normed.to(x.dtype)

    @staticmethod
    @once_differentiable
    @override
    def backward(
        ctx: Any, of_normed: Tensor | None, of_narrow: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        total, mean, rstd, weight, bias, mask = ctx.saved_tensors
        if of_normed is None or of_narrow is None:
            gradient = of_normed if of_narrow is None else of_narrow.to(total.dtype)
        else:
            gradient = of_narrow.to(total.dtype).add_(of_normed)
        if gradient is None:
            return (None,) * 6
        of_total, of_weight, of_bias = torch.ops.aten.native_layer_norm_backward(
            gradient.contiguous(), total, weight.shape, mean, rstd, weight, bias, [True] * 3
        )
        of_x = torch.empty_like(of_total, dtype=ctx.dtype)
        torch.mul(of_total, ctx.scale, out=of_x)
        return of_total, masked(of_x, mask), None, of_weight, of_bias, None
