"""What records tell of an encoder beside its numbers."""

from __future__ import annotations

import typing

import numpy as np
from numpy.typing import NDArray

from contrasent.evaluate.figures import Figure, Similarities, figures
from contrasent.evaluate.protocols import Protocol
from contrasent.evaluate.read import Task
from contrasent.evaluate.statistics import Bootstrap
from contrasent.metrics import METRICS
from contrasent.model.backbones.base import UNBOUNDED
from contrasent.records import Record, installed_versions

PRECISIONS = ("bf16", "fp32", "int8")
"""``int8`` is what the engine of that name computes in."""


Embeddings = NDArray[np.float32]


class Encoder(typing.Protocol):
    """What a score needs of an encoder.

    ``head_name``, ``transform_described``, ``max_tokens`` and ``engine`` go into the records too
    where an encoder has them.
    """

    @property
    def name(self) -> str:
        """The name or folder it was loaded from."""

    @property
    def pooler(self) -> str:
        """How token states become the embedding."""

    def encode(self, sentences: list[str], *, precision: str, show_progress: bool) -> np.ndarray:
        """Embed N sentences, ``(N, D)``."""


class Described:
    """Makes the records of one encoder."""

    def __init__(
        self,
        encoder: Encoder,
        precision: str,
        seed: int | None,
        protocol: Protocol | None,
        bootstrap: Bootstrap | None,
    ) -> None:
        """Keep what all of them have in common, as :meth:`StsTasks.records` takes it."""
        self._of_encoder = of_encoder(encoder, precision, seed)
        self._protocol = protocol
        self._bootstrap = bootstrap

    def records(self, task: Task, found: Similarities, regressor: str | None) -> list[Record]:
        """Every metric, aggregation and subset of one task.

        Args:
            task: what was scored.
            found: its similarities.
            regressor: what predicted them; None for cosines.

        Raises:
            DataError: a number does not exist.
        """
        return [
            self.record(task, figure, regressor)
            for metric in METRICS
            for figure in figures(task, found, metric, self._drawn(metric))
        ]

    def record(self, task: Task, figure: Figure, regressor: str | None = None) -> Record:
        """One number of a task with all that is known of it."""
        return Record(
            task=task.name.name,
            subset=figure.subset,
            split=task.name.split,
            metric=figure.metric,
            aggregation=figure.aggregation,
            value=figure.value,
            pairs=figure.pairs,
            protocol=self._named(figure),
            regressor=regressor,
            interval=figure.interval,
            data_sha256=task.sha256,
            **self._of_encoder,
        )

    def _drawn(self, metric: str) -> Bootstrap | None:
        asked = self._protocol is None or metric in self._protocol.metrics
        return self._bootstrap if asked else None

    def _named(self, figure: Figure) -> str | None:
        """The protocol, where the figure is the number it reports."""
        asked = self._protocol
        reported = asked and asked.aggregation == figure.aggregation
        return asked.name if asked and reported and figure.metric in asked.metrics else None


def of_encoder(encoder: Encoder, precision: str, seed: int | None) -> dict[str, typing.Any]:
    """What every record of an encoder says of it, by the record's fields."""
    name = getattr(encoder, "engine", None)
    engine = None if name == "torch" else name
    limit = getattr(encoder, "max_tokens", None) or UNBOUNDED
    return {
        "encoder": encoder.name,
        "pooler": encoder.pooler,
        "head": getattr(encoder, "head_name", None),
        "transform": getattr(encoder, "transform_described", None),
        "max_tokens": limit if limit < UNBOUNDED else None,
        "engine": engine,
        "precision": precision,
        "seed": seed,
        "versions": installed_versions(engine),
    }
