"""MixCSE (Zhang et al. 2022, AAAI): SimCSE with mixtures of embeddings as hard negatives."""

from typing import Literal

import torch
from torch import Tensor

from contrasent.data.batch import Batch
from contrasent.functional import cosine_matrix
from contrasent.model.protocol import Encoded
from contrasent.objectives import Contrast, ContrastConfig, Share, Terms
from contrasent.settings import settings


@settings
class Config(ContrastConfig):
    """Settings of the MixCSE objective."""

    mix: Share = 0.2
    """lambda, the share of a sentence in its mixture; the rest is the next sentence's."""

    head: Literal["mlp", "batchnorm", "none"] = "none"
    """A head that is trained and then dropped."""


class MixCSE(Contrast):
    """In-batch contrastive loss with mixtures of two embeddings, without gradient, as negatives."""

    config_class = Config
    views = 2

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        first, second = self.head(encoded.pooled)
        # Where the larger share of a mixture is the other view of the anchor, or of the candidate,
        # the logit is 0, as in the authors' code.
        own = torch.eye(len(first), device=first.device, dtype=torch.bool)
        of_seconds = cosine_matrix(first, self._mixed(second)).masked_fill(own.roll(-1, 1), 0.0)
        of_firsts = cosine_matrix(self._mixed(first), second).masked_fill(own.roll(1, 1), 0.0)
        further = torch.cat([of_seconds, of_firsts], dim=1) / self.config.temperature
        return Terms({"contrast": self.contrast(first, second, batch, further)})

    def _mixed(self, rows: Tensor) -> Tensor:
        share = self.config.mix
        return torch.add(share * rows, (1 - share) * rows.roll(-1, 0)).detach()
