"""Comparison of two encoders on the same pairs, sentences or queries."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from statistics import NormalDist, fmean, stdev
from typing import Literal

import numpy as np

from contrasent.evaluation import intervals
from contrasent.evaluation.embed import Scores
from contrasent.evaluation.intervals import FEWEST_PAIRS, Bootstrap, interval
from contrasent.evaluation.sts import influences, joint_covariance
from contrasent.evaluation.sts_data import Task
from contrasent.evaluation.task_names import TRANSFER, TaskName, averaged, short_headings
from contrasent.metrics import Vector
from contrasent.records import Compared, Interval, Record

_DIGITS = 12
_AVERAGE = "the average"
_SEED_CONFIDENCE = 0.95
_VERDICTS = {
    "helped": "Training helped",
    "hurt": "Training made it worse",
    "unclear": "No difference shown",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One encoder against another, task by task, in one metric."""

    metric: str
    # ``all``, ``mean`` or ``wmean`` of a correlation; None where there is but one
    aggregation: str | None
    tasks: Mapping[TaskName, Compared]  # in the order asked for; those that both have a score of
    # over the test splits of named tasks; None if there are fewer than two of them. Its p-value is
    # one test of its own and is not adjusted.
    average: Compared | None
    # of the other encoder, by task, and of the average
    values: Mapping[TaskName | str, float] = field(default_factory=dict)


def compare(
    tasks: Sequence[Task],
    baseline: Scores,
    other: Scores,
    *,
    metric: str,
    aggregation: str,
    bootstrap: Bootstrap,
) -> Comparison:
    """Differences of correlations, ``other`` less ``baseline``, by pairs that share sentences.

    The average's error takes the pairs of all tasks together, as tasks share sentences too.
    """
    before, after = (
        {
            TaskName(it.task, it.split): it.value
            for it in scores.records
            if (it.metric, it.aggregation) == (metric, aggregation)
        }
        for scores in (baseline, other)
    )

    def compared(difference: float, over: Sequence[Task]) -> Compared:
        error = None
        if all(len(task.gold) >= FEWEST_PAIRS for task in over):
            covariance = joint_covariance(over, [moves[task.name] for task in over])
            error = intervals.mean_error(covariance)
        if error is None or error < intervals.LEAST_ERROR * abs(difference):
            return _compared(baseline, difference, None, 1.0)
        ends = intervals.normal_interval(difference, error, bootstrap.confidence)
        return _compared(baseline, difference, ends, intervals.normal_p_value(difference, error))

    both = [it for it in tasks if all(it.name.label in s.similarities for s in (baseline, other))]
    moves, of_task = dict[TaskName, Vector](), dict[TaskName, Compared]()
    for task in both:
        name, columns = task.name, [s.similarities[task.name.label] for s in (baseline, other)]
        first, second = (influences(task, it, metric)[aggregation] for it in columns)
        moves[name] = second - first
        of_task[name] = compared(after[name] - before[name], [task])
    named, mean = averaged(of_task), None
    values: dict[TaskName | str, float] = {name: after[name] for name in of_task}
    if len(named) > 1:
        values[_AVERAGE] = fmean(after[name] for name in named)
        pooled = [task for task in both if task.name in named]
        mean = compared(sum(of_task[name].difference for name in named) / len(named), pooled)
    return Comparison(metric, aggregation, _adjusted(of_task), mean, values)


def compare_ratios(
    names: Sequence[TaskName],
    baseline: Scores,
    other: Scores,
    *,
    bootstrap: Bootstrap,
    over: Collection[str] = TRANSFER,
) -> list[Comparison]:
    """A paired bootstrap of means and F1, for each metric that both have scores of.

    The average is over test parts of the tasks named ``over``; users' own have little in common.
    """
    # the second score, the difference and its draws
    metrics: dict[str, dict[TaskName, tuple[float, float, Vector]]] = {}
    for name in names:
        shared = [of for task, of in baseline.ratios if task == name and (name, of) in other.ratios]
        pairs = [scores.ratios[name, of] for scores in (baseline, other) for of in shared]
        draws = intervals.ratio_draws(pairs, bootstrap, name.label) if shared else np.empty((0, 0))
        for before, metric in enumerate(shared):
            after = before + len(shared)
            # What is no difference is to be 0, however the sums were rounded.
            changes = np.round(draws[after] - draws[before], _DIGITS)
            value = pairs[after].value
            metrics.setdefault(metric, {})[name] = value, value - pairs[before].value, changes

    def compared(difference: float, draws: Vector) -> Compared:
        return _compared(baseline, difference, interval(draws, bootstrap), intervals.p_value(draws))

    comparisons = []
    for metric, of_tasks in metrics.items():
        tasks = {name: compared(gain, drawn) for name, (_, gain, drawn) in of_tasks.items()}
        values: dict[TaskName | str, float] = {name: it[0] for name, it in of_tasks.items()}
        papers = [n for n in of_tasks if n.split == "test" and n.name in over]
        mean = None
        if len(papers) > 1:
            scored, changed, each = zip(*(of_tasks[name] for name in papers), strict=True)
            mean = compared(sum(changed) / len(papers), np.mean(each, axis=0))
            values[_AVERAGE] = fmean(scored)
        comparisons.append(Comparison(metric, None, _adjusted(tasks), mean, values))
    return comparisons


