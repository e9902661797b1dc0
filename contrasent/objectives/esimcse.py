"""ESimCSE (Wu et al. 2022, arXiv:2109.04380): SimCSE with a momentum encoder and a queue.

Its positives are sentences with repeated tokens, the view `repeat`. What a slowly moving copy of
the encoder made of the sentences of the last steps, without dropout, are further negatives.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt

from contrasent.data.batch import Batch, Need, rows_by_parts
from contrasent.model.protocol import Encoded
from contrasent.objectives._shared import Contrast, ContrastConfig, MomentumEncoder, Queue
from contrasent.objectives.base import Start, Terms
from contrasent.settings import settings


@settings
class Config(ContrastConfig):
    """Settings of the ESimCSE objective."""

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.995
    """What the momentum encoder keeps of its weights at each step; the rest is the trained ones."""

    queue: PositiveInt = 160
    """Its embeddings of earlier batches that are further negatives."""


class ESimCSE(Contrast):
    """In-batch contrastive loss with the sentences of earlier batches as further negatives."""

    config_class = Config
    views = 2
    needs = frozenset({Need.ENCODER})

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__(config, start)
        self.momentum = MomentumEncoder(start.require_encoder(), self.head, config.momentum)
        self.queue = Queue(config.queue, start.width)

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        anchor, positive = self.head(encoded.pooled)
        further = self.queue.logits(anchor, self.config.temperature)
        contrast = self.contrast(anchor, positive, batch, further)
        embed = self.momentum.embed
        self.queue.put(rows_by_parts(lambda part: embed(part)[0], batch.view(0)))
        return Terms({"contrast": contrast})

    def after_step(self) -> None:
        self.momentum.update()
