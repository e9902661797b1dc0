"""The learning rate of every update, as a function of the settings and the update's number."""

from __future__ import annotations

import math

from contrasent.errors import ConfigError
from contrasent.settings import TrainSettings

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
    if settings.optimizer != "adamw" and not settings.bias_correction:
        raise ConfigError(
            f"train.bias_correction is false, but train.optimizer {settings.optimizer} has none to "
            "leave out; leave it at true"
        )
    lowered = {
        "rate_decay": settings.rate_decay != 1,
        "rate_shrink": settings.rate_shrink != 1,
        "min_rate": settings.min_rate is not None,
    }
    given = [name for name, is_given in lowered.items() if is_given]
    if given and settings.schedule != "plateau":
        raise ConfigError(
            f"train.schedule is {settings.schedule}, which has no use for train.{given[0]}; leave "
            "that out, or choose train.schedule plateau"
        )


def warmup_steps(settings: TrainSettings, steps: int) -> int:
    """Updates over which the rate rises, of a run of ``steps``: a share of them is rounded up."""
    return settings.warmup_steps or math.ceil(settings.warmup_share * steps)


def decayed_factor(settings: TrainSettings, factor: float, *, is_best: bool) -> float:
    """What ``plateau`` multiplies the rate with from an evaluation on; 1 in other schedules.

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
