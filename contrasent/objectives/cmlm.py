"""Conditional masked language modelling, CMLM (Yang et al. 2021, arXiv:2012.14388).

The encoder predicts hidden tokens of the next sentence, before which it is given the embedding of
the sentence.

Shapes: B sentences, N vectors made of each embedding, T tokens of the next sentences, D width.
"""

import dataclasses
from typing import cast

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from contrasent.data.batch import Batch, Need
from contrasent.model.heads import gelu_layers
from contrasent.model.masked_lm import MaskedLm
from contrasent.model.protocol import Encoded
from contrasent.objectives import Objective, Share, Start, Terms
from contrasent.objectives.mlm import HiddenTokens, MaskedBatch
from contrasent.settings import settings


@settings
class Config:
    """Settings of CMLM."""

    vectors: PositiveInt = 15
    """N, vectors before the next sentence: the embedding, and N - 1 made of it by three layers."""

    mask_rate: Share = 0.15
    """Share of the tokens of the next sentence to predict: 80 % masked, 10 % random, 10 % kept."""


class Cmlm(Objective):
    """Cross-entropy of the hidden tokens of the next sentence, given the embedding."""

    config_class = Config
    in_parts = True
    views = 1
    needs = frozenset({Need.NEXT_SENTENCES, Need.TOKENS})

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__(config, start)
        encoder = start.require_encoder()
        backbone = encoder.backbone
        backbone.require_first_state()
        start.require_width(backbone.width)
        self.max_tokens = encoder.max_tokens - config.vectors
        masked_lm = MaskedLm.load(encoder.name, new_head=True).share(backbone)
        self._backbone = (backbone,)
        self.tokens = HiddenTokens(start, config.mask_rate, masked_lm.head)
        self.projector: nn.Module | None = None
        if config.vectors > 1:
            widths = [start.width] * 3 + [(config.vectors - 1) * start.width]
            self.projector = gelu_layers(*widths)[:-1]

    def prepare(self, batch: Batch) -> Batch:
        """``batch`` with tokens of the next sentences hidden."""
        return dataclasses.replace(batch, next_sentences=self.tokens.hide(batch.following()))

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        def states(part: Batch, vectors: Tensor) -> Tensor:
            after, places = _make_room(part, vectors.shape[1])
            last: Tensor = self._backbone[0](after, first_state=vectors)[-1]
            return last.float().index_select(0, places)

        vectors = encoded.pooled[0].unsqueeze(1)  # (B, N, D)
        if self.projector is not None:
            others = self.projector(encoded.pooled[0]).float()
            vectors = torch.cat([vectors, others.view(len(vectors), -1, vectors.shape[-1])], 1)
        return self.tokens.score(states, cast(MaskedBatch, batch.following()), [vectors])


def _make_room(batch: Batch, count: int) -> tuple[Batch, Tensor]:
    """``batch`` with room for ``count`` states before each sentence, and where its tokens are."""
    device, tokens = batch.token_ids.device, len(batch.token_ids)
    offsets = batch.offsets + count * torch.arange(batch.sentences + 1, device=device)
    sentence = torch.repeat_interleave(batch.lengths, output_size=tokens)
    places = torch.arange(tokens, device=device) + count * (sentence + 1)
    # Which token stands in the room does not matter: its state is replaced.
    room = batch.token_ids.new_zeros(tokens + count * batch.sentences)
    token_ids = room.index_copy(0, places, batch.token_ids)
    return Batch(token_ids, offsets, longest=batch.longest + count), places
