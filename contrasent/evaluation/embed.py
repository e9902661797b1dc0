"""Embeddings for a score: each text once, and what records say of the encoder.

Shapes: M texts, N distinct ones, D embedding width.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from contrasent.errors import CheckpointError
from contrasent.evaluation.bootstrap import Bootstrap
from contrasent.evaluation.protocols import Protocol
from contrasent.evaluation.scores import Score, Similarities, figures
from contrasent.evaluation.sts_data import Task
from contrasent.metrics import METRICS
from contrasent.model.backbones.base import UNBOUNDED
from contrasent.records import Record, installed_versions

PRECISIONS = ("bf16", "fp32", "int8")
"""``int8`` is what the engine of that name computes in."""


Embeddings = NDArray[np.float32]


class DescribedEncoder(typing.Protocol):
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
        encoder: DescribedEncoder,
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

    def record(self, task: Task, figure: Score, regressor: str | None = None) -> Record:
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

    def _named(self, figure: Score) -> str | None:
        """The protocol, where the figure is the number it reports."""
        asked = self._protocol
        reported = asked and asked.aggregation == figure.aggregation
        return asked.name if asked and reported and figure.metric in asked.metrics else None


def of_encoder(
    encoder: DescribedEncoder, precision: str, seed: int | None
) -> dict[str, typing.Any]:
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


Places = NDArray[np.int64]


def distinct(texts: Iterable[str]) -> tuple[list[str], Places]:
    """Each of M texts once, in the order in which they first come, and where each stands there.

    Returns:
        N texts, and places ``(M,)`` among them.
    """
    places: dict[str, int] = {}
    found = [places.setdefault(text, len(places)) for text in texts]
    return list(places), np.array(found, dtype=np.int64)


def encoded(
    encoder: DescribedEncoder, texts: Sequence[str], *, precision: str, show_progress: bool
) -> Embeddings:
    """One row per text, ``(N, D)``, whatever is in it.

    Raises:
        CheckpointError: the encoder gives another number of rows.
    """
    found = encoder.encode(list(texts), precision=precision, show_progress=show_progress)
    if found.ndim != 2 or len(found) != len(texts):
        raise CheckpointError(f"{encoder.name} gave a matrix {found.shape} for {len(texts)} texts")
    return found


def require_usable(
    name: str, texts: Sequence[str], rows: np.ndarray, *, of: str = "", zeros: bool = False
) -> None:
    """Make sure that every text has an embedding that a score can be computed from.

    Args:
        name: the encoder's.
        texts: N texts.
        rows: their embeddings ``(N, D)``.
        of: the task they are of; empty where the caller's caller puts it before the message.
        zeros: whether an embedding of zeros is of use, as that of a sentence without known words
            is to a classifier.

    Raises:
        CheckpointError: an embedding has a NaN or infinite number, or is zero; the message counts
            them and has the first text.
    """
    finite = np.isfinite(rows).all(axis=1)
    directed = np.logical_or(rows.any(axis=1), zeros)
    usable = finite & directed
    if usable.all():
        return
    flaws = [
        *([] if directed.all() else ["of zeros"]),
        *([] if finite.all() else ["with NaN or infinite numbers"]),
    ]
    raise CheckpointError(
        f"{of and f'{of}: '}{name} gives {int((~usable).sum())} of {len(usable)} texts an "
        f"embedding {' or '.join(flaws)}, so there is no score; the first is "
        f"{texts[int(np.argmin(usable))]!r}"
    )
