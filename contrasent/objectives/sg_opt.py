"""Self-guided contrastive learning (Kim, Yoo and Lee 2021, arXiv:2106.07345), objective SG-OPT.

A frozen clone of the encoder gives an embedding of each sentence from each of its layers. The
tuned encoder's embedding is drawn to those of its own sentence and away from those of others.

Shapes: B sentences, L = K + 1 layers, D width, P width of the projections.
"""

import copy

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from contrasent.data.batch import Batch, Need, rows_by_parts
from contrasent.functional import self_guided
from contrasent.model.heads import gelu_layers, mean_over_tokens
from contrasent.model.protocol import Encoded
from contrasent.objectives import Objective, Start, Terms, same_texts
from contrasent.settings import settings


@settings
class Config:
    """Settings of SG-OPT."""

    temperature: PositiveFloat = 0.01
    """tau; the cosine is divided by it."""

    projection: PositiveInt = 4096
    """Width of both layers of the projection head f, which is dropped after training."""

    distance_weight: NonNegativeFloat = 0.1
    """lambda of the squared distance of the tuned weights from the start."""

    clone_dropout: bool = False
    """Leave the dropout of the frozen clone on, as the authors' code does."""

    exclude_duplicates: bool = True
    """Leave sentences of the same text out of the negatives."""


class SgOpt(Objective):
    """The tuned embedding against all layers of the frozen clone."""

    config_class = Config
    in_parts = True
    views = 1
    needs = frozenset({Need.TOKENS})

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__(config, start)
        encoder = start.require_encoder()
        _ = encoder.backbone.model  # an LSTM over words has none, and says so
        start.require_width(encoder.backbone.width)
        guide = copy.deepcopy(encoder.backbone).train(config.clone_dropout)
        guide.requires_grad_(requires_grad=False)
        guide.set_checkpointing(False)
        pairs = zip(encoder.backbone.parameters(), guide.parameters(), strict=True)
        self._guide = (guide,)
        self._moved = tuple(pair for pair in pairs if pair[0].requires_grad)
        self.projector = gelu_layers(start.width, config.projection, config.projection)

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        embeddings = self._project(encoded.pooled[0])

        def guide(part: Batch) -> Tensor:
            return self._project(self._layers(part)).transpose(0, 1)  # (B, L, P)

        guides = rows_by_parts(guide, batch).transpose(0, 1)
        excluded = same_texts(batch) if self.config.exclude_duplicates else None
        guided = self_guided(embeddings, guides, self.config.temperature, excluded=excluded)
        terms = {"guided": guided}
        if self.config.distance_weight:
            moved = [(now - then).square().sum() for now, then in self._moved]
            terms["distance"] = self.config.distance_weight * torch.stack(moved).sum()
        return Terms(terms)

    def _layers(self, batch: Batch) -> Tensor:
        (guide,) = self._guide
        numbers = range(guide.depth + 1)
        with torch.no_grad():
            states = guide(batch, numbers)
        return torch.stack([mean_over_tokens(states[number], batch) for number in numbers])

    def _project(self, embeddings: Tensor) -> Tensor:
        projected: Tensor = self.projector(embeddings)
        return projected.float()
