"""Pairs with a score, or with 0 and 1: CoSENT, AnglE, cosine regression, contrastive loss.

CoSENT: Su 2022, kexue.fm/archives/8847. AnglE: Li and Li 2023, arXiv:2309.12871, its angle term.
Cosine regression: Reimers and Gurevych 2019, section 3. Contrastive loss: Hadsell et al. 2006.
Each is computed as in sentence-transformers.

Shapes: B pairs, D dimensions.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from pydantic import PositiveFloat
from torch import Tensor
from torch.nn import functional as F

from contrasent.data.batch import Batch, Need
from contrasent.data.examples import Examples
from contrasent.errors import DataError
from contrasent.model.protocol import Encoded
from contrasent.objectives import Objective, Terms
from contrasent.settings import settings

_SAME = 0.5


@settings
class Config:
    """Settings of training on scored pairs."""

    loss: Literal["cosent", "angle", "cosine", "contrastive"] = "cosent"
    """cosent and angle rank pairs by scores; cosine brings the cosine to score / top_score;
    contrastive takes a pair for the same if that is above 0.5, and pushes the others apart."""

    temperature: PositiveFloat = 0.05
    """Of cosent and angle: similarities are divided by it."""

    margin: PositiveFloat = 0.5
    """Of contrastive: the cosine distance from which on a pair is apart."""

    top_score: PositiveFloat | None = None
    """Of cosine and contrastive: the score of equal meaning; null for the largest in the data."""


class ScoredPairs(Objective):
    """How far the similarities of pairs are from their scores, or from the order of these."""

    config_class = Config
    views = 2
    needs = frozenset({Need.SCORES})
    aligned = False

    def columns(self, examples: Examples, show_progress: bool = False) -> Mapping[Need, np.ndarray]:
        for _ in examples:
            pass
        scores = np.array(examples.numbers[Need.SCORES.name], np.float32)
        if self.config.loss in ("cosine", "contrastive"):
            top = self.config.top_score or float(scores.max(initial=0))
            if not top > 0 or scores.min(initial=0) < 0 or scores.max(initial=0) > top:
                raise DataError(
                    f"{examples.source} has scores from {scores.min(initial=0):g} to "
                    f"{scores.max(initial=0):g}, but loss {self.config.loss} takes scores from 0 "
                    f"to objective.top_score, {top:g}; mend them, or choose loss cosent"
                )
            scores /= top
        return {Need.SCORES: scores[:, None]}

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        first, second = encoded.pooled.float()
        scores = batch.column(Need.SCORES).float().flatten()
        cosines = F.cosine_similarity(first, second)
        loss = self.config.loss
        if loss == "cosine":
            return Terms({loss: F.mse_loss(cosines, scores)})
        if loss == "contrastive":
            distance = 1 - cosines
            apart = (self.config.margin - distance).relu()
            return Terms({loss: torch.where(scores > _SAME, distance, apart).square().mean() / 2})
        similarities = cosines if loss == "cosent" else angle_similarity(first, second)
        return Terms({loss: ranking_loss(similarities / self.config.temperature, scores)})


def angle_similarity(first: Tensor, second: Tensor) -> Tensor:
    """``(B,)``, ``|cos + sin|`` of two ``(B, D)``, whose halves are real and imaginary parts."""
    u, v = (F.normalize(F.pad(rows, (0, first.shape[1] % 2)), dim=1) for rows in (first, second))
    (u_real, u_imaginary), (v_real, v_imaginary) = u.chunk(2, dim=1), v.chunk(2, dim=1)
    return ((u * v).sum(1) + (u_imaginary * v_real - u_real * v_imaginary).sum(1)).abs()


def ranking_loss(similarities: Tensor, scores: Tensor) -> Tensor:
    """``log(1 + sum exp(s_i - s_j))`` over pairs i and j of which j has the higher score."""
    difference = similarities.unsqueeze(1) - similarities.unsqueeze(0)
    higher = scores.unsqueeze(1) < scores.unsqueeze(0)
    terms = difference.masked_fill(~higher, -torch.inf).flatten()
    return torch.cat([terms.new_zeros(1), terms]).logsumexp(0)
