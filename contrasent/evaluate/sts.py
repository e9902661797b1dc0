"""Scores of the STS tasks: each distinct sentence encoded once, cosines, rank correlations.

Shapes: N distinct sentences of all tasks, D embedding width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from contrasent.errors import CheckpointError, ConfigError, DataError, pick
from contrasent.evaluate.read import Subset, Task, load
from contrasent.evaluate.tasks import task_names
from contrasent.metrics import METRICS, Vector, pair_cosines
from contrasent.records import Record, installed_versions

AGGREGATIONS = ("all", "mean", "wmean")
"""One correlation over all pairs; mean over the subsets; that mean weighted by their pairs."""

PRECISIONS = ("bf16", "fp32", "int8")
"""``int8`` is what the engine of that name computes in."""


class Encoder(Protocol):
    """What a score needs of an encoder.

    ``head_name``, ``max_tokens`` and ``engine`` go into the records too where an encoder has
    them.
    """

    @property
    def name(self) -> str:
        """The name or folder it was loaded from."""

    @property
    def pooler(self) -> str:
        """How token states become the embedding."""

    def encode(self, sentences: list[str], *, precision: str, show_progress: bool) -> np.ndarray:
        """Embed N sentences, ``(N, D)``."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a task has no score.

    Attributes:
        task: its label, such as ``stsb-dev``.
        message: what is wrong and what to do.
        missing: the task's data is not there, as opposed to damaged or impossible to score.
    """

    task: str
    message: str
    missing: bool = False


@dataclass(frozen=True, slots=True)
class Scores:
    """What one encoder reached, and what could not be computed."""

    records: tuple[Record, ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class _Figure:
    """A number on its way into a record."""

    subset: str
    metric: str
    aggregation: str
    value: float
    pairs: int


class StsTasks:
    """Tasks read once, to be scored as often as one likes.

    Attributes:
        tasks: what was read.
        sentences: the N distinct sentences of all of them.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tuple(tasks)
        places: dict[str, int] = {}
        for subset in (s for task in tasks for s in task.subsets):
            for sentence in (*subset.first, *subset.second):
                places.setdefault(sentence, len(places))
        self.sentences = list(places)
        self._places = places

    def score(
        self,
        encoder: Encoder,
        *,
        precision: str = "fp32",
        metric: str = "spearman",
        aggregation: str = "all",
        show_progress: bool = False,
    ) -> dict[str, float]:
        """One number per task, by its label, such as ``{"stsb-dev": 0.81}``.

        Raises:
            ConfigError: no such metric, aggregation or precision.
            CheckpointError: an embedding has a NaN or infinite number, or is zero.
            DataError: a number does not exist because all cosines are equal.
        """
        pick("metric", metric, METRICS)
        pick("aggregation", aggregation, AGGREGATIONS)
        embeddings = self._embed(encoder, precision, show_progress)
        scores = {}
        for task in self.tasks:
            for figure in self._figures(task, embeddings, metric):
                if figure.aggregation == aggregation:
                    scores[task.name.label] = figure.value
        return scores

    def records(
        self,
        encoder: Encoder,
        *,
        precision: str = "fp32",
        seed: int | None = None,
        show_progress: bool = False,
    ) -> Scores:
        """Every metric, aggregation and subset of every task.

        A task for which a number does not exist has no record; the problem says why.

        Args:
            encoder: what is measured.
            precision: ``fp32``, ``bf16``, or what the encoder's engine computes in.
            seed: the seed of the training run that made the encoder, for the records.
            show_progress: a progress bar while encoding.

        Raises:
            ConfigError: no such precision.
            CheckpointError: an embedding has a NaN or infinite number, or is zero.
        """
        embeddings = self._embed(encoder, precision, show_progress)
        engine = _engine(encoder)
        versions = installed_versions(engine)
        records: list[Record] = []
        problems: list[Problem] = []
        for task in self.tasks:
            try:
                figures = [f for metric in METRICS for f in self._figures(task, embeddings, metric)]
            except DataError as error:
                problems.append(Problem(task.name.label, str(error)))
                continue
            records += [
                Record(
                    task=task.name.name,
                    subset=figure.subset,
                    split=task.name.split,
                    metric=figure.metric,
                    aggregation=figure.aggregation,
                    value=figure.value,
                    pairs=figure.pairs,
                    encoder=encoder.name,
                    pooler=encoder.pooler,
                    head=getattr(encoder, "head_name", None),
                    max_tokens=getattr(encoder, "max_tokens", None),
                    engine=engine,
                    precision=precision,
                    seed=seed,
                    data_sha256=task.sha256,
                    versions=versions,
                )
                for figure in figures
            ]
        return Scores(tuple(records), tuple(problems))

    def _embed(self, encoder: Encoder, precision: str, show_progress: bool) -> NDArray[np.float32]:
        pick("precision", precision, PRECISIONS)
        if not self.sentences:
            raise ConfigError("no task to score")
        embeddings = encoder.encode(
            self.sentences, precision=precision, show_progress=show_progress
        )
        if embeddings.ndim != 2 or len(embeddings) != len(self.sentences):
            raise CheckpointError(
                f"{encoder.name} gave a matrix {embeddings.shape} for {len(self.sentences)} "
                "sentences"
            )
        usable = np.isfinite(embeddings).all(axis=1) & embeddings.any(axis=1)
        if not usable.all():
            row = int(np.argmin(usable))
            raise CheckpointError(
                f"{encoder.name} gives {int((~usable).sum())} of {len(usable)} sentences an "
                "embedding of zeros or with NaN or infinite numbers, so there are no scores; "
                f"the first is {self.sentences[row]!r}"
            )
        return embeddings

    def _figures(self, task: Task, embeddings: NDArray[np.float32], metric: str) -> list[_Figure]:
        """The task's subsets, then the aggregations, in one metric."""
        correlation = METRICS[metric]
        cosines = [self._cosines(subset, embeddings) for subset in task.subsets]
        each = []
        for subset, found in zip(task.subsets, cosines, strict=True):
            try:
                each.append(correlation(found, subset.gold))
            except DataError as error:
                where = f"{task.name.heading} {subset.name}".strip()
                raise DataError(f"{where}: no {metric} correlation: {error}") from error
        gold = np.concatenate([subset.gold for subset in task.subsets])
        pairs = [len(subset.gold) for subset in task.subsets]
        aggregated = {
            "all": correlation(np.concatenate(cosines), gold),
            "mean": float(np.average(each)),
            "wmean": float(np.average(each, weights=pairs)),
        }
        named = [(s.name, v, n) for s, v, n in zip(task.subsets, each, pairs, strict=True)]
        return [
            *(_Figure(s, metric, "subset", value, n) for s, value, n in named if s),
            *(_Figure("", metric, name, v, sum(pairs)) for name, v in aggregated.items()),
        ]

    def _cosines(self, subset: Subset, embeddings: NDArray[np.float32]) -> Vector:
        first, second = (
            embeddings[[self._places[sentence] for sentence in side]]
            for side in (subset.first, subset.second)
        )
        return pair_cosines(first, second)


def _engine(encoder: Encoder) -> str | None:
    name = getattr(encoder, "engine", None)
    return None if name == "torch" else name


def prepare(tasks: Sequence[str], data_dir: str | Path | None = None) -> StsTasks:
    """Read tasks once for repeated scoring, as training does with ``["stsb-dev"]``.

    Raises:
        ConfigError: a task is unknown.
        DataError: a task's data is missing or damaged.
    """
    return StsTasks([load(name, data_dir) for name in task_names(tasks)])
