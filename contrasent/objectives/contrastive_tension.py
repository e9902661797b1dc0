"""Contrastive Tension (Carlsson et al. 2021, "Semantic Re-tuning with Contrastive Tension").

Two encoders start as one and are trained apart: the dot product of their embeddings is to be large
for one sentence seen by both, and small for two different ones.

Shapes: B sentences, P pairs, D embedding width.
"""

import dataclasses
from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import PositiveInt

from contrasent.data.batch import Batch, Need
from contrasent.errors import ConfigError
from contrasent.functional import contrastive_tension
from contrasent.model.protocol import Encoded
from contrasent.objectives import Objective, Start, Terms
from contrasent.settings import settings


@settings
class Config:
    """Settings of Contrastive Tension."""

    negatives: PositiveInt = 7
    """K, pairs of different sentences for each pair of a sentence with itself."""

    negative_pairs: Literal["others", "anchor"] = "others"
    """Two other sentences, as in the authors' code, so that 1 + 2 K sentences make a group; or the
    sentence of the positive pair and another one, in groups of 1 + K."""

    reduction: Literal["mean", "sum"] = "mean"
    """Over the pairs of a batch: mean as in the authors' code, or sum."""

    exclude_duplicates: bool = True
    """Leave out negative pairs of one text."""


class ContrastiveTension(Objective):
    """Binary cross-entropy of dot products: the same sentence, or not."""

    config_class = Config
    views = 1
    provides_views = True
    aligned = False

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__(config, start)
        self._others = config.negative_pairs == "others"
        self._group = 1 + config.negatives * (2 if self._others else 1)
        if start.batch_size is not None and start.batch_size % self._group:
            asked = f"with objective.negatives {config.negatives}, train.batch_size cannot be"
            remedy = f"take {self._group} or a multiple of it"
            raise ConfigError(f"{asked} {start.batch_size}; {remedy}")

    def prepare(self, batch: Batch) -> Batch:
        """Pairs as two views, with label 1 for one sentence twice, 0, or -1 if left out."""
        device = batch.token_ids.device
        first, second = torch.tensor([*self._pairs(batch.sentences)], device=device).T
        texts = batch.same_text()
        labels = (first == second).long()
        if self.config.exclude_duplicates:
            labels = labels.masked_fill((first != second) & (texts[first] == texts[second]), -1)
        pairs = batch.select(torch.cat([first, second]), views=2)
        return dataclasses.replace(pairs, columns={Need.LABELS: labels})

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        first, second = encoded.pooled
        labels = batch.column(Need.LABELS)
        loss, right = contrastive_tension(first, second, labels, reduction=self.config.reduction)
        return Terms({"tension": loss}, {"tension_accuracy": right})

    def _pairs(self, sentences: int) -> Iterator[tuple[int, int]]:
        """Numbers of the sentences of each pair, by whole groups, unless there is none."""
        for start in range(0, sentences // self._group * self._group or 1, self._group):
            yield start, start
            others = range(start + 1, min(start + self._group, sentences))
            if self._others:
                yield from zip(others[::2], others[1::2], strict=False)
            else:
                yield from ((start, other) for other in others)
