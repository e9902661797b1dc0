"""The training loop, whole on one screen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import Optimizer

from contrasent.config import TrainSettings
from contrasent.data.batch import Batch
from contrasent.errors import ContrasentError
from contrasent.functional import alignment, uniformity
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.precision import matrix_precision
from contrasent.objectives.base import Objective
from contrasent.train.state import Progress


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
class Training:
    """The moving parts of a run."""

    encoder: SentenceEncoder
    objective: Objective
    optimizer: Optimizer
    accelerator: Accelerator
    settings: TrainSettings
    precision: str
    steps: int


def run(
    training: Training,
    batches: Iterator[Batch],
    progress: Progress,
    after_step: Callable[[Step], bool],
) -> None:
    """Train from ``progress.step`` on.

    Args:
        training: what is trained, and how.
        batches: the batches from ``progress.step`` on.
        progress: moved on after each update.
        after_step: told about each step; stops the run by returning False.

    Raises:
        ContrasentError: the loss or the gradient is not finite.
    """
    encoder, objective, optimizer = training.encoder, training.objective, training.optimizer
    parameters = trained(encoder, objective)
    device = training.accelerator.device
    encoder.train()
    objective.train()
    for loaded in batches:
        batch = objective.prepare(loaded.to(device))
        with matrix_precision(training.precision, device):
            encoded = encoder(batch, objective.layers)
        terms = objective(encoded, batch)
        loss = torch.stack(list(terms.values())).sum()
        training.accelerator.backward(loss)
        norm = nn.utils.clip_grad_norm_(parameters, training.settings.clip)
        _refuse_not_finite(loss, norm, progress.step)
        rate = learning_rate(training.settings, training.steps, progress.step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

        anchor, positive = encoded.pooled.detach()[:2]
        step = Step(
            number=progress.step,
            loss=loss.item(),
            terms={name: term.item() for name, term in terms.items()},
            learning_rate=rate,
            gradient_norm=norm.item(),
            alignment=alignment(anchor, positive).item(),
            uniformity=uniformity(anchor).item(),
            sentences=batch.sentences,
        )
        progress.step += 1
        if not after_step(step):
            return


def learning_rate(settings: TrainSettings, steps: int, step: int) -> float:
    """The rate of update ``step`` of ``steps``: up from 0 in the warm-up, then down to 0."""
    if step < settings.warmup_steps:
        return settings.learning_rate * step / settings.warmup_steps
    return settings.learning_rate * (steps - step) / max(1, steps - settings.warmup_steps)


def trained(encoder: nn.Module, objective: nn.Module) -> list[nn.Parameter]:
    """The parameters that an update changes, in a fixed order."""
    return [p for part in (encoder, objective) for p in part.parameters() if p.requires_grad]


def _refuse_not_finite(loss: Tensor, norm: Tensor, step: int) -> None:
    if not (loss.isfinite() and norm.isfinite()):
        raise ContrasentError(
            f"step {step}: the loss is {loss.item()} and the gradient norm {norm.item()}; nothing "
            "was updated with them. Lower train.learning_rate, raise objective.temperature, or "
            "use --train.precision fp32"
        )
