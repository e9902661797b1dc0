"""ESimCSE (Wu et al. 2022, arXiv:2109.04380): SimCSE with a momentum encoder and a queue.

Its positives are sentences with repeated tokens, the view `repeat`. What a slowly moving copy of
the encoder made of the sentences of the last steps, without dropout, are further negatives.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from contrasent.data.batch import Batch, Need, rows_by_parts
from contrasent.functional import info_nce
from contrasent.model.heads import head_named
from contrasent.model.protocol import Encoded
from contrasent.objectives._shared import MomentumEncoder, Queue
from contrasent.objectives.base import Objective, Start, Terms, duplicates
from contrasent.settings import settings


@settings
class Config:
    """Settings of the ESimCSE objective."""

    temperature: PositiveFloat = 0.05
    """tau; the cosine is divided by it."""

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.995
    """What the momentum encoder keeps of its weights at each step; the rest is the trained ones."""

    queue: PositiveInt = 160
    """Its embeddings of earlier batches that are further negatives."""

    head: Literal["mlp", "none"] = "mlp"
    """A head that is trained and then dropped."""

    exclude_duplicates: bool = True
    """Leave candidates of the batch with the text of the anchor or of its positive out of the
    negatives."""


class ESimCSE(Objective):
    """In-batch contrastive loss with the sentences of earlier batches as further negatives."""

    config_class = Config
    views = 2
    needs = frozenset({Need.ENCODER})

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__()
        self.config = config
        self.head = head_named(config.head, start.width)
        self.momentum = MomentumEncoder(start.require_encoder(), self.head, config.momentum)
        self.queue = Queue(config.queue, start.width)

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        anchor, positive = self.head(encoded.pooled)
        contrast = info_nce(
            anchor,
            positive,
            self.config.temperature,
            excluded=duplicates(batch) if self.config.exclude_duplicates else None,
            further=self.queue.logits(anchor, self.config.temperature),
        )
        embed = self.momentum.embed
        self.queue.put(rows_by_parts(lambda part: embed(part)[0], batch.view(0)))
        return Terms({"contrast": contrast})

    def after_step(self) -> None:
        self.momentum.update()
