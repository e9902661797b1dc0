"""Parts that objectives share: a contrast, masked language modelling, classes of pairs.

Shapes: B pairs or examples, C candidates, D embedding width; T tokens end to end, M of them chosen
to be predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from contrasent.data.batch import Batch, Need
from contrasent.distributed import split, total
from contrasent.functional import info_nce, masked_cross_entropy
from contrasent.model.heads import head_named
from contrasent.model.masked_lm import Masked, MlmHead, mask_tokens, require_mask_token
from contrasent.model.protocol import Encoded
from contrasent.objectives.base import Objective, Start, Terms, duplicates
from contrasent.settings import settings


@settings
class ContrastConfig:
    """Settings of a contrast of anchors with the candidates of a batch."""

    temperature: PositiveFloat = 0.05
    """tau; the cosine is divided by it."""

    head: Literal["mlp", "batchnorm", "none"] = "mlp"
    """A head that is trained and then dropped."""

    exclude_duplicates: bool = True
    """Leave candidates with the text of the anchor or of its positive out of the negatives."""


class Contrast(Objective):
    """An objective that contrasts anchors with the candidates of a batch, after a head."""

    config_class = ContrastConfig

    def __init__(self, config: Any, start: Start) -> None:
        super().__init__(config, start)
        self.head = head_named(config.head, start.width)

    def contrast(
        self, anchor: Tensor, candidates: Tensor, batch: Batch, further: Tensor | None = None
    ) -> Tensor:
        """InfoNCE of ``anchor (B, D)`` and ``candidates (C, D)``, and of ``further`` logits."""
        excluded = duplicates(batch) if self.config.exclude_duplicates else None
        temperature = self.config.temperature
        return info_nce(anchor, candidates, temperature, excluded=excluded, further=further)


CLASSES = 3
_HIDDEN = 256
"""Hidden tokens whose logits are in memory at once, of a step in chunks."""

Feature = Literal["u", "v", "difference", "product", "max_square"]
Features = Annotated[list[Feature], Field(min_length=1)]
SBERT: tuple[Feature, ...] = ("u", "v", "difference")
"""Features of SBERT's classifier; ConSERT's has max_square too."""

_FEATURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "u": lambda u, _: u,
    "v": lambda _, v: v,
    "difference": lambda u, v: (u - v).abs(),
    "product": lambda u, v: u * v,
    "max_square": lambda u, v: torch.maximum(u, v).square(),
}


class PairClassifier(nn.Module):
    """A linear map of features of a pair to three classes, and its cross-entropy.

    Reimers and Gurevych 2019 (SBERT), section 3: softmax(W [u, v, |u - v|]), with a bias as in
    their code. Weights start as torch's linear layers do.
    """

    def __init__(self, width: int, features: Sequence[str], hidden: Sequence[int] = ()) -> None:
        """Classify by ``features`` of pairs ``(B, width)``, by way of ``hidden`` linear layers."""
        super().__init__()
        self._features = [_FEATURES[name] for name in features]
        widths = [len(features) * width, *hidden]
        self.hidden = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths)))
        self.linear = nn.Linear(widths[-1], CLASSES)

    def forward(self, u: Tensor, v: Tensor, batch: Batch) -> Terms:
        """Mean cross-entropy, in nats, of the labels of ``batch`` given ``(B, D)`` embeddings."""
        with torch.autocast(u.device.type, enabled=False):
            pairs = [feature(u.float(), v.float()) for feature in self._features]
            logits = self.linear(self.hidden(torch.cat(pairs, dim=-1)))
        wanted = batch.column(Need.LABELS)
        right = (logits.detach().argmax(-1) == wanted).float().mean()
        return Terms({"nli": F.cross_entropy(logits, wanted)}, {"nli_accuracy": right})


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedBatch(Batch):
    """A batch before anything was hidden or added, and with hidden tokens in its last sentences."""

    source: Batch
    masked: Masked


class HiddenTokens(nn.Module):
    """Hides tokens, and scores what a masked-LM head makes of the states in their places."""

    def __init__(self, start: Start, head: MlmHead, mask_rate: float) -> None:
        super().__init__()
        tokenizer = start.require_encoder().tokenizer
        require_mask_token(tokenizer.special_ids)
        self.head = head
        self._special_ids, self._vocabulary = tokenizer.special_ids, tokenizer.vocabulary
        self._rate = mask_rate

    def hide(self, batch: Batch, views: int | None = None) -> MaskedBatch:
        """``batch`` with tokens of its ``views`` first views, or of all, hidden by a draw each."""
        masked = mask_tokens(batch, self._rate, self._special_ids, self._vocabulary)
        if views is not None:
            end = batch.offsets[views * batch.examples]
            inside = torch.arange(len(batch.token_ids), device=end.device) < end
            token_ids = torch.where(inside, masked.token_ids, batch.token_ids)
            masked = Masked(token_ids, masked.chosen & inside)
        return MaskedBatch(
            masked.token_ids, batch.offsets, batch.views, batch.longest, source=batch, masked=masked
        )

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        """The mean cross-entropy of the M hidden tokens, 0 if there are none.

        ``encoded`` are the last states of ``batch``, of which ``hide`` made the last sentences.
        """
        hidden = require_masked(batch)
        before = len(batch.token_ids) - len(hidden.source.token_ids)
        chosen, wanted = self.columns(hidden)
        chosen, wanted = F.pad(chosen, (before, 0)), F.pad(wanted, (before, 0))
        if encoded.own is not None:
            places = batch.places(encoded.own)
            chosen, wanted = chosen[places], wanted[places]
        return self.terms(total(self.sums(encoded.states[-1], chosen, wanted)))

    def columns(self, hidden: MaskedBatch) -> tuple[Tensor, Tensor]:
        """``(T,)`` each: the tokens to predict, and all tokens before some were hidden."""
        return hidden.masked.chosen, hidden.source.token_ids

    def sums(self, states: Tensor, chosen: Tensor, wanted: Tensor) -> Tensor:
        """``(3,)``: cross-entropy of ``chosen (T,)`` tokens, how many are right, their number."""
        places = chosen.nonzero().squeeze(1)
        pieces = [places] if split().chunk is None else torch.split(places, _HIDDEN)

        def score(piece: Tensor) -> Tensor:
            logits, targets = self.head(states.index_select(0, piece)), wanted[piece]
            right = (logits.detach().argmax(-1) == targets).float().sum()
            return torch.stack([masked_cross_entropy(logits, targets, mean=False), right])

        if len(pieces) == 1:
            sums = score(pieces[0])
        else:
            parts = [checkpoint(score, piece, use_reentrant=False) for piece in pieces]
            sums = torch.stack(parts).sum(0)
        return torch.cat([sums, sums.new_full((1,), len(places))])

    def terms(self, sums: Tensor) -> Terms:
        """The mean of both over the tokens."""
        loss, right, count = sums
        return Terms({"mlm": loss / count.clamp(min=1)}, {"mlm_accuracy": (right / count).detach()})


def require_masked(batch: Batch) -> MaskedBatch:
    """The batch itself; TypeError if no token of it is hidden."""
    if not isinstance(batch, MaskedBatch):
        raise TypeError("no token of this batch is hidden: prepare it first")
    return batch
