"""Gradient caching: a large batch in the memory of a small one (Gao et al. 2021, arXiv:2101.06983).

Shapes: B examples, V views, S = V * B sentences, N sentences of a chunk, D embedding width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contrasent.data.batch import Batch
from contrasent.errors import ContrasentError
from contrasent.memory import give_back_freed_memory
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.precision import matrix_precision
from contrasent.model.protocol import Encoded
from contrasent.training.state import random_state, set_random_state

# What the rounding of bf16 may change from the first pass to the second, as a share of the norm
# of the embeddings; another draw of a dropout of 0.01 changes a tenth.
_ROUNDING = 0.05
_CHUNKS_BETWEEN_TRIMS = 16


@dataclass(frozen=True, slots=True)
class Chunks:
    """A batch cut into parts that are encoded one after the other.

    Attributes:
        parts: batches of one view, of sentences of similar length and about equal numbers of
            tokens.
        place: ``(S,)`` where each sentence of the batch is, counted over all parts.
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

    Each chunk is encoded twice: without gradients for the loss of the whole batch, then again
    with the gradient that the loss gives to its embeddings. Both times it has the same dropout:
    in SimCSE the masks *are* the data, and with others the gradient would be of another loss.
    """

    def __init__(self, encoder: SentenceEncoder, sentences: int, precision: str) -> None:
        """Prepare for the batches of a run.

        Args:
            encoder: in training mode.
            sentences: of average length that are encoded at once.
            precision: of the matrix products, ``fp32`` or ``bf16``, when chunks are encoded again.
        """
        self._encoder, self._sentences, self._precision = encoder, sentences, precision
        self._compared = False

    def embed(self, batch: Batch) -> tuple[Encoded, Callable[[], None]]:
        """Embed ``batch``, in the precision of the context.

        Returns:
            The embeddings; and what is to be called once, after the gradient of the loss has
            reached them: it adds to the gradient of each weight of the encoder what one backward
            pass through the whole batch would. Torch's generators stand where they stood before.
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
