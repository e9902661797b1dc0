"""ConSERT (Yan et al. 2021, arXiv:2105.11741): views of a sentence made at the embedding layer.

Shapes: B examples, V sentences of each in the data, D embedding width.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor
from typing_extensions import override

from contrasent.config import settings
from contrasent.data.batch import Batch
from contrasent.functional import nt_xent
from contrasent.model.encoder import Encoded
from contrasent.objectives.base import Objective, Start, Terms
from contrasent.objectives.parts import state_edits
from contrasent.objectives.parts.pair_classes import JOINT, Feature, PairClassifier

Augmentation = Literal["feature_cutoff", "token_cutoff", "shuffle", "dropout", "none"]
Rate = Annotated[float, Field(gt=0, lt=1)]


@settings
class Config:
    """Settings of the ConSERT objective."""

    first: Augmentation = "feature_cutoff"
    """What makes the first view: features of all token embeddings of a sentence set
    to 0, tokens set to 0, tokens in another order, single numbers set to 0, or nothing."""

    second: Augmentation = "shuffle"
    """What makes the second view."""

    first_rate: Rate = 0.2
    """Share of the features, tokens or numbers that the first view lacks."""

    second_rate: Rate = 0.2
    """The same of the second view."""

    temperature: PositiveFloat = 0.1
    """tau of NT-Xent; the cosine is divided by it."""

    weight: PositiveFloat = 0.15
    """alpha, of the contrastive term, which is the only one without classify."""

    classify: bool = False
    """Also tell entailment, neutral and contradiction apart ("joint"): for labelled pairs."""

    features: list[Feature] = Field(default_factory=lambda: [*JOINT])
    """What the classifier knows of the embeddings u and v of the first views; see nli_softmax."""

    exclude_duplicates: bool = True
    """Leave sentences of the same text out of the negatives."""


class Consert(Objective):
    """NT-Xent of two edited views of each sentence, and a classifier of pairs if asked for."""

    makes_views = True

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__()
        self.config = config
        self.views = 2 if config.classify else 1
        self.labelled, self.aligned = config.classify, not config.classify
        encoder = start.require_encoder()
        if not {config.first, config.second} <= {"none", "shuffle"}:
            encoder.backbone.require_first_state()
        self._width, self._keeps_first = encoder.backbone.width, encoder.pooler == "cls"
        self.classifier: PairClassifier | None = None
        if config.classify:
            self.classifier = PairClassifier(start.width, config.features)

    @override
    def prepare(self, batch: Batch) -> Batch:
        """The first views of all sentences, then the second ones; ``texts`` are those of before."""
        texts = batch.same_text()
        config = self.config
        first = self._edited(batch, config.first, config.first_rate)
        second = self._edited(batch, config.second, config.second_rate)
        both = state_edits.beside(first, second)
        return dataclasses.replace(both, texts=torch.cat([texts, texts]), labels=batch.labels)

    @override
    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        first, second = encoded.pooled.chunk(2)
        texts = batch.same_text().view(len(encoded.pooled), -1)
        losses = [
            nt_xent(a, b, self.config.temperature, excluded=self._excluded(text))
            for a, b, text in zip(first, second, texts, strict=False)
        ]
        terms = {"contrast": self.config.weight * torch.stack(losses).mean()}
        if self.classifier is None:
            return Terms(terms)
        found = self.classifier(first[0], first[1], batch)
        return Terms({**terms, **found}, found.measures)

    def _excluded(self, texts: Tensor) -> Tensor | None:
        """``(2B, 2B)``, where two rows are views of the same text."""
        if not self.config.exclude_duplicates:
            return None
        both = torch.cat([texts, texts])
        return both == both.unsqueeze(1)

    def _edited(self, batch: Batch, name: Augmentation, rate: float) -> Batch:
        if name == "shuffle":
            return state_edits.shuffled(batch, keep_first=self._keeps_first)
        if name == "feature_cutoff":
            return state_edits.without_features(batch, rate, self._width)
        if name == "token_cutoff":
            return state_edits.without_tokens(batch, rate)
        if name == "dropout":
            return state_edits.without_numbers(batch, rate, self._width)
        return batch


build = Consert
