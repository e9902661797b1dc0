"""Packing: how tokens without padding lie in the blocks and runs that attention works on.

``aten::_flash_attention_forward`` is what ``torch.nn.attention.varlen.varlen_attn`` and nested
tensors call. It is called here without them, because the former takes no dropout, and the latter
wrap every tensor anew in each layer.

Shapes: T tokens end to end, S sentences, L tokens of the longest, H heads, P parts (query, key,
value), d = D / H numbers per head.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.backends.cuda import SDPAParams, can_use_flash_attention, flash_sdp_enabled

from contrasent.data.batch import Batch

_ALIGNED = 8
"""Numbers per head must be a multiple of it: the call that pads them is not the one used here."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Where each sentence's rows are: from ``offsets[s]``, ``(S + 1,)`` int32, to the next offset.

    No sentence has more than ``longest``.
    In ``causal`` ones a token sees itself and those before it; otherwise the whole sentence.
    """

    offsets: Tensor
    longest: int
    causal: bool = False

    @classmethod
    def of(cls, batch: Batch, causal: bool = False) -> Runs:
        """The tokens of ``batch``."""
        return cls(batch.offsets.to(torch.int32), batch.longest, causal)


def packed_attention_available(device: torch.device, dtype: torch.dtype, head_width: int) -> bool:
    """Whether the kernel is there, and takes ``head_width`` dimensions per head in ``dtype``.

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


def packed_attention(
    packed: Tensor, heads: int, runs: Runs, rate: float, query: Tensor | None = None
) -> Tensor:
    """``dropout(softmax(q k / sqrt(d))) v`` within each sentence, ``(T, D)``.

    ``packed (T, 3 D)`` has a query, a key and a value in each row. A row that is in no run would
    get an undefined result and gradient. With ``query (S, D)``, of first tokens, ``packed`` has a
    key and a value, and ``(S, D)`` is returned.
    """
    if query is None:
        q, k, v = packed.view(len(packed), 3, heads, -1).unbind(1)
        return _flash((q, k, v), runs, runs, rate).flatten(1)
    key, value = packed.view(len(packed), 2, heads, -1).unbind(1)
    offsets = torch.arange(len(runs.offsets), dtype=torch.int32, device=packed.device)
    parts = (query.view(len(query), heads, -1), key, value)
    return _flash(parts, Runs(offsets, 1), runs, rate).flatten(1)


def _flash(
    parts: tuple[Tensor, Tensor, Tensor], of_query: Runs, of_key: Runs, rate: float
) -> Tensor:
    """Attention of ``(query, key, value)``, each ``(rows, H, d)``, as ``(rows, H, d)``."""
    offsets, longest = (of_query.offsets, of_key.offsets), (of_query.longest, of_key.longest)
    # The last argument: no copy of the mask for debugging.
    call = torch.ops.aten._flash_attention_forward
    mixed: Tensor = call(*parts, *offsets, *longest, rate, of_query.causal, False)[0]
    return mixed


_LANES = 16


