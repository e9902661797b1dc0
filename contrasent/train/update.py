"""One update: the learning rate, the clipped gradient, AdamW."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from contrasent.config import TrainSettings


def learning_rate(settings: TrainSettings, steps: int, step: int) -> float:
    """The rate of update ``step`` of ``steps``: up from 0 in the warm-up, then down to 0."""
    if step < settings.warmup_steps:
        return settings.learning_rate * step / settings.warmup_steps
    return settings.learning_rate * (steps - step) / max(1, steps - settings.warmup_steps)


def trained(*parts: nn.Module | None) -> list[nn.Parameter]:
    """The parameters of the ``parts`` there are that an update changes, in a fixed order.

    One that two parts share, such as a decoder tied to the embeddings, is there once.
    """
    there = [part for part in parts if part is not None]
    found = (p for part in there for p in part.parameters() if p.requires_grad)
    return list(dict.fromkeys(found))


def gradient_norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    """The 2-norm of the gradient of all parameters together, on their device."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients or gradients[0].device.type != "cpu":
        return nn.utils.get_total_norm(gradients)
    # A dot product reads a gradient at the speed of memory, torch's norm at a third of it.
    flat = [gradient.flatten() for gradient in gradients]
    return torch.stack([torch.dot(g, g) for g in flat]).sum().sqrt()


def update(optimizer: Optimizer, rate: float, norm: Tensor, clip: float) -> None:
    """Make the step of a fused optimiser with gradients clipped to ``clip``, and forget them.

    The same as ``clip_grad_norm_`` before the step, but the optimiser divides while it reads the
    gradients, so that they are not read and written once more.

    Args:
        optimizer: fused.
        rate: its learning rate for this update.
        norm: of the gradient of all its parameters together.
        clip: the largest norm it may have.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.grad_scale = ((norm + 1e-6) / clip).clamp(min=1)  # type: ignore[attr-defined]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
