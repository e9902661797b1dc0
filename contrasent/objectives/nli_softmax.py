"""SBERT's classification objective (Reimers and Gurevych 2019, arXiv:1908.10084).

A premise and a hypothesis are embedded by one encoder, and a softmax classifier on their
embeddings tells entailment, neutral and contradiction apart. The classifier is dropped after
training. Conneau et al. 2017 (InferSent, arXiv:1705.02364) had trained encoders so before.
"""

from __future__ import annotations

from pydantic import Field, PositiveInt

from contrasent.data.batch import Batch, Need
from contrasent.model.protocol import Encoded
from contrasent.objectives._shared import SBERT, Features, PairClassifier
from contrasent.objectives.base import Objective, Start, Terms
from contrasent.settings import settings


@settings
class Config:
    """Settings of the classification objective."""

    features: Features = Field(default_factory=lambda: [*SBERT])
    """What the classifier knows of the embeddings u and v (Table 6): u, v, difference |u - v|,
    product u v, max_square max(u, v)^2."""

    hidden: list[PositiveInt] = Field(default_factory=list)
    """Widths of linear layers before the last one, without activation (InferSent: 512, 512)."""


class NliSoftmax(Objective):
    """Cross-entropy of the label of each pair."""

    config_class = Config
    views = 2
    needs = frozenset({Need.LABELS})
    aligned = False

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__()
        self.classifier = PairClassifier(start.width, config.features, config.hidden)

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        premise, hypothesis = encoded.pooled
        terms: Terms = self.classifier(premise, hypothesis, batch)
        return terms
