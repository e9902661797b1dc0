"""Whether one encoder is better than another on the same pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from contrasent.evaluate.figures import aggregation_draws
from contrasent.evaluate.read import Task
from contrasent.evaluate.statistics import Bootstrap, holm, interval, p_value
from contrasent.evaluate.sts import Scores
from contrasent.evaluate.tasks import TaskName, averaged
from contrasent.metrics import Vector
from contrasent.records import Compared, Record


@dataclass(frozen=True, slots=True)
class Comparison:
    """One encoder against another, task by task.

    Attributes:
        metric: ``spearman`` or ``pearson``.
        aggregation: ``all``, ``mean`` or ``wmean``.
        tasks: in the order asked for; those that both have a score of.
        average: over the test splits of named tasks; None if there are fewer than two of them. Its
            p-value is one test of its own and is not adjusted.
    """

    metric: str
    aggregation: str
    tasks: Mapping[TaskName, Compared]
    average: Compared | None


def compare(
    tasks: Sequence[Task],
    baseline: Scores,
    other: Scores,
    *,
    metric: str,
    aggregation: str,
    bootstrap: Bootstrap,
) -> Comparison:
    """A paired bootstrap: pairs are drawn again, and both encoders are scored on what was drawn.

    The similarities of two encoders have scales of their own, so they cannot be exchanged between
    them as a permutation test would do.

    Args:
        tasks: what both were scored on.
        baseline: scores of the one.
        other: of the other; differences are ``other`` minus ``baseline``.
        metric: which correlation.
        aggregation: of the subsets.
        bootstrap: how pairs are drawn.
    """
    values = [_values(scores, metric, aggregation) for scores in (baseline, other)]
    differences: dict[TaskName, float] = {}
    draws: dict[TaskName, Vector] = {}
    for task in tasks:
        name = task.name
        if all(name.label in scores.similarities for scores in (baseline, other)):
            both = [scores.similarities[name.label] for scores in (baseline, other)]
            before, after = aggregation_draws(task, both, metric, aggregation, bootstrap)
            draws[name] = after - before
            differences[name] = values[1][name] - values[0][name]
    encoder = baseline.records[0].encoder if baseline.records else ""
    found = {name: _compared(encoder, differences[name], draws[name], bootstrap) for name in draws}
    adjusted = holm([one.p_value for one in found.values()])
    named = averaged(found)
    mean = None
    if len(named) > 1:
        difference = sum(differences[name] for name in named) / len(named)
        drawn = np.mean([draws[name] for name in named], axis=0)
        mean = _compared(encoder, difference, drawn, bootstrap)
    return Comparison(
        metric,
        aggregation,
        {
            name: replace(one, p_holm=p, tests=len(found))
            for (name, one), p in zip(found.items(), adjusted, strict=True)
        },
        mean,
    )


def with_comparison(records: Sequence[Record], comparison: Comparison) -> list[Record]:
    """The records, those that were compared saying how."""
    wanted = (comparison.metric, comparison.aggregation)
    return [
        replace(record, compared=comparison.tasks.get(TaskName(record.task, record.split)))
        if (record.metric, record.aggregation) == wanted
        else record
        for record in records
    ]


def _values(scores: Scores, metric: str, aggregation: str) -> dict[TaskName, float]:
    return {
        TaskName(record.task, record.split): record.value
        for record in scores.records
        if (record.metric, record.aggregation) == (metric, aggregation)
    }


def _compared(baseline: str, difference: float, draws: Vector, bootstrap: Bootstrap) -> Compared:
    p = p_value(draws)
    return Compared(
        baseline=baseline,
        difference=difference,
        interval=interval(draws, bootstrap),
        p_value=p,
        p_holm=p,
        tests=1,
    )
