"""Quick-Thoughts (Logeswaran and Lee 2018, arXiv:1803.02893): find the sentences beside one.

Of all sentences of a batch that follow each other in a text, those next to a sentence are to be
told from the others by the dot product of its embedding with theirs, by a second encoder.

Shapes: B sentences, D embedding width.
"""

from __future__ import annotations

import dataclasses

import torch
from pydantic import PositiveInt
from torch import Tensor

from contrasent.data.batch import Batch, Need, concat
from contrasent.errors import ConfigError
from contrasent.functional import neighbours
from contrasent.model.protocol import Encoded
from contrasent.objectives.base import Objective, Start, Terms
from contrasent.settings import settings


@settings
class Config:
    """Settings of Quick-Thoughts."""

    context: PositiveInt = 1
    """How many sentences before, and how many after, are neighbours, in the same document."""

    own_score: bool = True
    """A sentence's score of itself is 0, as in the authors' code; otherwise it has none."""

    exclude_duplicates: bool = True
    """Leave sentences with the text of the sentence or of a neighbour out of the negatives."""


class QuickThoughts(Objective):
    """Cross-entropy of the neighbours of each sentence among the sentences of the batch."""

    config_class = Config
    views = 1
    needs = frozenset({Need.POSITIONS})
    provides_views = True
    aligned = False

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__()
        self.config = config
        least = config.context + 2
        if start.batch_size is not None and start.batch_size < least:
            raise ConfigError(
                f"objective.context is {config.context}, so a sentence, {config.context} after it "
                f"and one that is no neighbour are at least {least} sentences, but "
                f"train.batch_size is {start.batch_size}"
            )

    def prepare(self, batch: Batch) -> Batch:
        """The same sentences as two views, for two encoders."""
        texts = batch.same_text()
        both = concat([batch, batch], views=2)
        duplicates = torch.cat([texts, texts])
        return dataclasses.replace(both, duplicate_of=duplicates, columns=batch.columns)

    def negatives(self, examples: int) -> int:
        return examples - 1

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        first, second = encoded.pooled
        near = self._near(batch)
        loss, right = neighbours(
            first,
            second,
            near,
            own_score=self.config.own_score,
            excluded=self._same_text(batch, near) if self.config.exclude_duplicates else None,
        )
        share = (near.any(1)).float().mean()
        return Terms({"neighbours": loss}, {"neighbour_accuracy": right, "with_neighbour": share})

    def _near(self, batch: Batch) -> Tensor:
        """``(B, B)``, which sentences are neighbours."""
        positions = batch.column(Need.POSITIONS)
        distance = (positions.unsqueeze(1) - positions).abs()
        return (distance > 0) & (distance <= self.config.context)

    def _same_text(self, batch: Batch, near: Tensor) -> Tensor:
        """``(B, B)``, which sentences have the text of another one, or of a neighbour of it."""
        texts = batch.same_text()[: batch.examples]
        same = texts == texts.unsqueeze(1)
        return same | (near.float() @ same.float() > 0)
