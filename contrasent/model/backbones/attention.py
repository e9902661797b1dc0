"""Self-attention of packed tokens, with dropout on its weights.

Shapes: T tokens end to end, R >= T packed rows, D width, N = S * H sentences times heads, L tokens
of the longest sentence, Q queries (L, or 1 where only first tokens are asked for), d = D / H.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from contrasent.model.backbones.layers import apply_mask, keep_mask
from contrasent.model.backbones.packing import (
    Blocks,
    packed_attention,
    packed_first_attention,
    pad,
    unpad,
)

LONG = 128
"""Above this length weights, ``(N, Q, L)``, are not written out where no gradient needs them."""


def attention(packed: Tensor, blocks: Blocks, rate: float) -> Tensor:
    """``dropout(softmax(q k / sqrt(d))) v`` within each sentence, ``(R, D)``.

    ``packed (R, 3 D)`` has a query, a key and a value in each row; ``rate`` is the dropout of the
    weights. Rows from T on are zero, and so must their gradient be.
    """
    if blocks.runs is not None:
        return packed_attention(packed, blocks.heads, blocks.runs, rate)
    if _writes_weights(packed, blocks, rate):
        bias = blocks.bias(packed.dtype)
        mixed: Tensor = _Packed.apply(packed, bias, blocks, rate)  # type: ignore[no-untyped-call]
        return mixed
    query, key, value = pad(packed, blocks, 3).unbind(0)
    return unpad(_fused(query, key, value, blocks, rate).unsqueeze(0), blocks)


def first_attention(query: Tensor, packed: Tensor, blocks: Blocks, rate: float) -> Tensor:
    """:func:`attention` of first tokens only, ``(S, D)``.

    ``query`` is ``(S, D)``, and ``packed (R, 2 D)`` has a key and a value in each row.
    """
    if blocks.runs is not None:
        return packed_first_attention(query, packed, blocks.heads, blocks.runs, rate)
    alone = query.view(blocks.sentences * blocks.heads, 1, -1)
    key, value = pad(packed, blocks, 2).unbind(0)
    if _writes_weights(packed, blocks, rate):
        bias = blocks.bias(query.dtype)
        mixed: Tensor = _Blocked.apply(alone, key, value, bias, rate)  # type: ignore[no-untyped-call]
    else:
        mixed = _fused(alone, key, value, blocks, rate)
    return mixed.view(query.shape)


def _writes_weights(packed: Tensor, blocks: Blocks, rate: float) -> bool:
    """Whether to compute in steps.

    On a CPU torch's own kernel is slower for short sentences, and with dropout it is fp32 inside.
    """
    # By the rate too, so that a pass without gradients draws the masks of one with them.
    needed = rate > 0 or torch.is_grad_enabled()
    return packed.device.type == "cpu" and (needed or blocks.longest <= LONG)


def _fused(query: Tensor, key: Tensor, value: Tensor, blocks: Blocks, rate: float) -> Tensor:
    """``(N, Q, d)`` by torch's own kernel."""
    bias = blocks.bias(query.dtype)
    q, k, v = (part.unsqueeze(0) for part in (query, key, value))
    mask = None if bias is None else bias.unsqueeze(0)
    return F.scaled_dot_product_attention(q, k, v, mask, rate).squeeze(0)


class _Packed(Function):
    @staticmethod
    def forward(
        ctx: Any, packed: Tensor, bias: Tensor | None, blocks: Blocks, rate: float
    ) -> Tensor:
        query, key, value = blocks.spread(packed, 3)
        mixed, saved, ctx.scale = _mix(query, key, value, bias, rate)
        ctx.save_for_backward(*saved)
        ctx.blocks = blocks
        return blocks.gather(mixed.unsqueeze(0))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        (of_mixed,) = ctx.blocks.spread(gradient, 1)
        gradients = of_mixed.new_empty(3, *of_mixed.shape)
        of_scores = _unmix(ctx.saved_tensors, ctx.scale, of_mixed, gradients.unbind(0))
        of_bias = of_scores if ctx.needs_input_grad[1] else None
        return ctx.blocks.gather(gradients), of_bias, None, None


class _Blocked(Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, rate: float
    ) -> Tensor:
        mixed, saved, ctx.scale = _mix(query, key, value, bias, rate)
        ctx.save_for_backward(*saved)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        gradients = tuple(torch.empty_like(part) for part in saved[:3])
        _unmix(saved, ctx.scale, gradient.contiguous(), gradients)
        return *gradients, None, None


def _mix(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, rate: float
) -> tuple[Tensor, tuple[Tensor | None, ...], float]:
    """The mixed values ``(N, Q, d)``, what :func:`_unmix` needs of them, and the kept's factor."""
    scores = _product(query, key.transpose(1, 2), query.shape[-1] ** -0.5, plus=bias)
    weights = torch.softmax(scores, -1)
    mask, scale = keep_mask(weights, rate) if rate else (None, 1.0)
    kept = weights if mask is None else apply_mask(weights, mask)
    return _product(kept, value, scale), (query, key, value, weights, mask), scale


def _unmix(
    saved: tuple[Any, ...], scale: float, gradient: Tensor, out: tuple[Tensor, ...]
) -> Tensor:
    """Write the gradients of query, key and value to ``out``, from that of the mixed values.

    Returns the gradient of the scores, ``(N, Q, L)``.
    """
    query, key, value, weights, mask = saved
    of_query, of_key, of_value = out
    factor = query.shape[-1] ** -0.5
    kept = weights if mask is None else apply_mask(weights, mask)
    _product(kept.transpose(1, 2), gradient, scale, out=of_value)
    of_weights = _product(gradient, value.transpose(1, 2), scale)
    if mask is not None:
        of_weights = apply_mask(of_weights, mask)
    of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
    _product(of_scores, key, factor, out=of_query)
    _product(of_scores.transpose(1, 2), query, factor, out=of_key)
    return of_scores


def _product(
    a: Tensor, b: Tensor, factor: float, *, plus: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """``factor * a b + plus`` of ``(N, ., .)`` matrices."""
    if plus is not None:
        return torch.baddbmm(plus, a, b, alpha=factor)
    if out is None:
        out = a.new_empty(len(a), a.shape[1], b.shape[2])
    return torch.baddbmm(out, a, b, beta=0, alpha=factor, out=out)
