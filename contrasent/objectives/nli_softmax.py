"""SBERT's classification objective (Reimers and Gurevych 2019, arXiv:1908.10084).

A softmax classifier of both embeddings, which is dropped after training, tells three
classes apart. Conneau et al. 2017 (InferSent, arXiv:1705.02364) had trained encoders so before.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Literal, cast

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from contrasent.data.batch import Batch, Need
from contrasent.model.protocol import Encoded
from contrasent.objectives import Objective, Start, Terms
from contrasent.settings import settings

CLASSES = 3
Feature = Literal["u", "v", "difference", "product", "max_square"]
Features = Annotated[list[Feature], Field(min_length=1)]
SBERT: tuple[Feature, ...] = ("u", "v", "difference")
"""Features of SBERT's classifier; ConSERT's has max_square too."""

_FEATURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "u": lambda u, _: u,
    "v": lambda _, v: v,
    "difference": lambda u, v: (u - v).abs(),
    "product": lambda u, v: u * v,
    "max_square": lambda u, v: torch.maximum(u, v).square(),
}


class PairClassifier(nn.Module):
    """Softmax of a linear map of features of a pair to three classes, and its cross-entropy."""

    def __init__(self, width: int, features: Sequence[str], hidden: Sequence[int] = ()) -> None:
        """Classify by ``features`` of pairs ``(B, width)``, by way of ``hidden`` linear layers."""
        super().__init__()
        self._features = [_FEATURES[name] for name in features]
        widths = [len(features) * width, *hidden]
        self.hidden = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths)))
        self.linear = nn.Linear(widths[-1], CLASSES)

    def forward(self, u: Tensor, v: Tensor, batch: Batch) -> Terms:
        """Mean cross-entropy, in nats, of the labels of ``batch`` given ``(B, D)`` embeddings."""
        with torch.autocast(u.device.type, enabled=False):
            pairs = [feature(u.float(), v.float()) for feature in self._features]
            logits = self.linear(self.hidden(torch.cat(pairs, dim=-1)))
        wanted = batch.column(Need.LABELS)
        right = (logits.detach().argmax(-1) == wanted).float().mean()
        return Terms({"nli": F.cross_entropy(logits, wanted)}, {"nli_accuracy": right})


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
        return cast(Terms, self.classifier(*encoded.pooled, batch))
