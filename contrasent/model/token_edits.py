"""Token edits whose places DiffCSE's discriminator finds (Chuang et al. 2022, section 5).

Draws come from torch's generator. Shapes: S sentences, T tokens before the edit and T' after it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from contrasent.data.batch import Batch
from contrasent.data.tokenizer import SpecialIds
from contrasent.errors import ConfigError
from contrasent.model.generator import Generator
from contrasent.model.masked_lm import Masked, mask_tokens, require_mask_token


@dataclass(frozen=True, slots=True)
class Edit:
    """The edited sentences, ``edited`` tokens ``(T',)`` to detect, and ``chosen`` masked ones.

    A token is to be detected that is not the original one (`replace`), was inserted (`insert`),
    or follows tokens that were deleted (`delete`, for which no places are masked).
    """

    batch: Batch
    edited: Tensor
    chosen: Tensor


@dataclass(frozen=True, slots=True)
class Editing:
    """How sentences are edited: a ``rate`` of their ordinary tokens, by ``generator`` if it fills.

    `replace` takes its tokens at all ``positions``, where tokens that were not masked may change
    too, or at the masked ones. No sentence becomes longer than ``max_tokens``. Tokens of
    ``special_ids`` are never deleted, nor replaced by choice.
    """

    generator: Generator | None
    special_ids: SpecialIds
    vocabulary: int
    rate: float
    pick: Literal["argmax", "sample"]
    positions: Literal["all", "masked"]
    dropout: bool
    max_tokens: int

    def fill(self, batch: Batch, masked: Masked, positions: Literal["all", "masked"]) -> Tensor:
        """``(T,)`` int64, the tokens of ``batch`` with what the generator makes of ``masked``."""
        if self.generator is None:
            raise ConfigError("masked places are to be filled, but there is no generator")
        return self.generator.fill(
            batch, masked, pick=self.pick, positions=positions, dropout=self.dropout
        )


def replace(batch: Batch, editing: Editing) -> Edit:
    """Mask tokens, and let the generator replace them.

    A token that the generator restores is not labelled as edited, whether it was masked or not.
    """
    masked = mask_tokens(batch, editing.rate, editing.special_ids, editing.vocabulary)
    token_ids = editing.fill(batch, masked, editing.positions)
    replaced = dataclasses.replace(
        batch, token_ids=token_ids, duplicate_of=None, next_sentences=None
    )
    return Edit(replaced, token_ids != batch.token_ids, masked.chosen)


def insert(batch: Batch, editing: Editing) -> Edit:
    """Insert masked tokens between the first and the last token, and let the generator fill them.

    A sentence of n ordinary tokens gets ``rate * n``, rounded up or down at random so that the
    mean is exact. Places are drawn one by one, so several may stand side by side. The host waits.
    """
    tokens, device = len(batch.token_ids), batch.token_ids.device
    gaps = batch.lengths - 1
    count = _share_of_each(_per_sentence(_ordinary(batch, editing), batch), editing.rate)
    room = (editing.max_tokens - batch.lengths).clamp(min=0)
    count = torch.minimum(count, room) * (gaps > 0)
    sentence = torch.repeat_interleave(count)
    gap = (torch.rand(len(sentence), device=device) * gaps[sentence]).long()
    # A product that is rounded up would be one gap too far.
    after = batch.offsets[sentence] + torch.minimum(gap, gaps[sentence] - 1)
    order = torch.cat([torch.arange(tokens, device=device), after]).argsort(stable=True)
    masks = batch.token_ids.new_full((len(sentence),), require_mask_token(editing.special_ids))
    masked = Masked(torch.cat([batch.token_ids, masks])[order], order >= tokens)
    longer = Batch(masked.token_ids, batch.offsets + _starts(count), batch.views)
    token_ids = editing.fill(longer, masked, "masked")
    return Edit(dataclasses.replace(longer, token_ids=token_ids), masked.chosen, masked.chosen)


def delete(batch: Batch, editing: Editing) -> Edit:
    """Delete ordinary tokens; a token is labelled if at least one directly before it is gone.

    A sentence of n ordinary tokens loses ``rate * n``, rounded up or down at random so that the
    mean is exact, but never all, nor its first or last token, so no label is lost. The host waits.
    """
    tokens, device = len(batch.token_ids), batch.token_ids.device
    sentence = torch.repeat_interleave(batch.lengths, output_size=tokens)
    edge = torch.zeros(tokens, dtype=torch.bool, device=device)
    edge[batch.offsets[:-1]] = edge[batch.offsets[1:] - 1] = True
    may_go = _ordinary(batch, editing) & ~edge
    candidates = _per_sentence(may_go, batch)
    count = torch.minimum(_share_of_each(candidates, editing.rate), candidates - 1)
    # Ranks in a random order within each sentence, those that may go first.
    draws = (torch.rand(tokens, device=device) + ~may_go).argsort()
    order = draws[sentence[draws].argsort(stable=True)]
    rank = torch.empty_like(order)
    rank[order] = torch.arange(tokens, device=device) - batch.offsets[sentence]
    gone = rank < count[sentence]
    before = F.pad(gone[:-1], (1, 0))
    shorter = batch.offsets - _starts(_per_sentence(gone, batch))
    edited = before[~gone]
    left = Batch(batch.token_ids[~gone], shorter, batch.views)
    return Edit(left, edited, torch.zeros_like(edited))


def _ordinary(batch: Batch, editing: Editing) -> Tensor:
    """``(T,)`` bool, the tokens that are not special."""
    special = torch.tensor(editing.special_ids.every, device=batch.token_ids.device)
    return ~torch.isin(batch.token_ids, special)


def _per_sentence(chosen: Tensor, batch: Batch) -> Tensor:
    """``(S,)`` int64, how many tokens of each sentence are chosen."""
    return _starts(chosen)[batch.offsets].diff()


def _share_of_each(counts: Tensor, rate: float) -> Tensor:
    """``(S,)`` int64, ``rate`` times each count, rounded to either side, exact in the mean."""
    return (counts * rate + torch.rand(len(counts), device=counts.device)).long()


def _starts(counts: Tensor) -> Tensor:
    """The sum of the counts before each, and of all at the end."""
    return F.pad(counts.cumsum(0), (1, 0))
