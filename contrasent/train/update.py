"""One update: the clipped gradient, and the optimiser that makes the step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from contrasent.config import TrainSettings


def trained(*parts: nn.Module | None) -> list[nn.Parameter]:
    """The parameters of the ``parts`` there are that an update changes, in a fixed order.

    One that two parts share, such as a decoder tied to the embeddings, is there once.
    """
    there = [part for part in parts if part is not None]
    found = (p for part in there for p in part.parameters() if p.requires_grad)
    return list(dict.fromkeys(found))


def optimizer_of(settings: TrainSettings, parameters: Sequence[nn.Parameter]) -> Optimizer:
    """The optimiser that ``settings`` ask for, of ``parameters``."""
    if settings.optimizer == "rmsprop":
        return torch.optim.RMSprop(
            parameters,
            lr=settings.learning_rate,
            alpha=settings.betas[1],
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )
    if settings.optimizer == "sgd":
        rate, decay = settings.learning_rate, settings.weight_decay
        return torch.optim.SGD(parameters, lr=rate, weight_decay=decay)
    return torch.optim.AdamW(
        parameters,
        lr=settings.learning_rate,
        betas=(settings.betas[0], settings.betas[1]),
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        fused=True,
    )


def gradient_norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    """The 2-norm of the gradient of all parameters together, on their device."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients or gradients[0].device.type != "cpu":
        return nn.utils.get_total_norm(gradients)
    # A dot product reads a gradient at the speed of memory, torch's norm at a third of it.
    flat = [gradient.flatten() for gradient in gradients]
    return torch.stack([torch.dot(g, g) for g in flat]).sum().sqrt()


def set_rate(optimizer: Optimizer, settings: TrainSettings, rate: float, step: int) -> None:
    """Make ``rate`` that of update ``step``, counted from 0.

    Without ``bias_correction`` AdamW is to move by m / (sqrt(v) + eps). torch divides m by
    1 - beta1^t and v by 1 - beta2^t, which another rate, eps and decay undo exactly.
    """
    changed = {"lr": rate}
    if settings.optimizer == "adamw" and not settings.bias_correction:
        first, second = (1 - beta ** (step + 1) for beta in settings.betas)
        factor = first / math.sqrt(second)
        changed = {
            "lr": rate * factor,
            "eps": settings.eps / math.sqrt(second),
            "weight_decay": settings.weight_decay / factor,
        }
    for group in optimizer.param_groups:
        group.update(changed)


def update(optimizer: Optimizer, norm: Tensor, clip: float | None) -> None:
    """Make the step of an optimiser with gradients clipped to ``clip``, and forget them.

    The same as ``clip_grad_norm_`` before the step, but a fused optimiser divides while it reads
    the gradients, so that they are not read and written once more.

    Args:
        optimizer: whose rate is set.
        norm: of the gradient of all its parameters together.
        clip: the largest norm it may have; None leaves it as it is.
    """
    if clip is not None:
        scale = ((norm + 1e-6) / clip).clamp(min=1)
        if optimizer.defaults.get("fused"):
            optimizer.grad_scale = scale  # type: ignore[attr-defined]
        else:
            held = (p for group in optimizer.param_groups for p in group["params"])
            for gradient in (p.grad for p in held if p.grad is not None):
                gradient.div_(scale)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
