"""What turns the batches of a run into embeddings with gradients."""

from __future__ import annotations

from collections.abc import Callable

from contrasent.config import TrainSettings
from contrasent.data.batch import Batch
from contrasent.model.encoder import Encoded, SentenceEncoder
from contrasent.model.precision import matrix_precision
from contrasent.objectives.base import Objective
from contrasent.train.gradcache import GradientCache

Embedding = Callable[[Batch], tuple[Encoded, Callable[[], None]]]
"""Embeds a batch, and gives what is to be called after the backward pass of the loss."""


def embedding(
    encoder: SentenceEncoder, objective: Objective, settings: TrainSettings, precision: str
) -> Embedding:
    """How a run with these settings embeds its batches."""
    if settings.gradcache_chunk is not None:
        return GradientCache(encoder, settings.gradcache_chunk, precision).embed

    def embed(batch: Batch) -> tuple[Encoded, Callable[[], None]]:
        with matrix_precision(precision, batch.token_ids.device):
            return encoder(batch, objective.layers), lambda: None

    return embed
