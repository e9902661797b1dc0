"""Embeddings for a score, and the scores of a task: subsets, aggregations, intervals.

Shapes: M texts, N distinct ones, D embedding width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from contrasent.errors import CheckpointError, DataError, pick
from contrasent.evaluation.intervals import (
    FEWEST_PAIRS,
    LEAST_ERROR,
    Bootstrap,
    PairGraph,
    Ratio,
    correlation_interval,
    influence,
)
from contrasent.evaluation.sts_data import Task
from contrasent.evaluation.task_names import TaskName
from contrasent.metrics import METRICS, Matrix, Vector
from contrasent.model.backbones.base import UNBOUNDED
from contrasent.model.conventions import Conventions, role_options, similarity_of
from contrasent.records import Interval, Record, installed_versions

Similarities = tuple[Vector, ...]
"""Of each subset of a task, ``(N,)``: cosines, or scores that a regressor predicts."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the task of a label such as ``stsb-dev`` has no score."""

    task: str
    message: str
    missing: bool = False


@dataclass(frozen=True, slots=True)
class Scores:
    """Records of one encoder, and what could not be computed."""

    records: tuple[Record, ...] = ()
    problems: tuple[Problem, ...] = ()
    # what correlations rest on, by the label of the task
    similarities: Mapping[str, Similarities] = field(default_factory=dict)
    # what other scores rest on, by task and metric
    ratios: Mapping[tuple[TaskName, str], Ratio] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what is to be known of the records beside their numbers

    @classmethod
    def together(cls, parts: Sequence[Scores]) -> Scores:
        """Several of one encoder, in their order."""
        return cls(
            tuple(chain.from_iterable(part.records for part in parts)),
            tuple(chain.from_iterable(part.problems for part in parts)),
            {label: columns for part in parts for label, columns in part.similarities.items()},
            {column: ratio for part in parts for column, ratio in part.ratios.items()},
            tuple(chain.from_iterable(part.notes for part in parts)),
        )


