"""Masked tokens, as BERT's training has them (Devlin et al. 2019, section 3.1).

Shape: T tokens end to end.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from contrasent.data.batch import Batch
from contrasent.data.tokens import SpecialIds
from contrasent.errors import ConfigError

_MASKED, _MASKED_OR_RANDOM = 0.8, 0.9


@dataclass(frozen=True, slots=True)
class Masked:
    """A batch's tokens, some of them hidden.

    Attributes:
        token_ids: ``(T,)`` int64.
        chosen: ``(T,)`` bool, the tokens to predict, also those that were kept.
    """

    token_ids: Tensor
    chosen: Tensor


def mask_tokens(
    batch: Batch,
    rate: float,
    special_ids: SpecialIds,
    vocabulary: int,
    *,
    always_mask: bool = False,
) -> Masked:
    """Choose tokens to predict, each by itself with probability ``rate``; never a special one.

    Of the chosen 80 % become the mask token, 10 % a random token and 10 % stay. A random token may
    be any of the vocabulary, special ones included, as in the reference implementations. Drawn
    from torch's generator of the batch's device.

    Args:
        batch: T tokens.
        rate: between 0 and 1, both excluded.
        special_ids: of the tokenizer.
        vocabulary: how many token ids there are.
        always_mask: every chosen token becomes the mask token.

    Raises:
        ConfigError: ``rate`` is not between 0 and 1, or the tokenizer has no mask token.
    """
    if not 0 < rate < 1:
        raise ConfigError(f"the share of masked tokens must be between 0 and 1, not {rate}")
    mask = require_mask_token(special_ids)
    tokens = batch.token_ids
    device, shape = tokens.device, tokens.shape
    special = torch.isin(tokens, _on(device, special_ids.every))
    chosen = (torch.rand(shape, device=device) < rate) & ~special
    if always_mask:
        return Masked(tokens.masked_fill(chosen, mask), chosen)
    kind = torch.rand(shape, device=device)
    random = torch.randint(vocabulary, shape, device=device)
    replaced = torch.where(kind < _MASKED_OR_RANDOM, random, tokens)
    replaced = replaced.masked_fill(kind < _MASKED, mask)
    return Masked(torch.where(chosen, replaced, tokens), chosen)


def require_mask_token(special_ids: SpecialIds) -> int:
    """The id of the mask token.

    Raises:
        ConfigError: there is none.
    """
    if special_ids.mask is None:
        raise ConfigError(
            "this tokenizer has no mask token, so no token can be hidden; start from a masked "
            "language model (BERT, RoBERTa, DistilBERT, ...)"
        )
    return special_ids.mask


@lru_cache(maxsize=8)
def _on(device: torch.device, ids: tuple[int, ...]) -> Tensor:
    """Kept on the device: a copy from the host would make every step wait."""
    return torch.tensor(ids, device=device)
