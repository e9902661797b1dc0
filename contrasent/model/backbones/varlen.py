"""Attention of sentences that lie end to end, by the kernel that torch has for it on CUDA devices.

Shapes: T tokens end to end, S sentences, H heads, d numbers per head, D = H * d.

``aten::_flash_attention_forward`` is what ``torch.nn.attention.varlen.varlen_attn`` and the
attention of nested tensors call. It is called here without them, because the former takes no
dropout, and the latter wrap every tensor anew in each layer. It has a gradient, and what it needs
to know on the host it is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention, flash_sdp_enabled

from contrasent.data.batch import Batch

_ALIGNED = 8
"""Numbers per head must be a multiple of it: the call that pads them is not the one used here."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Where each sentence's rows are.

    Attributes:
        offsets: ``(S + 1,)`` int32; sentence ``s`` has the rows ``offsets[s]:offsets[s + 1]``.
        longest: the most rows that a sentence has, or more.
    """

    offsets: Tensor
    longest: int

    @classmethod
    def of(cls, batch: Batch) -> Runs:
        """The tokens of ``batch``."""
        return cls(batch.offsets.to(torch.int32), batch.longest)

    def first(self) -> Runs:
        """One row for each sentence."""
        offsets = self.offsets
        return Runs(torch.arange(len(offsets), dtype=offsets.dtype, device=offsets.device), 1)


def packed_attention_available(device: torch.device, dtype: torch.dtype, head_width: int) -> bool:
    """Whether the kernel is there, and takes ``head_width`` numbers per head in ``dtype``.

    Fp32 it does not take. ``torch.nn.attention.sdpa_kernel`` can forbid it.
    """
    if device.type != "cuda" or torch.version.hip or head_width % _ALIGNED:
        return False
    allowed: bool = flash_sdp_enabled()  # type: ignore[no-untyped-call]
    return allowed and _takes(device, dtype, head_width)


@lru_cache
def _takes(device: torch.device, dtype: torch.dtype, head_width: int) -> bool:
    with torch.inference_mode(mode=False):
        probe = torch.empty(
            (1, 1, _ALIGNED, head_width), dtype=dtype, device=device, requires_grad=True
        )
        # With a gradient and dropout, which some devices lack for wide heads.
        return can_use_flash_attention(SDPAParams(probe, probe, probe, None, 0.1, False, False))


def packed_attention(packed: Tensor, heads: int, runs: Runs, rate: float) -> Tensor:
    """``dropout(softmax(q k / sqrt(d))) v`` within each sentence.

    Args:
        packed: ``(T, 3 D)``, each row a query, a key and a value. A row that is in no run would get
            an undefined result and gradient.
        heads: H.
        runs: the sentences.
        rate: dropout of the weights.

    Returns:
        ``(T, D)``.
    """
    query, key, value = packed.view(len(packed), 3, heads, -1).unbind(1)
    return _flash((query, key, value), runs, runs, rate).flatten(1)


def packed_first_attention(
    query: Tensor, packed: Tensor, heads: int, runs: Runs, rate: float
) -> Tensor:
    """:func:`packed_attention` of first tokens only.

    Args:
        query: ``(S, D)``.
        packed: ``(T, 2 D)``, each row a key and a value, and in some run.
        heads: H.
        runs: the sentences.
        rate: dropout of the weights.

    Returns:
        ``(S, D)``.
    """
    key, value = packed.view(len(packed), 2, heads, -1).unbind(1)
    parts = (query.view(len(query), heads, -1), key, value)
    return _flash(parts, runs.first(), runs, rate).flatten(1)


def _flash(
    parts: tuple[Tensor, Tensor, Tensor], of_query: Runs, of_key: Runs, rate: float
) -> Tensor:
    """Attention of ``(query, key, value)``, each ``(rows, H, d)``, as ``(rows, H, d)``."""
    mixed: Tensor = torch.ops.aten._flash_attention_forward(
        *parts,
        of_query.offsets,
        of_key.offsets,
        of_query.longest,
        of_key.longest,
        rate,
        False,  # every token sees the whole sentence
        False,  # no copy of the mask for debugging
    )[0]
    return mixed
