"""SimCSE (Gao et al. 2021, arXiv:2104.08821).

Unsupervised: the same sentence twice, apart only by dropout (eq. 4). Supervised: pairs (eq. 1),
or pairs with one or several hard negatives (eq. 5, weighted: eq. 8).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from contrasent.data.batch import Batch, Need, concat
from contrasent.errors import ConfigError
from contrasent.functional import info_nce
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.heads import MlpHead, head_named
from contrasent.model.protocol import Encoded
from contrasent.objectives._shared import AuxiliaryMlm, ContrastConfig
from contrasent.objectives.base import Objective, Start, Terms, duplicates
from contrasent.settings import settings


@settings
class Config(ContrastConfig):
    """Settings of the SimCSE objective."""

    temperature: PositiveFloat = 0.05
    """tau of eq. 1; the cosine is divided by it, and the dot product is not."""

    similarity: Literal["cosine", "dot"] = "cosine"
    """What compares two embeddings; dot is the column N/A of Table D.1."""

    hard_negatives: NonNegativeInt | None = None
    """Hard negatives of each example (eq. 5): 0, 1 or more; null takes all that the data has, which
    must be pairs at least. Single sentences take 0."""

    hard_negative_weight: PositiveFloat = 1.0
    """alpha of eq. 8, the weight of an anchor's own hard negatives in the sum."""

    head: Literal["mlp", "batchnorm", "none"] = "mlp"
    """A head that is trained and then dropped: Linear+Tanh, or DiffCSE's two linear layers with
    batch normalisation; none if the encoder keeps one."""

    keep_head: bool = False
    """Save the trained mlp in head/, beside the encoder, which is still used without it:
    `contrasent evaluate RUN --head mlp` scores the same run with it."""

    unsupervised_weight: NonNegativeFloat = 0.0
    """With pairs or triplets: the weight of the unsupervised loss (eq. 4) of the anchors beside
    the supervised one; above 0 every anchor is encoded once more, with its own dropout. The paper
    tried both together and found no gain (section 4)."""

    mlm_weight: NonNegativeFloat = 0.0
    """lambda of the auxiliary masked language modelling (Table D.2; the paper's choice is 0.1);
    above 0 every sentence is encoded once more, with tokens masked."""

    mlm_views: Literal["plain", "masked"] = "plain"
    """What is contrasted with mlm_weight above 0: the sentences as they are, or with the same
    tokens masked. The numbers of Tables D.2 and E.1 come from code that masked them (mended in
    November 2021)."""

    mlm_mask_rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the tokens that it masks."""


class SimCSE(Objective):
    """In-batch contrastive loss on two dropout views, on pairs, or with hard negatives."""

    config_class = Config
    in_parts = True

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__()
        self.config = config
        self.needs_pairs = config.hard_negatives is None or config.unsupervised_weight > 0
        self.views = max(2, start.data_views)
        if config.hard_negatives is not None:
            self.views = 2 + config.hard_negatives
        if config.hard_negatives and start.data_views != self.views:
            raise ConfigError(
                f"objective.hard_negatives is {config.hard_negatives}, which needs data of "
                f"{self.views} sentences per example (anchor, positive, hard negatives); this "
                f"data has {start.data_views}"
            )
        if config.keep_head and config.head != "mlp":
            raise ConfigError(
                f"objective.keep_head keeps a Linear+Tanh, but objective.head is {config.head}; "
                "set it to mlp, or keep_head to false"
            )
        self.head = head_named(config.head, start.width)
        if config.unsupervised_weight:
            self.needs = frozenset({Need.TOKENS})
        self.mlm: AuxiliaryMlm | None = None
        if config.mlm_weight:
            self.mlm = AuxiliaryMlm(
                start,
                config.mlm_weight,
                config.mlm_mask_rate,
                masks_views=config.mlm_views == "masked",
            )
            self.needs = frozenset({Need.TOKEN_STATES, Need.TOKENS})

    def prepare(self, batch: Batch) -> Batch:
        if self.config.unsupervised_weight:
            batch = concat([batch, batch.view(0)], batch.views + 1)
        return batch if self.mlm is None else self.mlm.prepare(batch)

    def negatives(self, examples: int) -> int:
        return (self.views - 1) * examples - 1

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        if self.mlm is None:
            return Terms(self._contrasts(encoded, batch))
        encoded, batch, mlm = self.mlm(encoded, batch)
        return Terms({**self._contrasts(encoded, batch), **mlm}, mlm.measures)

    def save(self, encoder: SentenceEncoder, folder: Path, info: Mapping[str, Any]) -> None:
        trained = self.config.keep_head and info.get("step") != 0
        head = self.head if trained and isinstance(self.head, MlpHead) else None
        encoder.save(folder, info, kept_head=head)

    def _contrasts(self, encoded: Encoded, batch: Batch) -> dict[str, Tensor]:
        """The loss of the data's sentences, and that of the anchors' further copies if asked."""
        config = self.config
        anchor, *others = self.head(encoded.pooled)
        excluded = duplicates(batch) if config.exclude_duplicates else None
        kept = self.views - 1
        terms = {"contrast": (others[:kept], config.hard_negative_weight, 1.0)}
        if config.unsupervised_weight:
            terms["unsupervised"] = (others[kept:], 1.0, config.unsupervised_weight)
        losses, start = {}, 0
        for name, (views, own_weight, weight) in terms.items():
            end = start + len(views) * len(anchor)
            loss = info_nce(
                anchor,
                torch.cat(views),
                config.temperature if config.similarity == "cosine" else 1.0,
                similarity=config.similarity,
                own_weight=own_weight,
                excluded=None if excluded is None else excluded[:, start:end],
            )
            losses[name], start = weight * loss, end
        return losses
