"""IS-BERT (Zhang et al. 2020, arXiv:2009.12061): a sentence is what its tokens have in common.

Token states, seen through convolutions of several widths, are to have much mutual information with
the mean of those of their sentence, and little with the means of others. The convolutions belong to
the encoder (``encoder.convolutions``) and are saved with it.
"""

from __future__ import annotations

from torch import Tensor
from typing_extensions import override

from contrasent.config import settings
from contrasent.data.batch import Batch
from contrasent.errors import ConfigError
from contrasent.model.encoder import Encoded
from contrasent.objectives.base import Objective, Start, Terms
from contrasent.objectives.parts.mutual_information import jensen_shannon


@settings
class Config:
    """Settings of IS-BERT."""

    exclude_duplicates: bool = True
    """Leave sentences of the same text out of the negatives."""


class IsBert(Objective):
    """The Jensen-Shannon estimate of the mutual information of tokens and sentences."""

    views = 1
    layers = (-1,)

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__()
        self.config = config
        encoder = start.require_encoder()
        local = encoder.convolutions or encoder.backbone
        if encoder.head is not None or start.width != local.width:
            raise ConfigError(
                f"IS-BERT compares embeddings of {start.width} numbers with token states of "
                f"{local.width}, and nothing may stand between them; set encoder.head to none"
            )

    @override
    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        tokens = encoded.states[-1] if encoded.convolved is None else encoded.convolved
        sentences = encoded.pooled.flatten(0, 1)
        loss, found = jensen_shannon(tokens, sentences, batch.lengths, excluded=self._same(batch))
        return Terms({"information": loss}, {"token_accuracy": found})

    def _same(self, batch: Batch) -> Tensor | None:
        """``(S, S)``, which sentences are one text."""
        if not self.config.exclude_duplicates:
            return None
        texts = batch.same_text()
        return texts == texts.unsqueeze(1)


build = IsBert
