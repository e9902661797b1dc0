"""Alignment and uniformity on rated pairs, measured while an encoder is trained."""

from __future__ import annotations

import logging

from accelerate import Accelerator

from contrasent.config import EvaluationSettings, Recipe
from contrasent.errors import DataError
from contrasent.evaluate.rated_pairs import RatedPairs
from contrasent.evaluate.trajectory import KEY, measurement
from contrasent.model.encoder import SentenceEncoder
from contrasent.train.log import MetricsFile

logger = logging.getLogger("contrasent")


def followed_pairs(settings: EvaluationSettings) -> RatedPairs | None:
    """The pairs that are measured during training; None if nothing is to be measured.

    Raises:
        ConfigError: ``geometry_pairs`` cannot be read.
        DataError: the data is missing or damaged, or no pair is positive.
    """
    if settings.geometry_every is None:
        return None
    try:
        pairs = RatedPairs.read(settings.geometry_pairs, settings.data_dir)
    except DataError as error:
        raise DataError(f"{error}\nOr train without: --evaluation.geometry_every null") from error
    if len(pairs.sentences) < 2:
        raise DataError(f"{pairs.label}: uniformity needs two different sentences; there is one")
    return pairs


class GeometryLog:
    """Writes the trajectory of an encoder: SimCSE's Figure 2.

    A measurement draws no random number and leaves every part in its mode, so the run goes on as
    it would have without.
    """

    def __init__(
        self, recipe: Recipe, pairs: RatedPairs | None, metrics: MetricsFile, steps: int
    ) -> None:
        """Keep where to write.

        Args:
            recipe: of the run.
            pairs: what is measured; None for nothing.
            metrics: the run's ``metrics.jsonl``.
            steps: updates in all; the encoder is measured after the last one too.
        """
        self._settings, self._trackers = recipe.evaluation, recipe.train.trackers
        self._pairs, self._metrics, self._steps = pairs, metrics, steps

    def is_due(self, step: int) -> bool:
        """Whether the encoder is measured after ``step`` updates."""
        every = self._settings.geometry_every
        return bool(self._pairs and every) and (step == self._steps or step % (every or 1) == 0)

    def measure(self, step: int, encoder: SentenceEncoder, accelerator: Accelerator) -> None:
        """Measure the encoder after ``step`` updates if it is due.

        Raises:
            CheckpointError: an embedding is zero or not finite.
        """
        if self._pairs is None or not self.is_due(step):
            return
        found = measurement(encoder, self._pairs, self._settings.precision)
        self._metrics.write({"step": step, KEY: found})
        said = {name: found[name] for name in ("alignment", "uniformity")}
        if self._trackers:
            accelerator.log({f"{KEY}_{name}": v for name, v in said.items()}, step=step)
        numbers = ", ".join(f"{name} {value:.4f}" for name, value in said.items())
        logger.info("step %d: %s (%s)", step, numbers, self._pairs.label)
