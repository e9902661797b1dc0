"""What is known about each step, read from the device without stopping it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

from contrasent.errors import ContrasentError


@dataclass(frozen=True, slots=True)
class Step:
    """What is known about one step once its update is made.

    Attributes:
        number: updates made before its loss was computed; 0 is the loss before any update.
        loss: the sum of the terms.
        terms: the objective's terms, weighted.
        learning_rate: of its update.
        gradient_norm: of all parameters together, before clipping.
        alignment: of the embeddings of anchors and positives.
        uniformity: of the anchors' embeddings.
        sentences: sentences that went through the encoder, views counted.
    """

    number: int
    loss: float
    terms: dict[str, float]
    learning_rate: float
    gradient_norm: float
    alignment: float
    uniformity: float
    sentences: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Scalars of one step on their device; as in :class:`Step`."""

    loss: Tensor
    gradient_norm: Tensor
    alignment: Tensor
    uniformity: Tensor
    terms: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class _Sent:
    """Scalars of one step on their way to the host."""

    number: int
    learning_rate: float
    sentences: int
    names: list[str]
    values: Tensor
    arrived: torch.cuda.Event | None

    def read(self) -> Step:
        if self.arrived is not None:
            self.arrived.synchronize()
        loss, norm, alignment, uniformity, *terms = self.values.tolist()
        return Step(
            number=self.number,
            loss=loss,
            terms=dict(zip(self.names, terms, strict=True)),
            learning_rate=self.learning_rate,
            gradient_norm=norm,
            alignment=alignment,
            uniformity=uniformity,
            sentences=self.sentences,
        )


class Readings:
    """Steps whose numbers are on their way.

    A CPU has them at once. Asking an accelerator would make it wait for the host after every
    step, so there a step is read when the next one has been launched.
    """

    def __init__(self) -> None:
        self._sent: deque[_Sent] = deque()

    def send(self, number: int, learning_rate: float, sentences: int, measured: Measured) -> None:
        """Start the copy of a step's numbers."""
        scalars = (measured.loss, measured.gradient_norm, measured.alignment, measured.uniformity)
        values = torch.stack([t.detach().float() for t in (*scalars, *measured.terms.values())])
        arrived = None
        if values.device.type == "cuda":
            kept = torch.empty(values.shape, pin_memory=True)
            values = kept.copy_(values, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        names = list(measured.terms)
        self._sent.append(_Sent(number, learning_rate, sentences, names, values, arrived))

    def take(self, everything: bool) -> list[Step]:
        """The steps that are there by now, in their order; with ``everything``, all are waited for.

        Raises:
            ContrasentError: the loss or the gradient of one is not finite.
        """
        left = 0 if everything or not self._sent or self._sent[-1].arrived is None else 1
        steps = [self._sent.popleft().read() for _ in range(len(self._sent) - left)]
        for step in steps:
            _refuse_not_finite(step)
        return steps


def _refuse_not_finite(step: Step) -> None:
    if not (isfinite(step.loss) and isfinite(step.gradient_norm)):
        raise ContrasentError(
            f"step {step.number}: the loss is {step.loss} and the gradient norm "
            f"{step.gradient_norm}; nothing was kept that was updated with them. Lower "
            "train.learning_rate, raise objective.temperature, or use --train.precision fp32"
        )
