"""Parts that objectives share: masked language modelling, classes of pairs, momentum, queues.

Shapes: B pairs or examples, V views of each, D embedding width; T tokens end to end, M of them
chosen to be predicted; K places of a queue.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from contrasent.data.batch import Batch, Need, concat
from contrasent.distributed import split, total
from contrasent.errors import CheckpointError, ConfigError
from contrasent.functional import cosine_matrix, info_nce, masked_cross_entropy
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.encoding import evaluating
from contrasent.model.heads import head_named
from contrasent.model.masked_lm import Masked, MaskedLm, MlmHead, mask_tokens, require_mask_token
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
        super().__init__()
        self.config = config
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
SBERT: tuple[Feature, ...] = ("u", "v", "difference")
"""Features of SBERT's classifier."""

JOINT: tuple[Feature, ...] = (*SBERT, "max_square")
"""Features of ConSERT's classifier."""

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
        if not features or len(set(features)) < len(features):
            raise ConfigError(
                f"objective.features is [{', '.join(features)}]; name at least one of "
                f"{', '.join(_FEATURES)}, and each once"
            )
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
    """A batch of which some sentences, the last ones, have hidden tokens.

    ``source`` is the batch before anything was hidden or added, ``masked`` its hidden tokens.
    """

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

    def beside(self, batch: Batch, *, masks_views: bool = False) -> MaskedBatch:
        """``batch`` with a copy of each view after all of them, in which tokens are hidden.

        With ``masks_views`` they are hidden in the views too, the same ones.
        """
        hidden = self.hide(batch)
        both = concat([hidden if masks_views else batch, hidden], 2 * batch.views)
        return replace(hidden, token_ids=both.token_ids, offsets=both.offsets, views=both.views)

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        """The mean cross-entropy of the M hidden tokens, 0 if there are none.

        ``encoded`` are the last states of ``batch``, which ``hide`` or ``beside`` made.
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
        """``(3,)``: the cross-entropy of the chosen tokens, how many are right, and their number.

        Of states ``(T, D)``, where ``chosen (T,)``; ``wanted (T,)`` are the tokens before some were
        hidden.
        """
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


class AuxiliaryMlm(nn.Module):
    """SimCSE's auxiliary objective (Gao et al. 2021, section 4.2 and Table D.2).

    Every sentence of a batch, positives and hard negatives included, is encoded once more with
    tokens hidden. The head starts as the checkpoint's, and its decoder is not tied to the
    embeddings, as in the reference implementation.
    """

    def __init__(
        self, start: Start, weight: float, mask_rate: float, *, masks_views: bool = False
    ) -> None:
        """Copy the head of the checkpoint that the encoder was loaded from."""
        super().__init__()
        head = copy.deepcopy(load_masked_lm(start, weight).head)
        self.tokens = HiddenTokens(start, head, mask_rate)
        self._weight, self._masks_views = weight, masks_views

    def prepare(self, batch: Batch) -> Batch:
        """``batch`` with its masked copies after it."""
        return self.tokens.beside(batch, masks_views=self._masks_views)

    def forward(self, encoded: Encoded, batch: Batch) -> tuple[Encoded, Batch, Terms]:
        """Take the masked copies out of embeddings and batch, and score them: the weighted term."""
        terms = self.tokens(encoded, batch)
        source = require_masked(batch).source
        kept = Encoded(encoded.pooled[: source.views], {})
        return kept, source, Terms({"mlm": self._weight * terms["mlm"]}, terms.measures)


def load_masked_lm(start: Start, weight: float) -> MaskedLm:
    """The masked LM of the encoder's checkpoint; ConfigError if it has no head."""
    try:
        return MaskedLm.load(start.require_encoder().name)
    except CheckpointError as error:
        raise ConfigError(
            f"objective.mlm_weight is {weight:g}, so the encoder needs a masked-LM head to start "
            f"from, but {error}; or set objective.mlm_weight to 0"
        ) from error


def require_masked(batch: Batch) -> MaskedBatch:
    """The batch itself; TypeError if no token of it is hidden."""
    if not isinstance(batch, MaskedBatch):
        raise TypeError("no token of this batch is hidden: prepare it first")
    return batch


class MomentumEncoder(nn.Module):
    """An encoder and a head with weights that follow the trained ones slowly.

    After each step a weight is ``momentum`` times itself plus the rest times the trained one. The
    weights are a buffer: no optimiser changes them, and a resumed run goes on with them.
    """

    weights: Tensor

    def __init__(self, encoder: SentenceEncoder, head: nn.Module, momentum: float) -> None:
        """Start with the weights of ``encoder`` and ``head``, which are not kept as its own."""
        super().__init__()
        # In a tuple, so that they are trained and saved by their owners alone.
        self._followed = (encoder, head)
        self._momentum = momentum
        flat = [weights.detach().flatten() for weights in self._trained()]
        self.register_buffer("weights", torch.cat(flat))

    @torch.no_grad()
    def update(self) -> None:
        """Move the weights towards the trained ones."""
        trained, share = self._trained(), 1 - self._momentum
        torch._foreach_lerp_(self._parts(), [w.flatten() for w in trained], share)

    @torch.no_grad()
    def embed(self, batch: Batch) -> Tensor:
        """``(V, B, D)``, after the head, with dropout off."""
        encoder, head = self._followed
        parts = iter(self._parts())
        of_encoder, of_head = (
            {name: next(parts).view_as(w) for name, w in module.named_parameters()}
            for module in self._followed
        )
        with evaluating(encoder), evaluating(head):
            encoded: Encoded = functional_call(encoder, of_encoder, (batch,))
            rows: Tensor = functional_call(head, of_head, (encoded.pooled,))
        return rows

    def _trained(self) -> list[nn.Parameter]:
        return [weights for module in self._followed for weights in module.parameters()]

    def _parts(self) -> list[Tensor]:
        """The weights of each trained parameter, as parts of the buffer."""
        return list(torch.split(self.weights, [w.numel() for w in self._trained()]))


class Queue(nn.Module):
    """The last ``size`` embeddings that were put in; a place that is still empty counts nothing."""

    rows: Tensor

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(size, width))

    @torch.no_grad()
    def put(self, rows: Tensor) -> None:
        """Take ``(B, D)`` in, and drop as many of the oldest."""
        self.rows.copy_(torch.cat([rows.to(self.rows.dtype), self.rows])[: len(self.rows)])

    def logits(self, anchor: Tensor, temperature: float) -> Tensor:
        """``(B, K)``, the cosines of ``anchor (B, D)`` with the queue over ``temperature``."""
        rows = self.rows.clone()  # put() changes them before the backward pass
        empty = ~rows.any(dim=1)
        return (cosine_matrix(anchor, rows) / temperature).masked_fill(empty, float("-inf"))
