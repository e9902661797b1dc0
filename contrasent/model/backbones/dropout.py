"""Dropout on a CPU with one 64-bit random number for four elements.

Drawing one random number per element took a fifth of a training step on a CPU. Here each element
takes 15 bits of its own, and the rate is the asked one to 1 in 65,536. The numbers come from
NumPy's SFC64, twice as fast as torch's generator, which seeds it anew for every mask. Accelerators
draw masks inside their kernels, and keep torch's own dropout.
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
