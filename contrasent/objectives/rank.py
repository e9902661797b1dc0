"""RankCSE (Liu et al. 2023, arXiv:2305.16726): SimCSE, consistent rankings, and those of teachers.

The teachers embed every sentence once, before the first step.

Shapes: B examples, N sentences, E dimensions of all teachers together.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat

from contrasent.data.batch import Batch, Need
from contrasent.data.examples import Examples
from contrasent.functional import cosine_matrix, dot_matrix, jensen_shannon, list_mle, list_net
from contrasent.model.loading import load_encoder
from contrasent.model.protocol import Encoded
from contrasent.objectives import Contrast, ContrastConfig, Share, Terms
from contrasent.objectives.distil import embedded
from contrasent.settings import settings


@settings
class Config(ContrastConfig):
    """Settings of the RankCSE objective."""

    teacher: str | None = None
    """The encoder whose ranking is followed: a folder, run, Hugging Face id, or word vectors."""

    second_teacher: str | None = None
    """Another one, whose cosines are averaged with the first's; null is none."""

    teacher_share: Share = 0.33
    """alpha, the share of the first teacher where there are two."""

    loss: Literal["list_mle", "list_net"] = "list_mle"
    """The likelihood of the teachers' order (list_mle), or of its top (list_net)."""

    teacher_temperature: PositiveFloat = 0.025
    """tau2, of the teachers' cosines in list_net."""

    student_temperature: PositiveFloat = 0.05
    """tau3, of the student's cosines in the ranking."""

    consistency_weight: NonNegativeFloat = 1.0
    """beta, of the Jensen-Shannon divergence of the two views' similarities to the batch."""

    ranking_weight: NonNegativeFloat = 1.0
    """gamma, of following the teachers."""


class RankCSE(Contrast):
    """In-batch contrastive loss, consistency of both views, and the teachers' ranking."""

    config_class = Config
    views = 2
    needs = frozenset({Need.TARGETS})

    def columns(self, examples: Examples, show_progress: bool = False) -> Mapping[Need, np.ndarray]:
        config = self.config
        names = [config.teacher or "", *filter(None, [config.second_teacher])]
        shares = [1.0] if len(names) == 1 else [config.teacher_share, 1 - config.teacher_share]
        teachers = [load_encoder(name, device=self._device) for name in names]
        # Products of these rows are the mean of the teachers' cosines.
        how: dict[str, Any] = {"factors": [*map(math.sqrt, shares)], "normalize": True}
        how["show_progress"] = show_progress
        key = [examples.sha256, examples.views, "first", *examples.prompts]
        return {Need.TARGETS: embedded(lambda: (it[0] for it in examples), teachers, key, **how)}

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        config = self.config
        first, second = self.head(encoded.pooled)
        teachers = batch.column(Need.TARGETS)
        cosines, wanted = cosine_matrix(first, second), dot_matrix(teachers, teachers)
        logits = cosines / config.temperature
        student = cosines / config.student_temperature
        if config.loss == "list_net":
            ranking = list_net(student, wanted / config.teacher_temperature)
        else:
            ranking = list_mle(student, wanted)
        terms = {
            "contrast": self.contrast(first, second, batch),
            "consistency": config.consistency_weight * jensen_shannon(logits, logits.T),
            "ranking": config.ranking_weight * ranking,
        }
        return Terms(terms)
