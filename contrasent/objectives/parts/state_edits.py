"""Edits of what the embedding layer gives (Yan et al. 2021, ConSERT).

Draws come from torch's generator, on the device of the batch. Special tokens are tokens like
others, as in the authors' code.

Shapes: S sentences, T tokens end to end, D width of a token state.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from contrasent.data.batch import Batch, joined


def shuffled(batch: Batch, *, keep_first: bool) -> Batch:
    """The tokens of each sentence in another order.

    The paper gives each token the position of another one and leaves the order as it is. For a
    transformer with positions in its embedding layer that is the same up to the order of its
    states, which no mean over tokens knows; and this way works for other positions too.

    Args:
        batch: S sentences.
        keep_first: leave the first token of each in its place, where it is what is pooled.
    """
    order = torch.argsort(_keys(batch, keep_first=keep_first))
    return replace(batch, token_ids=batch.token_ids[order], texts=None)


def without_tokens(batch: Batch, rate: float) -> Batch:
    """Token cut-off: of n tokens, ``int(rate * n)`` have 0 for their state."""
    order = torch.argsort(_keys(batch))
    place = torch.arange(len(order), device=order.device)
    lengths = torch.repeat_interleave(batch.lengths, batch.lengths, output_size=len(order))
    starts = torch.repeat_interleave(batch.offsets[:-1], batch.lengths, output_size=len(order))
    cut = place - starts < (lengths * rate).long()
    factors = torch.ones(len(order), device=order.device)
    return replace(batch, factors=factors.index_put((order,), (~cut).float()).unsqueeze(1))


def without_features(batch: Batch, rate: float, width: int) -> Batch:
    """Feature cut-off: ``int(rate * D)`` features are 0 in all states of a sentence."""
    draws = torch.rand(batch.sentences, width, device=batch.token_ids.device)
    kept = draws.argsort(-1).argsort(-1) >= int(rate * width)
    tokens = len(batch.token_ids)
    return replace(
        batch, factors=kept.float().repeat_interleave(batch.lengths, 0, output_size=tokens)
    )


def without_numbers(batch: Batch, rate: float, width: int) -> Batch:
    """Dropout as a view: each number of a state is 0 with probability ``rate``, and not scaled."""
    draws = torch.rand(len(batch.token_ids), width, device=batch.token_ids.device)
    return replace(batch, factors=(draws >= rate).float())


def beside(first: Batch, second: Batch) -> Batch:
    """The views of ``first``, then those of ``second``, each with its factors."""
    both = joined([first, second], first.views + second.views)
    parts = first, second
    if all(part.factors is None for part in parts):
        return both
    width = max(part.factors.shape[1] for part in parts if part.factors is not None)
    factors = [_factors(part).expand(-1, width) for part in parts]
    return replace(both, factors=torch.cat(factors))


def _factors(batch: Batch) -> Tensor:
    if batch.factors is not None:
        return batch.factors
    return torch.ones(len(batch.token_ids), 1, device=batch.token_ids.device)


def _keys(batch: Batch, *, keep_first: bool = False) -> Tensor:
    """``(T,)`` numbers that sort tokens by sentence, and at random within each."""
    tokens, device = len(batch.token_ids), batch.token_ids.device
    numbers = torch.arange(batch.sentences, device=device)
    sentence = torch.repeat_interleave(numbers, batch.lengths, output_size=tokens)
    draws = torch.rand(tokens, dtype=torch.float64, device=device)
    if keep_first:
        draws = (0.5 + draws / 2).index_fill(0, batch.offsets[:-1], 0.0)
    return sentence + draws
