"""Self-attention of packed tokens, with dropout on its weights; and dropout on a CPU.

Drawing one random number per element took a fifth of a training step on a CPU. Here each element
takes 15 bits of its own of a 64-bit number, and the rate is the asked one to 1 in 65,536. The
numbers come from NumPy's SFC64, twice as fast as torch's generator, which seeds it anew for every
mask. Accelerators draw masks inside their kernels, and keep torch's own dropout.

Shapes: T tokens end to end, R >= T packed rows, D width, N = S * H sentences times heads, L tokens
of the longest sentence, Q queries (L, or 1 where only first tokens are asked for), d = D / H.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.profiler import record_function

from contrasent.model.backbones.packing import Blocks, move, packed_attention

LONG = 128
"""Above this length weights, ``(N, Q, L)``, are not written out where no gradient needs them."""
_STEPS = 1 << 15
_AS_INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def dropout(x: Tensor, rate: float) -> Tensor:
    """Zero each element with probability ``rate`` and scale the others, as ``F.dropout`` does."""
    if rate == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, rate)
    dropped: Tensor = _Dropout.apply(x, rate)  # type: ignore[no-untyped-call]
    return dropped


def keep_mask(x: Tensor, rate: float) -> tuple[Tensor, float]:
    """Draw which elements of ``x`` stay: a mask for :func:`apply_mask`, and the factor to scale by.

    All bits of the mask are set where an element stays, none where it is dropped.
    """
    limit = min(round(rate * _STEPS), _STEPS - 1)
    seed = int(torch.empty((), dtype=torch.int64).random_())
    with record_function("dropout mask"):  # which a profile would not see otherwise
        numbers = np.random.SFC64(seed).random_raw((x.numel() + 3) // 4)
    mask = torch.from_numpy(numbers.view(np.int16))[: x.numel()].view(x.shape)
    # The 15 low bits are r, and the sign bit makes that r - 32768; adding the limit leaves it
    # negative if r < 32768 - limit, and the shift copies the sign into all bits.
    mask.bitwise_or_(-_STEPS).add_(limit).bitwise_right_shift_(15)
    return mask, _STEPS / (_STEPS - limit)


def apply_mask(x: Tensor, mask: Tensor) -> Tensor:
    """``x`` with zeros where ``mask`` has none of its bits set."""
    integer = _AS_INTEGER[x.element_size()]
    return (x.view(integer) & mask.to(integer)).view(x.dtype)


class _Dropout(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        mask, ctx.scale = keep_mask(x, rate)
        ctx.save_for_backward(mask)
        kept: Tensor = apply_mask(x, mask) * ctx.scale
        return kept

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return apply_mask(gradient.contiguous() * ctx.scale, mask), None


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