def _compared(baseline: Scores, difference: float, ends: Interval | None, p: float) -> Compared:
    name = baseline.records[0].encoder if baseline.records else ""
    return Compared(
        baseline=name, difference=difference, interval=ends, p_value=p, p_holm=p, tests=1
    )


def _adjusted(tasks: Mapping[TaskName, Compared]) -> dict[TaskName, Compared]:
    adjusted = intervals.holm([one.p_value for one in tasks.values()])
    return {
        name: replace(one, p_holm=p, tests=len(tasks))
        for (name, one), p in zip(tasks.items(), adjusted, strict=True)
    }


@dataclass(frozen=True, slots=True)
class Gain:
    """What training changed in one score, against the better of the starts."""

    of: str  # the task, or the average
    start: str  # the better start
    compared: Compared  # the trained encoder less that start
    metric: str = ""
    value: float | None = None  # the trained encoder's score; None where it was not kept

    @property
    def verdict(self) -> Literal["helped", "hurt", "unclear"]:
        """The side of 0 on which the interval of the difference lies, if on one."""
        ends = self.compared.interval
        if ends is None or ends.low <= 0 <= ends.high:
            return "unclear"
        return "helped" if ends.low > 0 else "hurt"

    @property
    def sentence(self) -> str:
        """The verdict in words, differences x 100."""
        return f"{_VERDICTS[self.verdict]}: {self.change}, against {self.start}."

    @property
    def change(self) -> str:
        """The difference x 100 with its interval."""
        ends = self.compared.interval
        interval = "too little data for an interval"
        if ends is not None:
            low, high = 100 * ends.low, 100 * ends.high
            interval = f"{100 * ends.confidence:g} % interval {low:+.2f} to {high:+.2f}, paired"
            interval += " bootstrap" if ends.resamples else ""
        return f"{100 * self.compared.difference:+.2f} ({interval}) on {self.of}"


def gains(comparisons: Mapping[str, Sequence[Comparison]], *, every: bool = False) -> list[Gain]:
    """What training changed, against the better start, in each average or each task without one.

    ``comparisons`` are with each start, by its name. With ``every``, also in each averaged task.
    """
    of_score: dict[tuple[str, str | None, str], list[Gain]] = {}
    for start, each in comparisons.items():
        for one in each:
            short, values = short_headings(list(one.tasks)), one.values
            tasks = [(short[name], it, values.get(name)) for name, it in one.tasks.items()]
            mean = [(_AVERAGE, one.average, values.get(_AVERAGE))] if one.average else []
            for of, compared, value in tasks + mean if every else mean or tasks:
                gain = Gain(of, start, compared, one.metric, value)
                of_score.setdefault((one.metric, one.aggregation, of), []).append(gain)
    # The better start is the one that is gained least over.
    return [min(each, key=lambda it: it.compared.difference) for each in of_score.values()]


@dataclass(frozen=True, slots=True)
class SeedError:
    """How much a mean over seeds changes with them."""

    error: float  # its standard error
    freedom: int  # degrees of freedom of that

    @classmethod
    def of(cls, values: Sequence[float]) -> "SeedError | None":
        """Standard error of the mean over seeds; None for a single seed."""
        if len(values) < 2:
            return None
        return cls(stdev(values) / sqrt(len(values)), len(values) - 1)

    def reach(self, pair_error: float, level: float) -> float:
        """Half an interval over pairs (normal) and seeds (Student's t), missing with ``level``."""
        from scipy.stats import t

        of_seeds = float(t.ppf(1 - level / 2, self.freedom)) * self.error
        return sqrt(of_seeds**2 + (NormalDist().inv_cdf(1 - level / 2) * pair_error) ** 2)


@dataclass(frozen=True, slots=True)
class SeedScores:
    """One score of runs that differ in their seed, in [-1, 1]."""

    of: str  # the task, or the average
    metric: str
    values: tuple[float, ...]  # one for each seed
    start: float | None  # of the better start; None if it has no score
    # Standard error over test pairs, sentences or queries of the mean difference to the start: the
    # mean of the runs' errors, which is never too small since all runs are scored on the same ones.
    # None for the dev task, by which the step of each run was chosen.
    pair_error: float | None

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Standard deviation over the seeds; None of one."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """The mean less the start."""
        return None if self.start is None else self.mean - self.start

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the difference, over pairs and over seeds, which share the start."""
        if self.difference is None or self.pair_error is None:
            return None
        seeds = SeedError.of(self.values) or SeedError(0.0, 1)
        reach = seeds.reach(self.pair_error, 1 - _SEED_CONFIDENCE)
        return self.difference - reach, self.difference + reach


def with_comparison(records: Sequence[Record], comparison: Comparison) -> list[Record]:
    """The records, those that were compared saying how."""
    compared = []
    for record in records:
        one = comparison.tasks.get(TaskName(record.task, record.split))
        same = comparison.aggregation in (None, record.aggregation)
        latest = one if one and same and record.metric == comparison.metric else record.compared
        compared.append(replace(record, compared=latest))
    return compared
