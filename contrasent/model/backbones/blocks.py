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
from torch.nn import functional as F
from typing_extensions import override

from contrasent.data.batch import Batch


@dataclass(frozen=True, slots=True)
class Blocks:
    """Places of a batch's tokens, computed once per forward call.

    Attributes:
        sentences: S.
        longest: L.
        heads: H.
        first: ``(S,)`` the packed number of each sentence's first token.
        positions: ``(T,)`` the place of each token in its sentence.
        sentence: ``(T,)`` the sentence of each token.
        mask: ``(S, L)`` True where there is a token; None if nothing is padded.
        rows: R >= T, the rows that packed matrices have; those from T on belong to no token,
            reach no other row, and get a gradient of zero.
    """

    sentences: int
    longest: int
    heads: int
    first: Tensor
    positions: Tensor
    sentence: Tensor
    mask: Tensor | None
    rows: int
    _places: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: Batch, heads: int, *, round_rows: bool = False) -> Blocks:
        """Find the places of ``batch``.

        With ``round_rows``, R is rounded up by at most a sixteenth, so that few numbers of rows
        occur: bf16 products on a CPU are compiled anew for each.
        """
        lengths, first, tokens = batch.lengths, batch.offsets[:-1], len(batch.token_ids)
        longest = int(lengths.max())
        sentence = torch.repeat_interleave(lengths, output_size=tokens)
        positions = torch.arange(tokens, device=first.device) - first[sentence]
        mask = None
        if tokens < batch.sentences * longest:
            mask = torch.arange(longest, device=first.device) < lengths.unsqueeze(1)
        step = 1 << max(0, tokens.bit_length() - 5) if round_rows else 1
        rows = -(-tokens // step) * step
        return cls(batch.sentences, longest, heads, first, positions, sentence, mask, rows)

    def spread(self, packed: Tensor, parts: int) -> tuple[Tensor, ...]:
        """``(R, P * D)`` to P times ``(S * H, L, d)``, each contiguous.

        Padded places repeat some token; the attention mask keeps them out of every sum.
        """
        block, token = self._index(parts)
        rows = packed.reshape(len(packed) * parts * self.heads, -1)
        spread: Tensor = _Permuted.apply(rows, block, token)  # type: ignore[no-untyped-call]
        return spread.view(parts, self.sentences * self.heads, self.longest, -1).unbind(0)

    def gather(self, block: Tensor) -> Tensor:
        """``(S * H, L, d)`` back to ``(R, D)``."""
        _, token = self._index(1)
        spare = self.rows * self.heads - len(token)
        rows = block.reshape(self.sentences * self.heads * self.longest, -1)
        return rows.index_select(0, F.pad(token, (0, spare))).view(self.rows, -1)

    def bias(self, dtype: torch.dtype) -> Tensor | None:
        """``(S * H, 1, L)`` to add to the scores: 0 at tokens, minus infinity at padding."""
        if self.mask is None:
            return None
        zeros = torch.zeros(self.mask.shape, dtype=dtype, device=self.mask.device)
        bias = zeros.masked_fill(~self.mask, float("-inf"))
        return bias.repeat_interleave(self.heads, 0).unsqueeze(1)

    def _index(self, parts: int) -> tuple[Tensor, Tensor]:
        """Where each row of the block is in the packed rows, and the other way round."""
        if parts not in self._places:
            self._places[parts] = self._find(parts)
        return self._places[parts]

    def _find(self, parts: int) -> tuple[Tensor, Tensor]:
        heads, longest, device = self.heads, self.longest, self.first.device
        part = torch.arange(parts, device=device)[None, :, None]
        head = torch.arange(heads, device=device)[None, None, :]
        row = (part * self.sentences + self.sentence[:, None, None]) * heads + head
        token = (row * longest + self.positions[:, None, None]).flatten()
        block = torch.zeros(
            parts * self.sentences * heads * longest, dtype=torch.int64, device=device
        )
        block[token] = torch.arange(len(token), device=device)
        return block, token


class _Permuted(Function):
    """Rows in another order; rows that repeat another one must get a gradient of zero."""

    @staticmethod
    @override
    def forward(ctx: Any, rows: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        ctx.rows = len(rows)
        return rows.index_select(0, there)

    @staticmethod
    @once_differentiable
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        whole = gradient.new_empty(ctx.rows, gradient.shape[1])
        torch.index_select(gradient, 0, back, out=whole[: len(back)])
        whole[len(back) :] = 0
        return whole, None, None