@dataclass(frozen=True, slots=True)
class Blocks:
    """Places of a batch's tokens, computed once per forward call.

    ``first (S,)`` are the packed numbers of first tokens, ``positions (T,)`` the places of tokens
    in their ``sentence (T,)``. ``mask (S, L)`` is True where there is a token, None if nothing is
    padded; ``longest`` is L or more. Of the R ``rows`` those from T on reach no other row and get
    a gradient of zero; if anything is padded there is at least one, and it stands for the
    padding. If attention takes packed rows as ``runs``, without blocks, R = T. If it is
    ``causal`` a token sees itself and those before it; otherwise the whole sentence. ``added``,
    ``(H, L, L)`` or ``(1, L, L)``, is added to the scores of every sentence; gradients reach it.
    """

    sentences: int
    longest: int
    heads: int
    first: Tensor
    positions: Tensor
    sentence: Tensor
    mask: Tensor | None
    rows: int
    runs: Runs | None = None
    causal: bool = False
    added: Tensor | None = None
    _there: dict[int, Tensor] = field(default_factory=dict)
    _back: dict[int, Tensor] = field(default_factory=dict)
    _bias: dict[torch.dtype, Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        batch: Batch,
        heads: int,
        *,
        rounded: bool = False,
        packed: bool = False,
        causal: bool = False,
    ) -> Blocks:
        """Find the places of ``batch``; if ``packed``, for attention without blocks or padding.

        With ``rounded``, for bf16 on a CPU, R is rounded up by at most a sixteenth: products are
        compiled anew for each number of rows. And L is rounded up to a multiple of 16: torch's
        softmax takes three times as long for other lengths.
        """
        lengths, first, tokens = batch.lengths, batch.offsets[:-1], len(batch.token_ids)
        longest = batch.longest
        if rounded:
            longest = -(-longest // _LANES) * _LANES
        sentence = torch.repeat_interleave(lengths, output_size=tokens)
        positions = torch.arange(tokens, device=first.device) - first[sentence]
        mask, rows, runs = None, tokens, Runs.of(batch, causal) if packed else None
        if runs is None and tokens < batch.sentences * longest:
            mask = torch.arange(longest, device=first.device) < lengths.unsqueeze(1)
            rows += 1
        step = 1 << max(0, rows.bit_length() - 5) if rounded else 1
        rows = -(-rows // step) * step
        places = (first, positions, sentence)
        return cls(batch.sentences, longest, heads, *places, mask, rows, runs, causal)

    @classmethod
    def single(cls, tokens: int, heads: int, spare: int) -> Blocks:
        """One sentence on the CPU with ``spare`` rows, which are padded places of its block."""
        places, rows = torch.arange(tokens), tokens + spare
        mask = torch.arange(rows).unsqueeze(0) < tokens if spare else None
        first = torch.zeros(1, dtype=torch.int64)
        return cls(1, rows, heads, first, places, first.expand(tokens), mask, rows)

    def with_first(self, state: Tensor, first: Tensor) -> Tensor:
        """State 0 ``(T, D)`` with ``(S, D)`` or ``(S, N, D)`` in place of that of first tokens."""
        given = first.reshape(self.sentences, -1, state.shape[-1])
        places = self.first.unsqueeze(1) + torch.arange(given.shape[1], device=state.device)
        return state.index_copy(0, places.flatten(), given.flatten(0, 1).to(state.dtype))

    def spread(self, packed: Tensor, parts: int) -> Tensor:
        """``(R, P * D)`` to ``(P, S * H, L, d)``; padded places are copies of a row from T on."""
        if parts not in self._there:  # for each place of a block its row in ``(R * P * H, d)``
            tokens, device = len(self.positions), self.first.device
            token = torch.full((self.sentences, self.longest), tokens, device=device)
            token[self.sentence, self.positions] = torch.arange(tokens, device=device)
            part = torch.arange(parts, device=device)[:, None, None, None]
            head = torch.arange(self.heads, device=device)[None, None, :, None]
            row = (token[None, :, None, :] * parts + part) * self.heads + head
            self._there[parts] = row.flatten()
        rows = packed.reshape(self.rows * parts * self.heads, -1)
        block = rows.index_select(0, self._there[parts])
        return block.view(parts, self.sentences * self.heads, self.longest, -1)

    def gather(self, block: Tensor) -> Tensor:
        """``(P, S * H, L, d)`` back to ``(R, P * D)``; rows from T on are zero."""
        parts, width = len(block), block.shape[-1]
        if parts not in self._back:  # for each row of ``(T * P * H, d)`` its place in a block
            part = torch.arange(parts, device=block.device)[None, :, None]
            head = torch.arange(self.heads, device=block.device)[None, None, :]
            row = (part * self.sentences + self.sentence[:, None, None]) * self.heads + head
            places = row * self.longest + self.positions[:, None, None]
            self._back[parts] = places.flatten()
        back = self._back[parts]
        rows = block.new_empty(self.rows * parts * self.heads, width)
        torch.index_select(block.view(-1, width), 0, back, out=rows[: len(back)])
        rows[len(back) :] = 0
        return rows.view(self.rows, -1)

    def bias(self, dtype: torch.dtype) -> Tensor | None:
        """What to add to the scores: 0 where a token is seen, and minus infinity elsewhere.

        ``(S * H, 1, L)``, or ``(1, L, L)`` if causal: padding comes after every token. Both, and
        ``(S * H, L, L)``, with what is `added`.
        """
        if dtype in self._bias:
            return self._bias[dtype]
        unseen, bias = None, None
        if self.causal:
            square = (1, self.longest, self.longest)
            unseen = torch.ones(square, dtype=torch.bool, device=self.first.device).triu(1)
        elif self.mask is not None:
            unseen = ~self.mask.repeat_interleave(self.heads, 0).unsqueeze(1)
        if unseen is not None:
            bias = torch.zeros_like(unseen, dtype=dtype).masked_fill(unseen, float("-inf"))
        if self.added is not None:
            added = self.added.to(dtype)
            added = added.repeat(self.sentences, 1, 1) if len(added) > 1 else added
            bias = added if bias is None else added + bias
        if bias is not None:
            self._bias[dtype] = bias
        return bias


def move(x: Tensor, blocks: Blocks, parts: int = 0) -> Tensor:
    """:meth:`Blocks.spread` to so many parts, or :meth:`Blocks.gather` to none, with gradients."""
    moved: Tensor = _Move.apply(x, blocks, parts)  # type: ignore[no-untyped-call]
    return moved


class _Move(Function):
    """To blocks and back; each is the gradient of the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, blocks: Blocks, parts: int) -> Tensor:
        ctx.blocks, ctx.back = blocks, 0 if parts else len(x)
        return blocks.spread(x, parts) if parts else blocks.gather(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        blocks = ctx.blocks
        back = blocks.spread(gradient, ctx.back) if ctx.back else blocks.gather(gradient)
        return back, None, None
