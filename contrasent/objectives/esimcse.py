"""ESimCSE (Wu et al. 2022, arXiv:2109.04380): SimCSE with a momentum encoder and a queue.

Its positives are sentences with repeated tokens, the view `repeat`. What a slowly moving copy of
the encoder made of the sentences of the last steps, without dropout, are further negatives.
"""

from typing import Annotated

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.func import functional_call

from contrasent.data.batch import Batch, Need, rows_by_parts
from contrasent.functional import cosine_matrix
from contrasent.model.backbones.base import evaluating
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.protocol import Encoded
from contrasent.objectives import Contrast, ContrastConfig, Start, Terms
from contrasent.settings import settings


@settings
class Config(ContrastConfig):
    """Settings of the ESimCSE objective."""

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.995
    """What the momentum encoder keeps of its weights at each step; the rest is the trained ones."""

    queue: PositiveInt = 160
    """Its embeddings of earlier batches that are further negatives."""


class MomentumEncoder(nn.Module):
    """An encoder and a head whose weights, a buffer, follow the trained ones slowly."""

    def __init__(self, encoder: SentenceEncoder, head: nn.Module, momentum: float) -> None:
        super().__init__()
        # In a tuple, so that they are trained and saved by their owners alone.
        self._followed = (encoder, head)
        self._momentum = momentum
        self.weights = nn.Buffer(nn.utils.parameters_to_vector(self._trained()).detach())

    @torch.no_grad()
    def update(self) -> None:
        """Move the weights towards the trained ones."""
        trained, share = self._trained(), 1 - self._momentum
        torch._foreach_lerp_(self._parts(), [w.flatten() for w in trained], share)

    @torch.no_grad()
    def embed(self, batch: Batch) -> Tensor:
        """``(V, B, D)``, after the head, with dropout off."""
        encoder, head = self._followed
        parts = iter(self._parts())
        of_encoder, of_head = (
            {name: next(parts).view_as(w) for name, w in module.named_parameters()}
            for module in self._followed
        )
        with evaluating(encoder), evaluating(head):
            encoded: Encoded = functional_call(encoder, of_encoder, (batch,))
            rows: Tensor = functional_call(head, of_head, (encoded.pooled,))
        return rows

    def _trained(self) -> list[nn.Parameter]:
        return [weights for module in self._followed for weights in module.parameters()]

    def _parts(self) -> list[Tensor]:
        return list(torch.split(self.weights, [w.numel() for w in self._trained()]))


class Queue(nn.Module):
    """The last ``size`` embeddings that were put in; a place that is still empty counts nothing."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.rows = nn.Buffer(torch.zeros(size, width))

    @torch.no_grad()
    def put(self, rows: Tensor) -> None:
        """Take ``(B, D)`` in, and drop as many of the oldest."""
        self.rows.copy_(torch.cat([rows.to(self.rows.dtype), self.rows])[: len(self.rows)])

    def logits(self, anchor: Tensor, temperature: float) -> Tensor:
        """``(B, K)``, the cosines of ``anchor (B, D)`` with the queue over ``temperature``."""
        rows = self.rows.clone()  # put() changes them before the backward pass
        empty = ~rows.any(dim=1)
        return (cosine_matrix(anchor, rows) / temperature).masked_fill(empty, float("-inf"))


class ESimCSE(Contrast):
    """In-batch contrastive loss with the sentences of earlier batches as further negatives."""

    config_class = Config
    views = 2
    needs = frozenset({Need.ENCODER})

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__(config, start)
        self.momentum = MomentumEncoder(start.require_encoder(), self.head, config.momentum)
        self.queue = Queue(config.queue, start.width)

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        anchor, positive = self.head(encoded.pooled)
        further = self.queue.logits(anchor, self.config.temperature)
        contrast = self.contrast(anchor, positive, batch, further)
        self.queue.put(rows_by_parts(lambda part: self.momentum.embed(part)[0], batch.view(0)))
        return Terms({"contrast": contrast})

    def after_step(self) -> None:
        self.momentum.update()
