"""Scores of one encoder: values, intervals and records, and what could not be scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from contrasent.errors import DataError
from contrasent.evaluation.bootstrap import Bootstrap, Matrix, Ratio, interval, resampled
from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.protocols import AGGREGATIONS
from contrasent.evaluation.sts_data import Task
from contrasent.evaluation.task_names import TaskName
from contrasent.metrics import METRICS, Vector
from contrasent.records import Interval, Record

Similarities = tuple[Vector, ...]
"""Of each subset of a task, ``(N,)``: cosines, or scores that a regressor predicts."""


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
    """Records of one encoder, and what could not be computed.

    Attributes:
        records: every metric, aggregation and subset.
        problems: tasks without a record.
        similarities: what correlations rest on, by the label of the task.
        ratios: what other scores rest on, by task and metric.
        notes: what is to be known of the records beside their numbers.
    """

    records: tuple[Record, ...] = ()
    problems: tuple[Problem, ...] = ()
    similarities: Mapping[str, Similarities] = field(default_factory=dict)
    ratios: Mapping[tuple[TaskName, str], Ratio] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def together(cls, parts: Sequence[Scores]) -> Scores:
        """Several of one encoder, in their order."""
        return cls(
            tuple(record for part in parts for record in part.records),
            tuple(problem for part in parts for problem in part.problems),
            {label: columns for part in parts for label, columns in part.similarities.items()},
            {column: ratio for part in parts for column, ratio in part.ratios.items()},
            tuple(note for part in parts for note in part.notes),
        )


@dataclass(frozen=True, slots=True)
class Score:
    """A number on its way into a record."""

    subset: str
    metric: str
    aggregation: str
    value: float
    pairs: int
    interval: Interval | None = None

    def record(
        self,
        task: Task,
        use: EncoderUse,
        protocol: str | None = None,
        regressor: str | None = None,
    ) -> Record:
        """The number of a task with all that is known of it."""
        return Record(
            task=task.name.name,
            subset=self.subset,
            split=task.name.split,
            metric=self.metric,
            aggregation=self.aggregation,
            value=self.value,
            pairs=self.pairs,
            protocol=protocol,
            regressor=regressor,
            interval=self.interval,
            data_sha256=task.sha256,
            **use.record_fields(),
        )


def correlations(
    task: Task, similarities: Similarities, metric: str, bootstrap: Bootstrap | None = None
) -> list[Score]:
    """The task's subsets, then the aggregations, in one metric.

    Raises:
        DataError: a number does not exist, as all similarities or all scores are the same.
    """
    correlation = METRICS[metric]
    each = []
    for subset, column in zip(task.subsets, similarities, strict=True):
        try:
            each.append(correlation(column, subset.gold))
        except DataError as error:
            where = f"{task.name.heading} {subset.name}".strip()
            raise DataError(f"{where}: no {metric} correlation: {error}") from error
    gold = np.concatenate([subset.gold for subset in task.subsets])
    pairs = [len(subset.gold) for subset in task.subsets]
    aggregated = {
        "all": correlation(np.concatenate(similarities), gold),
        "mean": float(np.average(each)),
        "wmean": float(np.average(each, weights=pairs)),
    }
    sure = _intervals(task, similarities, metric, bootstrap) if bootstrap else {}
    named = [(s.name, v, n) for s, v, n in zip(task.subsets, each, pairs, strict=True)]
    return [
        *(Score(s, metric, "subset", value, n, sure.get(s)) for s, value, n in named if s),
        *(Score("", metric, k, v, sum(pairs), sure.get(k)) for k, v in aggregated.items()),
    ]


def aggregation_draws(
    task: Task,
    similarities: Sequence[Similarities],
    metric: str,
    aggregation: str,
    bootstrap: Bootstrap,
) -> Matrix:
    """One aggregation of K encoders in the same R resamples, ``(K, R)``.

    ``all`` draws from all pairs of the task together, ``mean`` and ``wmean`` within each subset.
    """
    if aggregation == "all" or len(task.subsets) == 1:
        gold = np.concatenate([subset.gold for subset in task.subsets])
        columns = [np.concatenate(of_encoder) for of_encoder in similarities]
        return resampled(metric, columns, gold, bootstrap, task.name.label)
    each = _subset_draws(task, similarities, metric, bootstrap)
    return _mean_draws(task, list(each.values()), aggregation)


def _intervals(
    task: Task, similarities: Similarities, metric: str, bootstrap: Bootstrap
) -> Mapping[str, Interval | None]:
    """Of each subset by its name, and of each aggregation."""
    whole = aggregation_draws(task, [similarities], metric, "all", bootstrap)
    if len(task.subsets) == 1:
        return dict.fromkeys(AGGREGATIONS, interval(whole[0], bootstrap))
    each = _subset_draws(task, [similarities], metric, bootstrap)
    draws = {
        **each,
        "all": whole,
        "mean": _mean_draws(task, list(each.values()), "mean"),
        "wmean": _mean_draws(task, list(each.values()), "wmean"),
    }
    return {name: interval(columns[0], bootstrap) for name, columns in draws.items()}


def _subset_draws(
    task: Task, similarities: Sequence[Similarities], metric: str, bootstrap: Bootstrap
) -> dict[str, Matrix]:
    draws = {}
    for place, subset in enumerate(task.subsets):
        columns = [of_encoder[place] for of_encoder in similarities]
        stream = f"{task.name.label} {subset.name}"
        draws[subset.name] = resampled(metric, columns, subset.gold, bootstrap, stream)
    return draws


def _mean_draws(task: Task, each: Sequence[Matrix], aggregation: str) -> Matrix:
    pairs = [len(subset.gold) for subset in task.subsets]
    weights = pairs if aggregation == "wmean" else None
    means: Matrix = np.average(np.stack(each), axis=0, weights=weights)
    return means
