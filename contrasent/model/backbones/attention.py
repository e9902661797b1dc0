"""Scaled dot-product attention on blocks ``(S * H, L, d)``, with dropout on its weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from typing_extensions import override

from contrasent.model.dropout import keep_mask, masked


def attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, rate: float
) -> Tensor:
    """``dropout(softmax(q k / sqrt(d) + bias)) v``.

    Args:
        query: ``(N, Q, d)``, N = S * H.
        key: ``(N, L, d)``.
        value: ``(N, L, d)``.
        bias: ``(N, 1, L)``, minus infinity where there is no token; None if nothing is padded.
        rate: dropout of the weights.

    Returns:
        ``(N, Q, d)``.
    """
    # Chosen by the rate too, so that a pass without gradients draws the masks of one with them.
    if (rate or torch.is_grad_enabled()) and query.device.type == "cpu":
        mixed: Tensor = _Attention.apply(query, key, value, bias, rate)  # type: ignore[no-untyped-call]
        return mixed
    q, k, v = (t.unsqueeze(0) for t in (query, key, value))
    mask = None if bias is None else bias.unsqueeze(0)
    return F.scaled_dot_product_attention(q, k, v, mask, rate).squeeze(0)


class _Attention(Function):
    """Torch's own attention with dropout computes in fp32 on a CPU; this stays in bf16."""

    @staticmethod
    @override
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, rate: float
    ) -> Tensor:
        scaled = query * (1 / math.sqrt(query.shape[-1]))
        if bias is None:
            scores = torch.bmm(scaled, key.transpose(1, 2))
        else:
            scores = torch.baddbmm(bias, scaled, key.transpose(1, 2))
        weights = scores.softmax(-1)
        mask, ctx.scale = keep_mask(weights, rate) if rate else (None, 1.0)
        kept = weights if mask is None else masked(weights, mask)
        ctx.save_for_backward(query, key, value, weights, mask)
        mixed: Tensor = torch.bmm(kept, value) * ctx.scale
        return mixed

    @staticmethod
    @once_differentiable
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, mask = ctx.saved_tensors
        gradient = gradient * ctx.scale
        kept = weights if mask is None else masked(weights, mask)
        of_value = torch.bmm(kept.transpose(1, 2), gradient)
        of_weights = torch.bmm(gradient, value.transpose(1, 2))
        if mask is not None:
            of_weights = masked(of_weights, mask)
        of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
        of_scores *= 1 / math.sqrt(query.shape[-1])
        of_query = torch.bmm(of_scores, key)
        of_key = torch.bmm(of_scores.transpose(1, 2), query)
        return of_query, of_key, of_value, None, None
