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
from contrasent.functional import alignment, uniformity
from contrasent.memory import keep_freed_memory
from contrasent.model.encoder import SentenceEncoder
from contrasent.objectives.base import Objective
from contrasent.profiling import part
from contrasent.train.embedding import embedding
from contrasent.train.readings import Measured, Readings, Step
from contrasent.train.schedule import learning_rate
from contrasent.train.state import Progress
from contrasent.train.update import gradient_norm, set_rate, trained, update


@dataclass(frozen=True, slots=True)
class Training:
    """The moving parts of a run.

    Attributes:
        encoder: embeds the sentences; of a run with two encoders, the first views.
        objective: what is minimised.
        optimizer: of the parameters of ``modules``.
        accelerator: takes the gradient, on its device.
        settings: how it is optimised.
        precision: of the matrix products, ``fp32`` or ``bf16``.
        steps: updates in all.
        twin: the second encoder, for all other views.
        fixed_dropout: all views of an example have the same dropout masks.
    """

    encoder: SentenceEncoder
    objective: Objective
    optimizer: Optimizer
    accelerator: Accelerator
    settings: TrainSettings
    precision: str
    steps: int
    twin: SentenceEncoder | None = None
    fixed_dropout: bool = False

    @property
    def modules(self) -> dict[str, nn.Module]:
        """What is trained, by the names that it has in a state."""
        found: dict[str, nn.Module] = {"encoder": self.encoder, "objective": self.objective}
        return found if self.twin is None else {**found, "twin": self.twin}


def run(
    training: Training,
    batches: Iterator[Batch],
    progress: Progress,
    is_due: Callable[[int], bool],
    after_steps: Callable[[list[Step]], bool],
) -> None:
    """Train from ``progress.step`` on.

    Args:
        training: what is trained, and how.
        batches: the batches from ``progress.step`` on.
        progress: moved on after each update.
        is_due: whether every step has to be known, and the weights seen, after so many updates.
        after_steps: told about the steps that are known by now; on an accelerator the newest is
            only when it is due. Stops the run by returning False.

    Raises:
        ContrasentError: the loss or the gradient is not finite.
    """
    objective, optimizer = training.objective, training.optimizer
    settings, device = training.settings, training.accelerator.device
    parameters, readings = trained(*training.modules.values()), Readings()
    embed = embedding(
        training.encoder,
        objective,
        settings,
        training.precision,
        twin=training.twin,
        fixed_dropout=training.fixed_dropout,
    )
    keep_freed_memory()
    for module in training.modules.values():
        module.train()
    for loaded in batches:
        batch = objective.prepare(loaded.to(device))
        with part("encoder"):
            encoded, backward_through_encoder = embed(batch)
        terms = objective(encoded, batch)
        loss = torch.stack(list(terms.values())).sum()
        with part("backward"):
            training.accelerator.backward(loss)
            backward_through_encoder()
        norm = gradient_norm(parameters)

        rate = learning_rate(settings, training.steps, progress.step) * progress.rate_factor
        measures = {**_geometry(encoded.pooled.detach(), objective.aligned), **terms.measures}
        measured = Measured(loss, norm, terms, measures)
        readings.send(progress.step, rate, batch, measured)
        # Read before the update where that costs nothing, so that none is made with a NaN.
        known = readings.take(everything=is_due(progress.step + 1))
        with part("update"):
            set_rate(optimizer, settings, rate, progress.step)
            update(optimizer, norm, settings.clip)
        progress.step += 1
        if known and not after_steps(known):
            return


def _geometry(pooled: Tensor, aligned: bool) -> dict[str, Tensor]:
    """Alignment and uniformity of ``(V, B, D)`` embeddings; nothing where there is one view."""
    if len(pooled) == 1:
        return {}
    found = {"alignment": alignment(*pooled[:2])} if aligned else {}
    return {**found, "uniformity": uniformity(pooled[0])}
