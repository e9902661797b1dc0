"""Masked language modelling alone (Devlin et al. 2019): for a generator, or a start, of one's own.

What is saved is a masked language model, encoder and head together.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from contrasent.data.batch import Batch, Need
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.masked_lm import MaskedLm
from contrasent.model.protocol import Encoded
from contrasent.objectives._shared import HiddenTokens
from contrasent.objectives.base import Objective, Share, Start, Terms
from contrasent.settings import settings


@settings
class Config:
    """Settings of masked language modelling."""

    mask_rate: Share = 0.15
    """Share of the tokens to predict; 80 % of them are masked, 10 % random, 10 % kept."""


class Mlm(Objective):
    """Predict the hidden tokens of each sentence; data with several per example is refused."""

    config_class = Config
    in_parts = True
    views = 1
    needs = frozenset({Need.TOKEN_STATES, Need.TOKENS})

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__()
        encoder = start.require_encoder()
        masked_lm = MaskedLm.load(encoder.name, new_head=True)
        masked_lm.share(encoder.backbone)
        self._masked_lm = (masked_lm,)
        self.tokens = HiddenTokens(start, masked_lm.head, config.mask_rate)

    def prepare(self, batch: Batch) -> Batch:
        return self.tokens.hide(batch)

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        terms: Terms = self.tokens(encoded, batch)
        return terms

    def save(self, encoder: SentenceEncoder, folder: Path, info: Mapping[str, Any]) -> None:
        (masked_lm,) = self._masked_lm
        masked_lm.save(folder, encoder.tokenizer, info)
