"""Embedding of training batches: by one encoder or two, once or in chunks.

Shapes: B examples, V views of each, T tokens of all sentences, D embedding width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from contrasent.data.batch import Batch
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.protocol import Encoded
from contrasent.objectives.base import Objective
from contrasent.settings import TrainSettings
from contrasent.training.gradcache import GradientCache

Embedding = Callable[[Batch], tuple[Encoded, Callable[[], None]]]
"""Embeds a batch; the function that it returns is called after the backward pass of the loss."""


def embedding(
    encoder: SentenceEncoder,
    objective: Objective,
    settings: TrainSettings,
    precision: str,
    *,
    twin: SentenceEncoder | None = None,
    fixed_dropout: bool = False,
) -> Embedding:
    """The way in which a run with these settings embeds its batches.

    Args:
        encoder: embeds the sentences.
        objective: what the embeddings are for.
        settings: say whether gradients are cached.
        precision: of the matrix products, ``fp32`` or ``bf16``.
        twin: embeds all views but the first; without one, ``encoder`` embeds them.
        fixed_dropout: all views of an example have the same dropout masks.
    """

    def whole(model: SentenceEncoder) -> Embedding:
        if settings.gradcache_chunk is not None:
            return GradientCache(model, settings.gradcache_chunk, precision).embed
        return lambda batch: (model(batch, objective.layers), lambda: None)

    if twin is not None:
        return _by_two(whole(encoder), whole(twin))
    return _once(whole(encoder), objective.views) if fixed_dropout else whole(encoder)


def _once(one: Embedding, views: int) -> Embedding:
    """Embed the first of ``views`` equal views, and let it stand for all of them.

    There is no dropout after an encoder's head, so equal masks make equal embeddings, and the
    gradient of one forward pass is the sum of those of V. Gao et al. do the same ("Fixed 0.1" in
    Table 3). Views after these, which an objective added, are embedded as they are.
    """

    def embed(batch: Batch) -> tuple[Encoded, Callable[[], None]]:
        encoded, backward = one(_without_copies(batch, views))
        first, added = encoded.pooled[:1], encoded.pooled[1:]
        return Encoded(torch.cat([first.expand(views, -1, -1), added]), {}), backward

    return embed


def _by_two(one: Embedding, other: Embedding) -> Embedding:
    """The first view by one encoder, the others by another."""

    def embed(batch: Batch) -> tuple[Encoded, Callable[[], None]]:
        anchors, others = _split_first_view(batch)
        first, backward_through_one = one(anchors)
        rest, backward_through_other = other(others)

        def backward() -> None:
            backward_through_one()
            backward_through_other()

        return Encoded(torch.cat([first.pooled, rest.pooled]), {}), backward

    return embed


def _without_copies(batch: Batch, views: int) -> Batch:
    """``batch`` with one of its first ``views`` views, which have the same sentences."""
    examples, copies = batch.examples, batch.examples * views
    # The host knows T; where further views begin it would have to ask the device for.
    end = len(batch.token_ids) if batch.views == views else int(batch.offsets[copies])
    left_out = end - end // views
    tokens = torch.cat([batch.token_ids[: end // views], batch.token_ids[end:]])
    added = batch.offsets[copies + 1 :] - left_out
    offsets = torch.cat([batch.offsets[: examples + 1], added])
    return Batch(tokens, offsets, batch.views - views + 1, batch.longest)


def _split_first_view(batch: Batch) -> tuple[Batch, Batch]:
    """The first view, and the others; the host waits for the device to tell where they part."""
    examples = batch.examples
    end = int(batch.offsets[examples])
    mask, rest = batch.embedding_mask, batch.offsets[examples:] - end
    masks = (None, None) if mask is None else mask.tensor_split([end])
    first = Batch(batch.token_ids[:end], batch.offsets[: examples + 1], 1, batch.longest)
    others = Batch(batch.token_ids[end:], rest, batch.views - 1, batch.longest)
    return replace(first, embedding_mask=masks[0]), replace(others, embedding_mask=masks[1])
