"""Embeddings with gradients, and gradients of a large batch in the memory of a small one.

Shapes: B examples, V views of each, S = V * B sentences, T tokens, D embedding width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contrasent.data.batch import Batch
from contrasent.errors import ContrasentError
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.precision import matrix_precision
from contrasent.model.protocol import Encoded
from contrasent.objectives.base import Objective
from contrasent.profiling import give_back_freed_memory
from contrasent.settings import TrainSettings
from contrasent.training.state import random_state, set_random_state

# What the rounding of bf16 may change from the first pass to the second, as a share of the norm
# of the embeddings; another draw of a dropout of 0.01 changes a tenth.
_ROUNDING = 0.05
_CHUNKS_BETWEEN_TRIMS = 16


@dataclass(frozen=True, slots=True)
class Chunks:
    """A batch cut into batches of one view, of similar lengths and about equal numbers of tokens.

    ``place (S,)`` is where each sentence of the batch is, counted over all parts.
    """

    parts: list[Batch]
    place: Tensor

    @classmethod
    def of(cls, batch: Batch, sentences: int) -> Chunks:
        """Cut ``batch`` into as many parts as ``sentences`` in each would make."""
        device = batch.token_ids.device
        host = replace(batch, duplicate_of=None, next_sentences=None, columns={}).to(
            torch.device("cpu")
        )
        order = torch.argsort(host.lengths, stable=True)
        count = -(-host.sentences // sentences)
        # A sentence belongs to the part in which the middle of its tokens falls.
        middle = 2 * host.lengths[order].cumsum(0) - host.lengths[order]
        part = middle * count // (2 * len(host.token_ids))
        sizes = torch.bincount(part, minlength=count).tolist()
        parts = [host.select(numbers) for numbers in torch.split(order, sizes) if len(numbers)]
        return cls([part.to(device) for part in parts], torch.argsort(order).to(device))


class GradientCache:
    """Embeds a batch of any size; then takes the gradient back to the encoder, chunk by chunk.

    Chunks of ``sentences`` are encoded twice: without gradients for the loss of the whole batch,
    then again with the gradient that it gives to their embeddings. Both times with the same
    dropout: in SimCSE the masks *are* the data. ``precision`` is that of the second time.
    """

    def __init__(self, encoder: SentenceEncoder, sentences: int, precision: str) -> None:
        self._encoder, self._sentences, self._precision = encoder, sentences, precision
        self._compared = False

    def embed(self, batch: Batch) -> tuple[Encoded, Callable[[], None]]:
        """Embed ``batch``, in the precision of the context.

        The function that is returned too is called once after the backward pass of the loss: it
        adds to the gradients of the encoder what one pass through the whole batch would. Torch's
        generators stand where they stood before.
        """
        device = batch.token_ids.device
        if batch.sentences <= self._sentences:
            return self._encoder(batch), lambda: None
        chunks = Chunks.of(batch, self._sentences)
        draws, rows = [], []
        with torch.no_grad(), self._encoder.backbone.unchanging():
            for part in chunks.parts:
                draws.append(random_state(device))
                rows.append(self._encode(part))
        first = torch.cat(rows)
        pooled = first[chunks.place].requires_grad_()

        def backward() -> None:
            whole = torch.zeros_like(first)
            if pooled.grad is not None:
                whole[chunks.place] = pooled.grad
            gradients = torch.split(whole, [len(part) for part in rows])
            before = random_state(device)
            for number, (part, draw) in enumerate(zip(chunks.parts, draws, strict=True), start=1):
                set_random_state(draw, device)
                with matrix_precision(self._precision, device):
                    again = self._encode(part)
                if not self._compared:
                    _refuse_other_draws(rows[number - 1], again.detach())
                torch.autograd.backward(again, gradients[number - 1])
                if number % _CHUNKS_BETWEEN_TRIMS == 0:
                    give_back_freed_memory()
            set_random_state(before, device)
            self._compared = True

        return Encoded(pooled.view(batch.views, -1, self._encoder.width), {}), backward

    def _encode(self, part: Batch) -> Tensor:
        encoded: Encoded = self._encoder(part)
        return encoded.pooled[0]


def _refuse_other_draws(first: Tensor, again: Tensor) -> None:
    """A backbone that takes another way without gradients may draw other masks there."""
    moved = float((again - first).norm() / first.norm())
    if not moved <= _ROUNDING and bool(first.isfinite().all()):
        raise ContrasentError(
            f"gradient caching encodes every sentence twice, and the second embeddings differ "
            f"from the first by {moved:.0%}: this encoder does not draw the same dropout with and "
            "without gradients. Train without train.gradcache_chunk, or with encoder.dropout 0"
        )


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

    A ``twin`` embeds all views but the first; with ``fixed_dropout`` all views of an example have
    the same dropout masks.
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

    There is no dropout after an encoder's head, so equal masks make equal embeddings. Gao et al.
    do the same ("Fixed 0.1" in Table 3). Views that an objective added are embedded as they are.
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
