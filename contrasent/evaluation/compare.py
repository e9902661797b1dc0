"""Whether one encoder is better than another on the same pairs, sentences or queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from contrasent.evaluation.bootstrap import Bootstrap, holm, interval, p_value, ratio_draws
from contrasent.evaluation.embed import Scores, draws
from contrasent.evaluation.sts_data import Task
from contrasent.evaluation.task_names import TaskName, averaged
from contrasent.metrics import Vector
from contrasent.records import Compared, Record

_DIGITS = 12
_AVERAGE = "the average"
_VERDICTS = {
    "helped": "Training helped",
    "hurt": "Training made it worse",
    "unclear": "No difference shown",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One encoder against another, task by task, in one metric.

    Attributes:
        aggregation: ``all``, ``mean`` or ``wmean`` of a correlation; None where there is but one.
        tasks: in the order asked for; those that both have a score of.
        average: over the test splits of named tasks; None if there are fewer than two of them. Its
            p-value is one test of its own and is not adjusted.
    """

    metric: str
    aggregation: str | None
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

    Differences are ``other`` minus ``baseline``. The similarities of two encoders have scales of
    their own, so they cannot be exchanged between them as a permutation test would do.
    """
    values = [_values(scores, metric, aggregation) for scores in (baseline, other)]
    differences = _Differences(metric, aggregation)
    for task in tasks:
        name = task.name
        if all(name.label in scores.similarities for scores in (baseline, other)):
            both = [scores.similarities[name.label] for scores in (baseline, other)]
            before, after = draws(task, both, metric, bootstrap, (aggregation,))[aggregation]
            differences.draws[name] = after - before
            differences.values[name] = values[1][name] - values[0][name]
    return differences.comparison(averaged(differences.draws), baseline, bootstrap)


def compare_ratios(
    names: Sequence[TaskName],
    baseline: Scores,
    other: Scores,
    *,
    averaged_over: Sequence[TaskName],
    bootstrap: Bootstrap,
) -> list[Comparison]:
    """A paired bootstrap of means and F1: what they are of is drawn again, for both encoders.

    Compared are the tasks and splits that both have scores of; those in ``averaged_over`` have an
    average too.

    Returns:
        One for each metric, in the order of the scores.
    """
    by_metric: dict[str, _Differences] = {}
    for name in names:
        metrics = [of for task, of in baseline.ratios if task == name]
        shared = [of for of in metrics if (name, of) in other.ratios]
        if not shared:
            continue
        pairs = [scores.ratios[name, of] for scores in (baseline, other) for of in shared]
        drawn = ratio_draws(pairs, bootstrap, name.label)
        for before, metric in enumerate(shared):
            after = before + len(shared)
            differences = by_metric.setdefault(metric, _Differences(metric))
            # What is no difference is to be 0, however the sums were rounded.
            differences.draws[name] = np.round(drawn[after] - drawn[before], _DIGITS)
            differences.values[name] = pairs[after].value - pairs[before].value
    return [
        it.comparison([name for name in it.draws if name in averaged_over], baseline, bootstrap)
        for it in by_metric.values()
    ]


@dataclass(frozen=True, slots=True)
class _Differences:
    """Differences in one metric, as they are and as they were drawn."""

    metric: str
    aggregation: str | None = None
    values: dict[TaskName, float] = field(default_factory=dict)
    draws: dict[TaskName, Vector] = field(default_factory=dict)

    def comparison(
        self, named: Sequence[TaskName], baseline: Scores, bootstrap: Bootstrap
    ) -> Comparison:
        """All of them, with an average over the tasks ``named``."""
        encoder = baseline.records[0].encoder if baseline.records else ""

        def compared(difference: float, drawn: Vector) -> Compared:
            p = p_value(drawn)
            return Compared(
                baseline=encoder,
                difference=difference,
                interval=interval(drawn, bootstrap),
                p_value=p,
                p_holm=p,
                tests=1,
            )

        tasks = {name: compared(self.values[name], drawn) for name, drawn in self.draws.items()}
        adjusted = holm([one.p_value for one in tasks.values()])
        mean = None
        if len(named) > 1:
            difference = sum(self.values[name] for name in named) / len(named)
            mean = compared(difference, np.mean([self.draws[name] for name in named], axis=0))
        of_tasks = {
            name: replace(one, p_holm=p, tests=len(tasks))
            for (name, one), p in zip(tasks.items(), adjusted, strict=True)
        }
        return Comparison(self.metric, self.aggregation, of_tasks, mean)


@dataclass(frozen=True, slots=True)
class Gain:
    """What training changed in one score, against the better of the starts.

    Attributes:
        of: the task, or the average.
        start: the better start.
        compared: the trained encoder less that start.
    """

    of: str
    start: str
    compared: Compared

    @property
    def verdict(self) -> Literal["helped", "hurt", "unclear"]:
        """Whether the interval of the difference is above 0, below it, or neither."""
        ends = self.compared.interval
        if ends is None or ends.low <= 0 <= ends.high:
            return "unclear"
        return "helped" if ends.low > 0 else "hurt"

    @property
    def sentence(self) -> str:
        """The verdict in words, differences x 100."""
        ends = self.compared.interval
        interval = "too little data for an interval"
        if ends is not None:
            low, high = 100 * ends.low, 100 * ends.high
            interval = f"{100 * ends.confidence:g} % interval {low:+.2f} to {high:+.2f}"
        return (
            f"{_VERDICTS[self.verdict]}: {100 * self.compared.difference:+.2f} ({interval}, paired "
            f"bootstrap) on {self.of}, against {self.start}."
        )


def gains(comparisons: Mapping[str, Sequence[Comparison]]) -> list[Gain]:
    """What training changed, in each average, and in each task that has none.

    Args:
        comparisons: of the trained encoder with each start, by what the start is called; each
            start with the same tasks.
    """
    of_score: dict[tuple[int, str], list[Gain]] = {}
    for start, each in comparisons.items():
        for place, one in enumerate(each):
            scores = {name.heading: compared for name, compared in one.tasks.items()}
            for of, compared in ({_AVERAGE: one.average} if one.average else scores).items():
                of_score.setdefault((place, of), []).append(Gain(of, start, compared))
    # The better start is the one that is gained least over.
    return [min(each, key=lambda it: it.compared.difference) for each in of_score.values()]


def with_comparison(records: Sequence[Record], comparison: Comparison) -> list[Record]:
    """The records, those that were compared saying how."""

    def compared(record: Record) -> Compared | None:
        if record.metric != comparison.metric:
            return None
        if comparison.aggregation not in (None, record.aggregation):
            return None
        return comparison.tasks.get(TaskName(record.task, record.split))

    return [replace(record, compared=compared(record) or record.compared) for record in records]


def _values(scores: Scores, metric: str, aggregation: str) -> dict[TaskName, float]:
    return {
        TaskName(record.task, record.split): record.value
        for record in scores.records
        if (record.metric, record.aggregation) == (metric, aggregation)
    }
