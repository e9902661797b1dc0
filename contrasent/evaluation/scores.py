"""Scores of a task: subsets, aggregations, intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from contrasent.errors import DataError
from contrasent.evaluation.bootstrap import Bootstrap, Matrix, interval, resampled
from contrasent.evaluation.protocols import AGGREGATIONS
from contrasent.evaluation.sts_data import Task
from contrasent.metrics import METRICS, Vector
from contrasent.records import Interval

Similarities = tuple[Vector, ...]
"""Of each subset of a task, ``(N,)``: cosines, or scores that a regressor predicts."""


@dataclass(frozen=True, slots=True)
class Score:
    """A number on its way into a record."""

    subset: str
    metric: str
    aggregation: str
    value: float
    pairs: int
    interval: Interval | None = None


def figures(
    task: Task, similarities: Similarities, metric: str, bootstrap: Bootstrap | None = None
) -> list[Score]:
    """The task's subsets, then the aggregations, in one metric.

    Raises:
        DataError: a number does not exist, as all similarities or all scores are the same.
    """
    correlation = METRICS[metric]
    each = []
    for subset, found in zip(task.subsets, similarities, strict=True):
        try:
            each.append(correlation(found, subset.gold))
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
        columns = [np.concatenate(found) for found in similarities]
        return resampled(metric, columns, gold, bootstrap, task.name.label)
    each = _subset_draws(task, similarities, metric, bootstrap)
    return _averaged(task, list(each.values()), aggregation)


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
        "mean": _averaged(task, list(each.values()), "mean"),
        "wmean": _averaged(task, list(each.values()), "wmean"),
    }
    return {name: interval(found[0], bootstrap) for name, found in draws.items()}


def _subset_draws(
    task: Task, similarities: Sequence[Similarities], metric: str, bootstrap: Bootstrap
) -> dict[str, Matrix]:
    found = {}
    for place, subset in enumerate(task.subsets):
        columns = [of_encoder[place] for of_encoder in similarities]
        stream = f"{task.name.label} {subset.name}"
        found[subset.name] = resampled(metric, columns, subset.gold, bootstrap, stream)
    return found


def _averaged(task: Task, each: Sequence[Matrix], aggregation: str) -> Matrix:
    pairs = [len(subset.gold) for subset in task.subsets]
    weights = pairs if aggregation == "wmean" else None
    averaged: Matrix = np.average(np.stack(each), axis=0, weights=weights)
    return averaged
