"""Classes of sentence pairs, from their embeddings u and v.

Shapes: B pairs, D embedding width, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from contrasent.data.batch import Batch, Need
from contrasent.errors import ConfigError
from contrasent.objectives.base import Terms

CLASSES = 3

Feature = Literal["u", "v", "difference", "product", "max_square"]
SBERT: tuple[Feature, ...] = ("u", "v", "difference")
"""Features of SBERT's classifier."""

JOINT: tuple[Feature, ...] = (*SBERT, "max_square")
"""Features of ConSERT's classifier."""

_FEATURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "u": lambda u, _: u,
    "v": lambda _, v: v,
    "difference": lambda u, v: (u - v).abs(),
    "product": lambda u, v: u * v,
    "max_square": lambda u, v: torch.maximum(u, v).square(),
}


class PairClassifier(nn.Module):
    """A linear map of features of a pair to three classes, and its cross-entropy.

    Reimers and Gurevych 2019 (SBERT), section 3: softmax(W [u, v, |u - v|]), with a bias as in
    their code. Weights start as torch's linear layers do.
    """

    def __init__(self, width: int, features: Sequence[str], hidden: Sequence[int] = ()) -> None:
        """Make the map.

        Args:
            width: D.
            features: names, each ``(B, D)``: u, v, difference |u - v|, product u v, max_square
                max(u, v)^2.
            hidden: widths of linear layers before the last one, without activation.

        Raises:
            ConfigError: there is no feature, or one twice.
        """
        super().__init__()
        if not features or len(set(features)) < len(features):
            raise ConfigError(
                f"objective.features is [{', '.join(features)}]; name at least one of "
                f"{', '.join(_FEATURES)}, and each once"
            )
        self._features = [_FEATURES[name] for name in features]
        widths = [len(features) * width, *hidden]
        self.hidden = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths)))
        self.linear = nn.Linear(widths[-1], CLASSES)

    @override
    def forward(self, u: Tensor, v: Tensor, batch: Batch) -> Terms:
        """Mean cross-entropy, in nats, of the labels of ``batch`` given ``(B, D)`` embeddings."""
        with torch.autocast(u.device.type, enabled=False):
            pairs = [feature(u.float(), v.float()) for feature in self._features]
            logits = self.linear(self.hidden(torch.cat(pairs, dim=-1)))
        wanted = batch.column(Need.LABELS)
        right = (logits.detach().argmax(-1) == wanted).float().mean()
        return Terms({"nli": F.cross_entropy(logits, wanted)}, {"nli_accuracy": right})
