"""InfoCSE (Wu et al. 2022, arXiv:2210.06432): SimCSE, and a masked LM that needs the embedding.

The lower layers of the start, which are not trained, read a sentence with hidden tokens. Two new
layers, which are given the embedding in place of the first token, predict them from that. With
``rtd_weight`` DiffCSE's replaced-token detection is added.
"""

from __future__ import annotations

import copy
from typing import Annotated

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from contrasent.data.batch import Batch, sums_by_parts
from contrasent.errors import ConfigError
from contrasent.model.backbones.packed_bert import PackedBert
from contrasent.model.masked_lm import MaskedLm
from contrasent.model.protocol import Encoded
from contrasent.objectives import diffcse
from contrasent.objectives.base import Share, Start, Terms
from contrasent.objectives.mlm import HiddenTokens
from contrasent.profiling import part
from contrasent.settings import settings


@settings
class Config(diffcse.Config):
    """Settings of the InfoCSE objective; those of DiffCSE are for its contrastive term and RTD."""

    rtd_weight: Annotated[float, Field(ge=0)] = 0.0
    """The weight of DiffCSE's term (InfoCSE + RTD: 0.005); at 0 nothing of it is computed."""

    mlm_weight: PositiveFloat = 1e-5
    """The weight of the masked language model."""

    mlm_mask_rate: Share = 0.4
    """Share of the tokens that it has to predict."""

    lower_layers: PositiveInt | None = None
    """Layers of the start that read the masked sentence (InfoCSE: 6 of 12); null is half."""

    upper_layers: PositiveInt = 2
    """New layers that predict the tokens, and are dropped after training."""


class InfoCSE(diffcse.DiffCSE):
    """A contrastive term on dropout views, and hidden tokens predicted with the embedding."""

    config_class = Config

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__(config, start)
        encoder = start.require_encoder()
        backbone = encoder.backbone
        if not isinstance(backbone, PackedBert):
            raise ConfigError(
                f"infocse adds layers to a BERT, RoBERTa, XLM-R, CamemBERT or DistilBERT, but "
                f"{encoder.name} is {backbone.kind}; choose another encoder, or another objective"
            )
        start.require_width(backbone.width)
        self._depth = config.lower_layers or max(1, backbone.depth // 2)
        if self._depth > backbone.depth:
            raise ConfigError(
                f"objective.lower_layers is {self._depth}, but the encoder has {backbone.depth} "
                "layers; take fewer"
            )
        lower = copy.deepcopy(backbone).eval().requires_grad_(requires_grad=False)
        lower.set_checkpointing(False)
        self._lower = (lower,)
        self.upper = backbone.new_layers(config.upper_layers)
        head = copy.deepcopy(MaskedLm.load(encoder.name).head)
        self.tokens = HiddenTokens(start, head, config.mlm_mask_rate)

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        terms = super().forward(encoded, batch)
        hidden = self.tokens.hide(batch)
        rows, tokens = [encoded.pooled.flatten(0, 1)], self.tokens.columns(hidden)
        mlm = self.tokens.terms(sums_by_parts(self._sums, hidden, rows=rows, tokens=tokens))
        terms["mlm"] = self.config.mlm_weight * mlm["mlm"]
        terms.measures.update(mlm.measures)
        return terms

    def _sums(self, hidden: Batch, embeddings: Tensor, chosen: Tensor, wanted: Tensor) -> Tensor:
        """What ``HiddenTokens.sums`` makes of the states above the embeddings."""
        (lower,) = self._lower
        with torch.no_grad():
            states = lower(hidden, (self._depth,))[self._depth]
        states = states.index_copy(0, hidden.offsets[:-1], embeddings.to(states.dtype))
        with part("masked lm"):
            above = self.upper.continue_from(hidden, states).float()
            return self.tokens.sums(above, chosen, wanted)
