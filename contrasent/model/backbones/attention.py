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

from contrasent.model.backbones.dropout import apply_mask, keep_mask
from contrasent.model.backbones.packing import Blocks, move, packed_attention

LONG = 128
"""Above this length weights, ``(N, Q, L)``, are not written out where no gradient needs them."""


def attention(packed: Tensor, blocks: Blocks, rate: float, query: Tensor | None = None) -> Tensor:
    """``dropout(softmax(q k / sqrt(d))) v`` within each sentence, ``(R, D)``.

    ``packed (R, 3 D)`` has a query, a key and a value in each row; ``rate`` is the dropout of the
    weights. Rows from T on are zero, and so must their gradient be. With ``query (S, D)``, of
    first tokens, ``packed (R, 2 D)`` has a key and a value, and ``(S, D)`` is returned.
    """
    if blocks.runs is not None:
        return packed_attention(packed, blocks.heads, blocks.runs, rate, query)
    block, alone = move(packed, blocks, 3 if query is None else 2), None
    if query is not None:
        alone = query.view(blocks.sentences * blocks.heads, 1, -1)
    bias, mixed = blocks.bias(block.dtype), block
    if _writes_weights(block, blocks, rate):
        mixed = _Attention.apply(alone, block, bias, rate)  # type: ignore[no-untyped-call]
    else:
        q, k, v = (part.unsqueeze(0) for part in _parts(alone, block))
        mask = None if bias is None else bias.unsqueeze(0)
        mixed = F.scaled_dot_product_attention(q, k, v, mask, rate).squeeze(0)
    return move(mixed.unsqueeze(0), blocks) if query is None else mixed.view(query.shape)


def _parts(query: Tensor | None, block: Tensor) -> Any:
    """Query, key and value."""
    return block.unbind(0) if query is None else (query, *block.unbind(0))


def _writes_weights(block: Tensor, blocks: Blocks, rate: float) -> bool:
    """Whether to compute in steps.

    On a CPU torch's own kernel is slower for short sentences, and with dropout it is fp32 inside.
    """
    # By the rate too, so that a pass without gradients draws the masks of one with them.
    needed = rate > 0 or torch.is_grad_enabled()
    return block.device.type == "cpu" and (needed or blocks.longest <= LONG)


class _Attention(Function):
    """``(N, Q, d)`` of ``block (P, N, L, d)``: query, key and value, or those without ``query``."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor | None, block: Tensor, bias: Tensor | None, rate: float
    ) -> Tensor:
        q, k, v = _parts(query, block)
        scores = _product(q, k.transpose(1, 2), q.shape[-1] ** -0.5, plus=bias)
        weights = torch.softmax(scores, -1)
        mask, ctx.scale = keep_mask(weights, rate) if rate else (None, 1.0)
        kept = weights if mask is None else apply_mask(weights, mask)
        ctx.save_for_backward(q, k, v, weights, mask)
        ctx.is_alone, ctx.shape = query is not None, block.shape
        return _product(kept, v, ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, mask = ctx.saved_tensors
        of_block, gradient = gradient.new_empty(ctx.shape), gradient.contiguous()
        alone = torch.empty_like(query) if ctx.is_alone else None
        of_query, of_key, of_value = _parts(alone, of_block)
        factor = query.shape[-1] ** -0.5
        kept = weights if mask is None else apply_mask(weights, mask)
        _product(kept.transpose(1, 2), gradient, ctx.scale, out=of_value)
        of_weights = _product(gradient, value.transpose(1, 2), ctx.scale)
        if mask is not None:
            of_weights = apply_mask(of_weights, mask)
        of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
        _product(of_scores, key, factor, out=of_query)
        _product(of_scores.transpose(1, 2), query, factor, out=of_key)
        return alone, of_block, of_scores if ctx.needs_input_grad[2] else None, None


def _product(
    a: Tensor, b: Tensor, factor: float, *, plus: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """``factor * a b + plus`` of ``(N, ., .)`` matrices."""
    if plus is not None:
        return torch.baddbmm(plus, a, b, alpha=factor)
    if out is None:
        out = a.new_empty(len(a), a.shape[1], b.shape[2])
    return torch.baddbmm(out, a, b, beta=0, alpha=factor, out=out)
