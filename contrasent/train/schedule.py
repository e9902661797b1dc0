"""The learning rate of every update, as a function of the settings and the update's number."""

from __future__ import annotations

import math

from contrasent.config import TrainSettings
from contrasent.errors import ConfigError

_RATIO = 32
"""Of the largest rate of the slanted triangle to the smallest (Howard and Ruder 2018, eq. 3)."""


def refuse_at_odds(settings: TrainSettings) -> None:
    """Refuse settings of which one would do nothing.

    Raises:
        ConfigError: naming both.
    """
    if settings.warmup_steps and settings.warmup_share:
        raise ConfigError(
            f"train.warmup_steps is {settings.warmup_steps} and train.warmup_share "
            f"{settings.warmup_share:g}, which both say how long the warm-up is; give one of them"
        )
    if (settings.schedule == "steps") != bool(settings.rate_steps):
        said = "empty" if not settings.rate_steps else f"{settings.rate_steps}"
        raise ConfigError(
            f"train.schedule is {settings.schedule} and train.rate_steps is {said}; they belong "
            "together, as in schedule steps with rate_steps '{500: 1e-5, 1000: 5e-6}'"
        )
    if settings.optimizer == "rmsprop" and not settings.bias_correction:
        raise ConfigError(
            "train.bias_correction is false, but train.optimizer rmsprop has none to leave out; "
            "leave it at true"
        )


def warmup_steps(settings: TrainSettings, steps: int) -> int:
    """Updates over which the rate rises, of a run of ``steps``: a share of them is rounded up."""
    return settings.warmup_steps or math.ceil(settings.warmup_share * steps)


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