@dataclass(frozen=True)
class Score:
    """A number on its way into a record, whose fields these are."""

    metric: str
    value: float
    pairs: int
    aggregation: str = "all"
    subset: str = ""
    interval: Interval | None = None

    def record(
        self,
        name: TaskName,
        sha256: str,
        use: EncoderUse,
        roles: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Record:
        """The number with all that is known of its task and of the encoder.

        ``roles`` are the prompts of queries and documents.
        """
        known = {**vars(self), **use.record_fields(), **more}
        known["prompts"] = {**(known["prompts"] or {}), **(roles or {})} or None
        return Record(task=name.name, split=name.split, data_sha256=sha256, **known)


def correlations(
    task: Task, similarities: Similarities, metric: str, bootstrap: Bootstrap | None = None
) -> list[Score]:
    """The task's subsets, then the aggregations, in one metric; a DataError if one is none."""
    correlation = METRICS[metric]
    each = []
    for subset, column in zip(task.subsets, similarities, strict=True):
        try:
            each.append(correlation(column, subset.gold))
        except DataError as error:
            where = f"{task.name.heading} {subset.name}".strip()
            raise DataError(f"{where}: no {metric} correlation: {error}") from error
    pairs = [len(subset.gold) for subset in task.subsets]
    aggregated = {
        "all": correlation(np.concatenate(similarities), task.gold),
        "mean": float(np.average(each)),
        "wmean": float(np.average(each, weights=pairs)),
    }
    named = [it for it in zip(task.subsets, each, pairs, strict=True) if it[0].name]
    sure: dict[str, Interval] = {}
    if bootstrap and sum(pairs) >= FEWEST_PAIRS:
        values = aggregated | {it.name: value for it, value, n in named if n >= FEWEST_PAIRS}
        moves = influences(task, similarities, metric)
        covariance = PairGraph.of(*task.sides).covariance(np.stack([moves[it] for it in values]))
        deviations = np.sqrt(np.diagonal(covariance)).tolist()
        for (name, value), deviation in zip(values.items(), deviations, strict=True):
            if deviation >= LEAST_ERROR * abs(value):
                sure[name] = correlation_interval(value, deviation, bootstrap.confidence)
    return [
        *(
            Score(metric, value, n, "subset", subset.name, sure.get(subset.name))
            for subset, value, n in named
        ),
        *(Score(metric, v, sum(pairs), k, "", sure.get(k)) for k, v in aggregated.items()),
    ]


def influences(task: Task, similarities: Similarities, metric: str) -> dict[str, Vector]:
    """How much each of N pairs moves the aggregations, and the subsets by name: ``(N,)``."""
    each = [
        influence(metric, scores, subset.gold)
        for subset, scores in zip(task.subsets, similarities, strict=True)
    ]
    shares = np.array([len(column) for column in each]) / len(task.gold)
    rows = _side_by_side(each)
    return {
        **{subset.name: row for subset, row in zip(task.subsets, rows, strict=True)},
        "all": influence(metric, np.concatenate(similarities), task.gold),
        "mean": rows.mean(axis=0),
        "wmean": shares @ rows,
    }


def joint_covariance(tasks: Sequence[Task], moves: Sequence[Vector]) -> Matrix:
    """Covariance ``(K, K)`` of an estimate per task, whose pairs move it by ``moves``, ``(N,)``.

    Tasks share sentences: 1,006 of the 1,377 distinct pairs of STS-B test are also in STS12-16.
    """
    first, second = zip(*(task.sides for task in tasks), strict=True)
    graph = PairGraph.of(chain.from_iterable(first), chain.from_iterable(second))
    return graph.covariance(_side_by_side(moves))


def _side_by_side(columns: Sequence[Vector]) -> Matrix:
    """Each column in a row of its own, beside the others', zeros elsewhere."""
    from scipy.linalg import block_diag

    rows: Matrix = block_diag(*columns)
    return rows


PRECISIONS = ("bf16", "fp32", "int8")
"""``int8`` is what the engine of that name computes in."""

Embeddings = NDArray[np.float32]
Places = NDArray[np.int64]


class DescribedEncoder(Protocol):
    """The part of an encoder that a score needs; :class:`contrasent.model.protocol.Encoder` has it.

    Records tell ``head_name``, ``transform_described``, ``max_tokens`` and ``engine`` too, where an
    encoder has them.
    """

    @property
    def name(self) -> str:
        """The name or folder it was loaded from."""

    @property
    def pooler(self) -> str:
        """How token states become the embedding."""

    @property
    def encode(self) -> Callable[..., np.ndarray]:
        """Embed a list of N sentences, ``(N, D)``, in a ``precision``, with ``show_progress``.

        One with prompts takes a ``prompt`` too.
        """


@dataclass(frozen=True, slots=True)
class EncoderUse:
    """An encoder, whose mode (training or not) stays as it is, and how it is used."""

    encoder: DescribedEncoder
    precision: str = "fp32"  # ``fp32``, ``bf16``, or what the encoder's engine computes in
    seed: int | None = None  # the seed of the training run that made the encoder, for the records
    show_progress: bool = False  # a progress bar while encoding

    def __post_init__(self) -> None:
        pick("precision", self.precision, PRECISIONS)

    @property
    def similarity(self) -> str:
        """The function by which its embeddings are compared, such as ``cosine`` or ``dot``."""
        return similarity_of(self.encoder)

    def embed(
        self, texts: Sequence[str], *, of: str = "", zeros: bool = False, role: str | None = None
    ) -> Embeddings:
        """As :meth:`encode`, of rows that can be used, as :func:`require_usable` says."""
        rows = self.encode(texts, role)
        require_usable(self.encoder.name, texts, rows, of=of, zeros=zeros)
        return rows

    def encode(self, texts: Sequence[str], role: str | None = None) -> Embeddings:
        """One row per text, ``(N, D)``, whatever is in it; another shape is a CheckpointError.

        The texts get the encoder's prompt for their ``role``, query or document, or its default.
        """
        how: dict[str, Any] = {} if role is None else role_options(self.encoder, role)
        rows = self.encoder.encode(
            list(texts), precision=self.precision, show_progress=self.show_progress, **how
        )
        if rows.ndim != 2 or len(rows) != len(texts):
            raise CheckpointError(
                f"{self.encoder.name} gave a matrix {rows.shape} for {len(texts)} texts"
            )
        return rows

    def record_fields(self) -> dict[str, Any]:
        """The fields of a record that describe the encoder."""
        name = getattr(self.encoder, "engine", None)
        engine = None if name == "torch" else name
        limit = getattr(self.encoder, "max_tokens", None) or UNBOUNDED
        conventions: Conventions = getattr(self.encoder, "conventions", Conventions())
        prompt = conventions.resolve()
        return {
            "encoder": self.encoder.name,
            "pooler": self.encoder.pooler,
            "head": getattr(self.encoder, "head_name", None),
            "transform": getattr(self.encoder, "transform_described", None),
            "max_tokens": limit if limit < UNBOUNDED else None,
            "prompts": {"default": prompt} if prompt else None,
            "dimensions": conventions.truncate_dim,
            "engine": engine,
            "similarity": None if self.similarity == "cosine" else self.similarity,
            "precision": self.precision,
            "seed": self.seed,
            "versions": installed_versions(),
        }


def distinct(texts: Iterable[str]) -> tuple[list[str], Places]:
    """N distinct texts of M, in their order, and the place ``(M,)`` of each among them."""
    places: dict[str, int] = {}
    numbers = [places.setdefault(text, len(places)) for text in texts]
    return list(places), np.array(numbers, dtype=np.int64)


def require_usable(
    name: str, texts: Sequence[str], rows: np.ndarray, *, of: str = "", zeros: bool = False
) -> None:
    """Make sure that each of N texts has one of the embeddings ``(N, D)`` of which scores exist.

    CheckpointError if one has a NaN or infinite number, or, without ``zeros``, is zero. ``name`` is
    the encoder's, ``of`` the task where no caller names it.
    """
    finite = np.isfinite(rows).all(axis=1)
    directed = np.logical_or(rows.any(axis=1), zeros)
    usable = finite & directed
    if not usable.all():
        flaws = ["of zeros"] * (not directed.all())
        flaws += ["with NaN or infinite numbers"] * (not finite.all())
        raise CheckpointError(
            f"{of and f'{of}: '}{name} gives {int((~usable).sum())} of {len(usable)} texts an "
            f"embedding {' or '.join(flaws)}, so there is no score; the first is "
            f"{texts[int(np.argmin(usable))]!r}"
        )
