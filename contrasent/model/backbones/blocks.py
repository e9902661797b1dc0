"""How packed tokens lie in the blocks that attention works on.

Shapes: T tokens end to end, S sentences, L tokens of the longest, H heads, P parts (query, key,
value), d = D / H numbers per head.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from typing_extensions import override

from contrasent.data.batch import Batch
from contrasent.model.backbones.varlen import Runs

_LANES = 16


@dataclass(frozen=True, slots=True)
class Blocks:
    """Places of a batch's tokens, computed once per forward call.

    Attributes:
        sentences: S.
        longest: L, or more.
        heads: H.
        first: ``(S,)`` the packed number of each sentence's first token.
        positions: ``(T,)`` the place of each token in its sentence.
        sentence: ``(T,)`` the sentence of each token.
        mask: ``(S, L)`` True where there is a token; None if nothing is padded.
        rows: R >= T, the rows that packed matrices have; those from T on belong to no token,
            reach no other row, and get a gradient of zero. If anything is padded there is at
            least one, and it stands for the padding.
        runs: the sentences, if attention is to take the packed rows as they are, without blocks;
            then R = T.
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
    _there: dict[int, Tensor] = field(default_factory=dict)
    _back: dict[int, Tensor] = field(default_factory=dict)
    _bias: dict[torch.dtype, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: Batch, heads: int, *, rounded: bool = False, packed: bool = False) -> Blocks:
        """Find the places of ``batch``.

        With ``rounded``, for bf16 on a CPU, R is rounded up by at most a sixteenth, so that few
        numbers of rows occur: products are compiled anew for each. And L is rounded up to a
        multiple of 16: torch's softmax takes three times as long for other lengths. With
        ``packed``, for attention without blocks, nothing is padded.
        """
        lengths, first, tokens = batch.lengths, batch.offsets[:-1], len(batch.token_ids)
        longest = batch.longest
        if rounded:
            longest = -(-longest // _LANES) * _LANES
        sentence = torch.repeat_interleave(lengths, output_size=tokens)
        positions = torch.arange(tokens, device=first.device) - first[sentence]
        mask, rows, runs = None, tokens, Runs.of(batch) if packed else None
        if runs is None and tokens < batch.sentences * longest:
            mask = torch.arange(longest, device=first.device) < lengths.unsqueeze(1)
            rows += 1
        step = 1 << max(0, rows.bit_length() - 5) if rounded else 1
        rows = -(-rows // step) * step
        return cls(batch.sentences, longest, heads, first, positions, sentence, mask, rows, runs)

    def spread(self, packed: Tensor, parts: int) -> Tensor:
        """``(R, P * D)`` to ``(P, S * H, L, d)``; padded places are copies of a row from T on."""
        if parts not in self._there:
            self._there[parts] = self._find_rows(parts)
        rows = packed.reshape(self.rows * parts * self.heads, -1)
        block = rows.index_select(0, self._there[parts])
        return block.view(parts, self.sentences * self.heads, self.longest, -1)

    def gather(self, block: Tensor) -> Tensor:
        """``(P, S * H, L, d)`` back to ``(R, P * D)``; rows from T on are zero."""
        parts, width = len(block), block.shape[-1]
        if parts not in self._back:
            self._back[parts] = self._find_places(parts)
        back = self._back[parts]
        rows = block.new_empty(self.rows * parts * self.heads, width)
        torch.index_select(block.view(-1, width), 0, back, out=rows[: len(back)])
        rows[len(back) :] = 0
        return rows.view(self.rows, -1)

    def bias(self, dtype: torch.dtype) -> Tensor | None:
        """``(S * H, 1, L)`` to add to the scores: 0 at tokens, minus infinity at padding."""
        if self.mask is None:
            return None
        if dtype not in self._bias:
            zeros = torch.zeros(self.mask.shape, dtype=dtype, device=self.mask.device)
            bias = zeros.masked_fill(~self.mask, float("-inf"))
            self._bias[dtype] = bias.repeat_interleave(self.heads, 0).unsqueeze(1)
        return self._bias[dtype]

    def _find_rows(self, parts: int) -> Tensor:
        """For each place of a block its row in ``(R * P * H, d)``."""
        tokens, device = len(self.positions), self.first.device
        token = torch.full((self.sentences, self.longest), tokens, device=device)
        token[self.sentence, self.positions] = torch.arange(tokens, device=device)
        part = torch.arange(parts, device=device)[:, None, None, None]
        head = torch.arange(self.heads, device=device)[None, None, :, None]
        return ((token[None, :, None, :] * parts + part) * self.heads + head).flatten()

    def _find_places(self, parts: int) -> Tensor:
        """For each row of ``(T * P * H, d)`` its place in a block."""
        device = self.first.device
        part = torch.arange(parts, device=device)[None, :, None]
        head = torch.arange(self.heads, device=device)[None, None, :]
        row = (part * self.sentences + self.sentence[:, None, None]) * self.heads + head
        return (row * self.longest + self.positions[:, None, None]).flatten()


def spread(packed: Tensor, blocks: Blocks, parts: int) -> Tensor:
    """:meth:`Blocks.spread`, with gradients."""
    block: Tensor = _Spread.apply(packed, blocks, parts)  # type: ignore[no-untyped-call]
    return block


def gather(block: Tensor, blocks: Blocks) -> Tensor:
    """:meth:`Blocks.gather`, with gradients."""
    packed: Tensor = _Gather.apply(block, blocks)  # type: ignore[no-untyped-call]
    return packed


class _Spread(Function):
    @staticmethod
    @override
    def forward(ctx: Any, packed: Tensor, blocks: Blocks, parts: int) -> Tensor:
        ctx.blocks = blocks
        return blocks.spread(packed, parts)

    @staticmethod
    @once_differentiable
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.blocks.gather(gradient), None, None


class _Gather(Function):
    @staticmethod
    @override
    def forward(ctx: Any, block: Tensor, blocks: Blocks) -> Tensor:
        ctx.blocks, ctx.parts = blocks, len(block)
        return blocks.gather(block)

    @staticmethod
    @once_differentiable
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.blocks.spread(gradient, ctx.parts), None
