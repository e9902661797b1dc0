"""Which encoder of a run is kept, and how it scores on the dev task."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from contrasent.config import EncoderSettings, Recipe
from contrasent.errors import ConfigError
from contrasent.evaluate.sts import StsTasks
from contrasent.model.encoder import SentenceEncoder

logger = logging.getLogger("contrasent")


@dataclass(frozen=True, slots=True)
class Scored:
    """What an evaluation found.

    Attributes:
        name: of the dev task.
        score: of the encoder that is kept, in [-1, 1].
        other: of the one beside it; None if that was not evaluated.
        twin_is_better: the one that is kept is the twin.
    """

    name: str
    score: float
    other: float | None
    twin_is_better: bool

    @property
    def told(self) -> str:
        """The scores in words, x 100."""
        beside = "" if self.other is None else f" (the other encoder {self.other * 100:.2f})"
        return f"{self.name} Spearman {self.score * 100:.2f}{beside}"


def scored(
    dev: StsTasks,
    encoder: SentenceEncoder,
    twin: SentenceEncoder | None,
    recipe: Recipe,
) -> Scored:
    """Evaluate the encoder, and its twin where the better one is kept; of equal ones the first."""
    precision = recipe.evaluation.precision
    ((name, first),) = dev.score(encoder, precision=precision).items()
    if twin is None or recipe.encoder.keep == "first":
        return Scored(name, first, None, twin_is_better=False)
    (second,) = dev.score(twin, precision=precision).values()
    best, other = max(first, second), min(first, second)
    return Scored(name, best, other, twin_is_better=second > first)


def check_keep(settings: EncoderSettings, dev: StsTasks | None) -> None:
    """Make sure that there are two encoders where the better is to be kept.

    Raises:
        ConfigError: there is one.
    """
    if settings.keep == "first":
        return
    if settings.encoders != "twin":
        raise ConfigError(
            "encoder.keep is better, but encoder.encoders is shared, so there is one encoder; "
            "choose encoder.encoders twin, or encoder.keep first"
        )
    if dev is None:
        logger.warning(
            "encoder.keep is better, but without a dev task neither encoder is known to be; the "
            "one of the first view is kept"
        )
