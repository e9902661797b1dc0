"""Learning rate schedules: the rate of every update."""

from __future__ import annotations

import math

from contrasent.settings import TrainSettings

_RATIO = 32
"""Of the largest rate of the slanted triangle to the smallest (Howard and Ruder 2018, eq. 3)."""


def warmup_steps(settings: TrainSettings, steps: int) -> int:
    """Updates over which the rate rises, of a run of ``steps``: a share of them is rounded up."""
    return settings.warmup_steps or math.ceil(settings.warmup_share * steps)


def decayed_factor(settings: TrainSettings, factor: float, *, is_best: bool) -> float:
    """The factor of the rate from an evaluation on in ``plateau``; 1 in other schedules.

    Args:
        settings: of the recipe.
        factor: the same before that evaluation.
        is_best: whether the dev score was a new best, or there is none.
    """
    if settings.schedule != "plateau":
        return factor
    return factor * settings.rate_decay / (1 if is_best else settings.rate_shrink)


def below_min_rate(settings: TrainSettings, factor: float) -> bool:
    """Whether the rate is below the smallest that is worth a step."""
    return settings.min_rate is not None and settings.learning_rate * factor < settings.min_rate


def learning_rate(settings: TrainSettings, steps: int, step: int) -> float:
    """The rate of update ``step``, counted from 0, of ``steps``."""
    peak, warmup = settings.learning_rate, warmup_steps(settings, steps)
    if settings.schedule == "slanted_triangular":
        share = step / warmup if step < warmup else (steps - step) / max(1, steps - warmup)
        return peak * (1 + share * (_RATIO - 1)) / _RATIO
    if step < warmup:
        return peak * step / warmup
    if settings.schedule == "linear":
        return peak * (steps - step) / max(1, steps - warmup)
    reached = [number for number in settings.rate_steps if number <= step]
    return settings.rate_steps[max(reached)] if reached else peak
