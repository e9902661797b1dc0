"""Masked language modelling alone (Devlin et al. 2019): for a generator, or a start, of one's own.

What is saved is a masked language model, encoder and head together.

Shapes: T tokens end to end, M of them chosen to be predicted.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from contrasent.data.batch import Batch, Need, sums_by_parts
from contrasent.distributed import split, total
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.masked_lm import Masked, MaskedLm, MlmHead, mask_tokens, require_mask_token
from contrasent.model.protocol import Encoded
from contrasent.objectives import Objective, Share, Start, Terms
from contrasent.settings import settings

_HIDDEN = 256
"""Hidden tokens whose logits are in memory at once, of a step in chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedBatch(Batch):
    """A batch before anything was hidden or added, and with hidden tokens in its last sentences."""

    source: Batch
    masked: Masked


class HiddenTokens(nn.Module):
    """Hides tokens, and scores what a masked-LM head makes of the states in their places."""

    def __init__(self, start: Start, mask_rate: float, head: MlmHead | None = None) -> None:
        """Predict with ``head``, or with a copy of the one that the encoder's checkpoint has."""
        super().__init__()
        encoder = start.require_encoder()
        self.head = head or copy.deepcopy(MaskedLm.load(encoder.name).head)
        require_mask_token(encoder.tokenizer)
        self._tokenizer, self._rate = encoder.tokenizer, mask_rate

    def hide(self, batch: Batch, views: int | None = None) -> MaskedBatch:
        """``batch`` with tokens of its ``views`` first views, or of all, hidden by a draw each."""
        masked = mask_tokens(batch, self._rate, self._tokenizer)
        if views is not None:
            end = batch.offsets[views * batch.examples]
            inside = torch.arange(len(batch.token_ids), device=end.device) < end
            token_ids = torch.where(inside, masked.token_ids, batch.token_ids)
            masked = Masked(token_ids, masked.chosen & inside)
        return MaskedBatch(
            masked.token_ids, batch.offsets, batch.views, batch.longest, source=batch, masked=masked
        )

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        """The mean cross-entropy of the M hidden tokens, 0 if there are none."""
        hidden = cast(MaskedBatch, batch)
        before = len(batch.token_ids) - len(hidden.source.token_ids)
        chosen = F.pad(hidden.masked.chosen, (before, 0))
        wanted = F.pad(hidden.source.token_ids, (before, 0))
        if encoded.own is not None:
            places = batch.places(encoded.own)
            chosen, wanted = chosen[places], wanted[places]
        return mean_terms("mlm", total(hidden_sums(self.head, encoded.states[-1], chosen, wanted)))

    def score(
        self, states: Callable[..., Tensor], hidden: MaskedBatch, rows: Sequence[Tensor]
    ) -> Terms:
        """The same of ``states(batch, *rows)``, computed of what ``hide`` made, part by part."""

        def sums(part: Batch, *given: Tensor) -> Tensor:
            *vectors, chosen, wanted = given
            return hidden_sums(self.head, states(part, *vectors), chosen, wanted)

        tokens = [hidden.masked.chosen, hidden.source.token_ids]
        return mean_terms("mlm", sums_by_parts(sums, hidden, rows=rows, tokens=tokens))


def hidden_sums(
    head: Callable[[Tensor], Tensor], states: Tensor, chosen: Tensor, wanted: Tensor
) -> Tensor:
    """``(3,)``: cross-entropy of ``chosen (T,)`` tokens, how many are right, their number."""
    places = chosen.nonzero().squeeze(1)
    pieces = [places] if split().chunk is None else torch.split(places, _HIDDEN)

    def score(piece: Tensor) -> Tensor:
        logits, targets = head(states.index_select(0, piece)), wanted[piece]
        right = (logits.detach().argmax(-1) == targets).float().sum()
        return torch.stack([F.cross_entropy(logits.float(), targets, reduction="sum"), right])

    if len(pieces) == 1:
        sums = score(pieces[0])
    else:
        parts = [checkpoint(score, piece, use_reentrant=False) for piece in pieces]
        sums = torch.stack(parts).sum(0)
    return torch.cat([sums, sums.new_full((1,), len(places))])


def mean_terms(name: str, sums: Tensor) -> Terms:
    """The means of `hidden_sums` over the tokens, as a term and a measure."""
    loss, right, count = sums
    return Terms({name: loss / count.clamp(min=1)}, {f"{name}_accuracy": (right / count).detach()})


@settings
class Config:
    """Settings of masked language modelling."""

    mask_rate: Share = 0.15
    """Share of the tokens to predict; 80 % of them are masked, 10 % random, 10 % kept."""


class Mlm(Objective):
    """Predict the hidden tokens of each sentence; data with several per example is refused."""

    config_class = Config
    in_parts = alone = True
    views = 1
    needs = frozenset({Need.TOKEN_STATES, Need.TOKENS})

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__()
        encoder = start.require_encoder()
        masked_lm = MaskedLm.load(encoder.name, new_head=True).share(encoder.backbone)
        self._masked_lm = (masked_lm,)
        self.tokens = HiddenTokens(start, config.mask_rate, masked_lm.head)

    def prepare(self, batch: Batch) -> Batch:
        return self.tokens.hide(batch)

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        return cast(Terms, self.tokens(encoded, batch))

    def save(self, encoder: SentenceEncoder, folder: Path, info: Mapping[str, Any]) -> None:
        self._masked_lm[0].save(folder, encoder.tokenizer, info)
