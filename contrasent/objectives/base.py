"""What every objective promises: embeddings and their batch in, named terms out."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from contrasent.data.batch import Batch
from contrasent.model.encoder import Encoded

Terms = dict[str, Tensor]
"""Named scalar terms, already weighted; the loss is their sum."""


class Objective(nn.Module, ABC):
    """A training objective.

    It may own modules of its own (a head, a discriminator); they are trained with the encoder and
    left out of the saved encoder. It never holds the encoder, so it can be tested on random
    tensors.

    Attributes:
        views: how many sentences of each example it needs; data with one sentence per example
            gives it again as every view.
        layers: the token states it reads beside the embeddings, by layer number.
        reads_tokens: it computes on the tokens themselves, with a transformer of its own say, so
            that its memory grows with the batch.
    """

    views: int
    layers: tuple[int, ...] = ()
    reads_tokens: bool = False

    def prepare(self, batch: Batch) -> Batch:
        """The batch to encode, where it is not the one that the data gives."""
        return batch

    @abstractmethod
    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        """Score one batch.

        Args:
            encoded: ``pooled`` is ``(V, B, D)``, view by view.
            batch: the tokens they came from.

        Returns:
            Weighted scalar terms whose sum is minimised.
        """
