"""InfoCSE (Wu et al. 2022, arXiv:2210.06432): SimCSE, and a masked LM that needs the embedding.

The lower layers of the start, which are not trained, read a sentence with hidden tokens. Two new
layers, which are given the embedding in place of the first token, predict them from that. With
``rtd_weight`` DiffCSE's replaced-token detection is added.
"""

import copy

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor
from torch.profiler import record_function

from contrasent.data.batch import Batch
from contrasent.model.protocol import Encoded
from contrasent.objectives import Share, Start, Terms, diffcse
from contrasent.objectives.mlm import HiddenTokens
from contrasent.settings import settings


@settings
class Config(diffcse.Config):
    """Settings of the InfoCSE objective; those of DiffCSE are for its contrastive term and RTD."""

    rtd_weight: NonNegativeFloat = 0.0
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
        _, backbone = start.require_packed_bert()
        start.require_width(backbone.width)
        self._depth = min(config.lower_layers or max(1, backbone.depth // 2), backbone.depth)
        lower = copy.deepcopy(backbone).eval().requires_grad_(requires_grad=False)
        lower.set_checkpointing(False)
        self._lower = (lower,)
        self.upper = backbone.new_layers(config.upper_layers)
        self.tokens = HiddenTokens(start, config.mlm_mask_rate)

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        terms = super().forward(encoded, batch)
        rows = [encoded.pooled.flatten(0, 1)]
        mlm = self.tokens.score(self._states, self.tokens.hide(batch), rows)
        terms["mlm"] = self.config.mlm_weight * mlm["mlm"]
        terms.measures.update(mlm.measures)
        return terms

    def _states(self, hidden: Batch, embeddings: Tensor) -> Tensor:
        with torch.no_grad():
            states = self._lower[0](hidden, (self._depth,))[self._depth]
        states = states.index_copy(0, hidden.offsets[:-1], embeddings.to(states.dtype))
        with record_function("masked lm"):
            return self.upper.last_states(hidden, states).float()
