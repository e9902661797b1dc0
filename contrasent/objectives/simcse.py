"""SimCSE (Gao et al. 2021, arXiv:2104.08821).

Unsupervised: the same sentence twice, apart only by dropout (eq. 4). Supervised: pairs (eq. 1),
or pairs with one or several hard negatives (eq. 5, weighted: eq. 8).
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import nn

from contrasent.data.batch import Batch, Need, concat
from contrasent.errors import ConfigError
from contrasent.functional import info_nce
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.heads import MlpHead
from contrasent.model.protocol import Encoded
from contrasent.objectives import Contrast, ContrastConfig, Share, Start, Terms, duplicates
from contrasent.objectives.mlm import HiddenTokens, MaskedBatch
from contrasent.settings import settings


@settings
class Config(ContrastConfig):
    """Settings of the SimCSE objective."""

    temperature: PositiveFloat = 0.05
    """tau of eq. 1; the cosine is divided by it, and the dot product is not."""

    similarity: Literal["cosine", "dot"] = "cosine"
    """What compares two embeddings; dot is the column N/A of Table D.1."""

    hard_negatives: NonNegativeInt | None = None
    """Hard negatives of each example (eq. 5); null takes all of the data, pairs at least."""

    hard_negative_weight: PositiveFloat = 1.0
    """alpha of eq. 8, the weight of an anchor's own hard negatives in the sum."""

    keep_head: bool = False
    """Save the trained mlp in head/: `contrasent evaluate RUN --head mlp` scores with it."""

    unsupervised_weight: NonNegativeFloat = 0.0
    """With pairs or triplets: weight of the unsupervised loss (eq. 4) of the anchors beside the
    supervised one (section 4: no gain)."""

    mlm_weight: NonNegativeFloat = 0.0
    """lambda of the auxiliary masked language modelling, on a masked copy (Table D.2: 0.1)."""

    mlm_views: Literal["plain", "masked"] = "plain"
    """What is contrasted with mlm_weight above 0: sentences as they are, or with the same tokens
    masked, as the code behind Tables D.2 and E.1 did (mended in November 2021)."""

    mlm_mask_rate: Share = 0.15
    """Share of the tokens that it masks."""


class SimCSE(Contrast):
    """In-batch contrastive loss on two dropout views, on pairs, or with hard negatives.

    For the auxiliary masked language model (section 4.2) every sentence of a batch is encoded once
    more with tokens hidden.
    """

    config_class = Config
    in_parts = True

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__(config, start)
        self.needs_pairs = config.hard_negatives is None or config.unsupervised_weight > 0
        self.views, self.takes_fewer = max(2, start.data_views), config.hard_negatives is None
        if config.hard_negatives is not None:
            self.views = 2 + config.hard_negatives
        if config.hard_negatives and start.data_views != self.views:
            raise ConfigError(
                f"objective.hard_negatives is {config.hard_negatives}, which needs data of "
                f"{self.views} sentences per example (anchor, positive, hard negatives); this "
                f"data has {start.data_views}"
            )
        if config.keep_head and config.head != "mlp":
            raise ConfigError(f"objective.keep_head keeps an mlp, objective.head is {config.head}")
        self.alone = config.keep_head
        if config.unsupervised_weight:
            self.needs = frozenset({Need.TOKENS})
        self.mlm = nn.ModuleDict()
        if config.mlm_weight:
            self.mlm["tokens"] = HiddenTokens(start, config.mlm_mask_rate)
            self.needs = frozenset({Need.TOKEN_STATES, Need.TOKENS})

    def prepare(self, batch: Batch) -> Batch:
        if self.config.unsupervised_weight:
            batch = concat([batch, batch.view(0)], batch.views + 1)
        for tokens in self.mlm.values():
            hidden = cast(HiddenTokens, tokens).hide(batch)
            first = hidden if self.config.mlm_views == "masked" else batch
            both = concat([first, hidden], 2 * batch.views)  # masked copies after the views
            ids, offsets = both.token_ids, both.offsets
            batch = replace(hidden, token_ids=ids, offsets=offsets, views=both.views)
        return batch

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        config, mlm = self.config, Terms({})
        for tokens in self.mlm.values():
            scored: Terms = tokens(encoded, batch)
            mlm = Terms({"mlm": config.mlm_weight * scored["mlm"]}, scored.measures)
            batch = cast(MaskedBatch, batch).source
            encoded = Encoded(encoded.pooled[: batch.views], {})
        anchor, *others = self.head(encoded.pooled)
        excluded = duplicates(batch) if config.exclude_duplicates else None
        kept = len(others) - (config.unsupervised_weight > 0)
        groups = {"contrast": (others[:kept], config.hard_negative_weight, 1.0)}
        if config.unsupervised_weight:
            groups["unsupervised"] = (others[kept:], 1.0, config.unsupervised_weight)
        terms, start = Terms({}, mlm.measures), 0
        for name, (views, own_weight, weight) in groups.items():
            end = start + len(views) * len(anchor)
            terms[name] = weight * info_nce(
                anchor,
                torch.cat(views),
                config.temperature if config.similarity == "cosine" else 1.0,
                similarity=config.similarity,
                own_weight=own_weight,
                excluded=None if excluded is None else excluded[:, start:end],
            )
            start = end
        terms.update(mlm)
        return terms

    def save(self, encoder: SentenceEncoder, folder: Path, info: Mapping[str, Any]) -> None:
        trained = self.config.keep_head and info.get("step") != 0
        head = self.head if trained and isinstance(self.head, MlpHead) else None
        encoder.save(folder, info, kept_head=head)
