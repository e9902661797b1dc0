"""MixCSE (Zhang et al. 2022, AAAI): SimCSE with mixtures of embeddings as hard negatives."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from contrasent.data.batch import Batch
from contrasent.functional import cosine_matrix, info_nce
from contrasent.model.heads import head_named
from contrasent.model.protocol import Encoded
from contrasent.objectives.base import Objective, Start, Terms, duplicates
from contrasent.settings import settings


@settings
class Config:
    """Settings of the MixCSE objective."""

    temperature: PositiveFloat = 0.05
    """tau; the cosine is divided by it."""

    mix: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """lambda, the share of a sentence in its mixture; the rest is the next sentence's."""

    head: Literal["mlp", "batchnorm", "none"] = "none"
    """A head that is trained and then dropped."""

    exclude_duplicates: bool = True
    """Leave candidates with the text of the anchor or of its positive out of the negatives."""


class MixCSE(Objective):
    """In-batch contrastive loss with mixtures of two embeddings, without gradient, as negatives."""

    config_class = Config
    views = 2

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__()
        self.config = config
        self.head = head_named(config.head, start.width)

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        first, second = self.head(encoded.pooled)
        temperature = self.config.temperature
        # Where the larger share of a mixture is the other view of the anchor, or of the candidate,
        # the logit is 0, as in the authors' code.
        own = torch.eye(len(first), device=first.device, dtype=torch.bool)
        of_seconds = cosine_matrix(first, self._mixed(second)).masked_fill(own.roll(-1, 1), 0.0)
        of_firsts = cosine_matrix(self._mixed(first), second).masked_fill(own.roll(1, 1), 0.0)
        contrast = info_nce(
            first,
            second,
            temperature,
            excluded=duplicates(batch) if self.config.exclude_duplicates else None,
            further=torch.cat([of_seconds, of_firsts], dim=1) / temperature,
        )
        return Terms({"contrast": contrast})

    def _mixed(self, rows: Tensor) -> Tensor:
        """``(B, D)``, each row mixed with the next one."""
        share = self.config.mix
        return (share * rows + (1 - share) * rows.roll(-1, 0)).detach()
