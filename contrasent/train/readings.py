"""What is known about each step, read from the device without stopping it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, isnan

import torch
from torch import Tensor

from contrasent.data.batch import Batch
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
        measures: what else is known of the embeddings (``alignment`` of anchors and positives,
            ``uniformity`` of the anchors) and what the objective tells, without those that are
            of nothing in this batch.
        sentences: sentences that went through the encoder, views counted.
        examples: B.
    """

    number: int
    loss: float
    terms: dict[str, float]
    learning_rate: float
    gradient_norm: float
    measures: dict[str, float]
    sentences: int
    examples: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Scalars of one step on their device; as in :class:`Step`."""

    loss: Tensor
    gradient_norm: Tensor
    terms: Mapping[str, Tensor]
    measures: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class _Sent:
    """Scalars of one step on their way to the host."""

    number: int
    learning_rate: float
    sentences: int
    examples: int
    terms: list[str]
    measures: list[str]
    values: Tensor
    arrived: torch.cuda.Event | None

    def read(self) -> Step:
        if self.arrived is not None:
            self.arrived.synchronize()
        loss, norm, *told = self.values.tolist()
        terms, measures = told[: len(self.terms)], told[len(self.terms) :]
        return Step(
            number=self.number,
            loss=loss,
            terms=dict(zip(self.terms, terms, strict=True)),
            learning_rate=self.learning_rate,
            gradient_norm=norm,
            measures={
                name: value
                for name, value in zip(self.measures, measures, strict=True)
                if not isnan(value)
            },
            sentences=self.sentences,
            examples=self.examples,
        )


class Readings:
    """Steps whose numbers are on their way.

    A CPU has them at once. Asking an accelerator would make it wait for the host after every
    step, so there a step is read when the next one has been launched.
    """

    def __init__(self) -> None:
        self._sent: deque[_Sent] = deque()

    def send(self, number: int, learning_rate: float, batch: Batch, measured: Measured) -> None:
        """Start the copy of a step's numbers."""
        told = (*measured.terms.values(), *measured.measures.values())
        scalars = (measured.loss, measured.gradient_norm, *told)
        values = torch.stack([t.detach().float() for t in scalars])
        arrived = None
        if values.device.type == "cuda":
            kept = torch.empty(values.shape, pin_memory=True)
            values = kept.copy_(values, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        names = list(measured.terms), list(measured.measures)
        counts = batch.sentences, batch.examples
        self._sent.append(_Sent(number, learning_rate, *counts, *names, values, arrived))

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
