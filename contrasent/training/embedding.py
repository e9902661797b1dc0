"""Embeddings with gradients, and gradients of a large batch in the memory of a small one.

Shapes: B examples, V views of each, S = V * B sentences, T tokens, D embedding width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contrasent.data.batch import Batch, concat, shares, similar_lengths
from contrasent.distributed import own_draws, reunited, split
from contrasent.errors import ContrasentError, is_out_of_memory
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


@contextmanager
def explaining_out_of_memory(settings: TrainSettings, longest: int) -> Iterator[None]:
    """Raise ContrasentError, with the ways out, instead of a library's error about memory."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        pieces, plain = settings.gradcache_chunk, not settings.gradient_checkpointing
        ways = [
            f"--train.gradcache_chunk {128 if pieces is None else max(1, pieces // 2)} takes the "
            "same gradient of the whole batch in pieces",
            *["--train.gradient_checkpointing true keeps less for the gradient"] * plain,
            f"a smaller --batch-size (now {settings.batch_size}) or --data.max_tokens (now "
            f"{longest}) needs less",
        ]
        raise ContrasentError(f"out of memory: {'; '.join(ways)}") from error


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
        groups = similar_lengths(host.lengths, sentences)
        parts = [host.select(numbers).to(device) for numbers in groups]
        return cls(parts, torch.argsort(torch.cat(groups)).to(device))


class GradientCache:
    """Embeds a batch of any size; then takes the gradient back to the encoder, chunk by chunk.

    Chunks of ``sentences`` are encoded twice: without gradients for the loss of the whole batch,
    then again with the gradient that it gives to their embeddings and to the token states of
    ``layers``, which are kept. Both times with the same dropout: in SimCSE the masks *are* the
    data. ``precision`` is that of the second time.
    """

    def __init__(
        self, encoder: SentenceEncoder, sentences: int, precision: str, layers: Sequence[int] = ()
    ) -> None:
        self._encoder, self._sentences, self._precision = encoder, sentences, precision
        self._layers = tuple(layers)
        self._compared = False

    def embed(self, batch: Batch) -> tuple[Encoded, Callable[[], None]]:
        """Embed ``batch``, in the precision of the context.

        The function that is returned too is called once after the backward pass of the loss: it
        adds to the gradients of the encoder what one pass through the whole batch would. Torch's
        generators stand where they stood before.
        """
        device = batch.token_ids.device
        if batch.sentences <= self._sentences:
            return self._encoder(batch, self._layers), lambda: None
        chunks = Chunks.of(batch, self._sentences)
        draws, outputs = [], []
        with torch.no_grad(), self._encoder.backbone.unchanging():
            for part in chunks.parts:
                draws.append(random_state(device))
                outputs.append(self._encode(part))
        of_parts = [*zip(*outputs, strict=True)]
        kept = [torch.cat(tensors).requires_grad_() for tensors in of_parts]

        def backward() -> None:
            pieces = zip(*map(_cut_gradient, kept, of_parts), strict=True)
            before = random_state(device)
            again: list[Tensor]
            for number, (part, draw, wanted) in enumerate(
                zip(chunks.parts, draws, pieces, strict=True), start=1
            ):
                set_random_state(draw, device)
                with matrix_precision(self._precision, device):
                    again = self._encode(part)
                if not self._compared:
                    _refuse_other_draws(outputs[number - 1][0], again[0].detach())
                torch.autograd.backward(again, wanted)
                if number % _CHUNKS_BETWEEN_TRIMS == 0:
                    give_back_freed_memory()
            set_random_state(before, device)
            self._compared = True

        return self._reunited(batch, kept, chunks), backward

    def _reunited(self, batch: Batch, kept: list[Tensor], chunks: Chunks) -> Encoded:
        """The embeddings and token states of the chunks, in the order of ``batch``."""
        pooled, *states = kept
        pooled = pooled.index_select(0, chunks.place)
        if states:
            places = concat(chunks.parts).places(chunks.place)
            states = [state.index_select(0, places) for state in states]
        layers = dict(zip(self._layers, states, strict=False))
        convolved = states[-1] if len(states) > len(layers) else None
        return Encoded(pooled.view(batch.views, -1, self._encoder.full_width), layers, convolved)

    def _encode(self, part: Batch) -> list[Tensor]:
        """Embeddings ``(S, D)``, then what there is of token states ``(T, D)``."""
        encoded: Encoded = self._encoder(part, self._layers)
        kept = [encoded.pooled[0], *(encoded.states[layer] for layer in self._layers)]
        if self._layers and encoded.convolved is not None:
            kept.append(encoded.convolved)
        return kept


def _cut_gradient(whole: Tensor, parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The gradient of ``whole``, cut as the ``parts`` that it was put together from."""
    gradient = torch.zeros_like(whole) if whole.grad is None else whole.grad
    return torch.split(gradient, [len(part) for part in parts])


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
            return GradientCache(model, settings.gradcache_chunk, precision, objective.layers).embed
        return lambda batch: (model(batch, objective.layers), lambda: None)

    one = _by_all(whole(encoder))
    if twin is not None:
        return _by_two(one, _by_all(whole(twin)))
    return _once(one, objective.views) if fixed_dropout else one


def _by_all(one: Embedding) -> Embedding:
    """Embed a share of the sentences in each process; all have all embeddings, with gradient.

    Token states stay where they were computed.
    """

    def embed(batch: Batch) -> tuple[Encoded, Callable[[], None]]:
        how = split()
        if how.processes == 1:
            return one(batch)
        device = batch.token_ids.device
        numbers = shares(batch.lengths.cpu(), how.processes)
        local = numbers[how.rank].to(device)
        # A process without a sentence embeds one that nobody looks at: all take part.
        share = batch.select(local if len(local) else local.new_zeros(1))
        with own_draws(device):
            encoded, backward = one(share)
        rows = reunited(encoded.pooled[0, : len(local)], numbers)
        pooled = rows.view(batch.views, -1, rows.shape[-1])
        tokens = int(share.offsets[len(local)])
        states = {layer: state[:tokens] for layer, state in encoded.states.items()}
        convolved = None if encoded.convolved is None else encoded.convolved[:tokens]
        return Encoded(pooled, states, convolved, local), backward

    return embed


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
    parts = (
        (slice(end), batch.offsets[: examples + 1], 1),
        (slice(end, None), batch.offsets[examples:] - end, batch.views - 1),
    )
    first, others = (
        Batch(batch.token_ids[tokens], offsets, views, batch.longest, **batch.beside(tokens))
        for tokens, offsets, views in parts
    )
    return first, others
