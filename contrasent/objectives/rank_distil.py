"""Listwise distillation: the candidates of a query are ranked as a teacher scores them.

The divergence of Lin et al. 2020 (arXiv:2010.11386), and Margin-MSE of Hofstätter et al. 2020
(arXiv:2010.02666), as in sentence-transformers, there times the squared temperature.

Shapes: B queries, K candidates of each, D dimensions, N queries of the data.
"""

from collections.abc import Mapping

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch.nn import functional as F

from contrasent.data.batch import Batch, Need
from contrasent.data.examples import Examples
from contrasent.errors import DataError
from contrasent.model.protocol import Encoded
from contrasent.objectives import Objective, Start, Terms
from contrasent.settings import settings


@settings
class Config:
    """Settings of listwise distillation."""

    temperature: PositiveFloat = 0.05
    """The student's cosines are divided by it."""

    teacher_temperature: PositiveFloat = 1.0
    """The teacher's scores are divided by it, and before that by their spread: the mean over lists
    of the standard deviation in a list, so that it suits logits and cosines alike."""

    margin_weight: NonNegativeFloat = 0.0
    """Of the squared differences of margins, those of the first candidate to each other one."""


class RankDistil(Objective):
    """The divergence of the student's ranking from the teacher's, and of margins."""

    config_class = Config
    needs = frozenset({Need.CANDIDATE_SCORES})
    has_roles = True

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__(config, start)
        self.views = max(3, start.data_views)

    def columns(self, examples: Examples, show_progress: bool = False) -> Mapping[Need, np.ndarray]:
        count = sum(1 for _ in examples)
        numbers = examples.numbers[Need.CANDIDATE_SCORES.name]
        scores = np.array(numbers, np.float32).reshape(count, -1)
        spread = scores.std(axis=1).mean()
        if not spread > 0:
            raise DataError(
                f"{examples.source} has the same score for all candidates of a list, in each of "
                f"its {count} lists, which says nothing of their order; let a teacher score them"
            )
        return {Need.CANDIDATE_SCORES: scores / spread}

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        config = self.config
        query, *others = encoded.pooled.float()
        cosines = F.cosine_similarity(query.unsqueeze(1), torch.stack(others, 1), dim=-1)
        student = cosines / config.temperature
        teacher = batch.column(Need.CANDIDATE_SCORES) / config.teacher_temperature
        ranks = student.log_softmax(1), teacher.log_softmax(1)
        terms = {"ranking": F.kl_div(*ranks, reduction="batchmean", log_target=True)}
        if config.margin_weight:
            margins = (scores[:, :1] - scores[:, 1:] for scores in (student, teacher))
            terms["margin"] = config.margin_weight * F.mse_loss(*margins)
        agreed = (student.argmax(1) == teacher.argmax(1)).float().mean()
        return Terms(terms, {"first_agreed": agreed})
