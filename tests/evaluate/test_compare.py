"""Two encoders on the same pairs: differences against loops, and what is said of them."""

from dataclasses import replace
from math import atanh, sqrt, tanh
from statistics import NormalDist

import numpy as np
import pytest
from helpers.tiny_sts import StsTasks, sts_tasks

from contrasent.evaluation.compare import Comparison, compare, gains
from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.intervals import Bootstrap, holm, influence
from contrasent.evaluation.task_names import TaskName
from contrasent.metrics import pair_cosines
from contrasent.records import Compared, Interval

BOOTSTRAP = Bootstrap(0.9, 60, 4)


@pytest.fixture
def half(encoder):
    """An encoder that sees a part of what the other sees."""
    other = type(encoder)()
    other.name = "some/half"
    whole = other.embed
    other.embed = lambda sentence: whole(sentence)[:2]
    return other


@pytest.fixture
def both(encoder, half, senteval):
    """The tasks, and the scores of both."""
    tasks = sts_tasks(["sts12", "sts13", "stsb", "sickr-dev"], senteval).tasks
    read = StsTasks(tasks)
    return tasks, read.records(EncoderUse(encoder)), read.records(EncoderUse(half))


def correlation(encoder, subset):
    first, second = ([encoder.embed(s) for s in side] for side in (subset.first, subset.second))
    return pair_cosines(first, second), subset.gold


def moves(encoder, subsets, aggregation, metric="spearman"):
    """How much each pair moves the task's score, subset after subset."""
    columns = [correlation(encoder, subset) for subset in subsets]
    if aggregation == "all":
        return influence(metric, *(np.concatenate(it) for it in zip(*columns, strict=True)))
    sizes = [len(subset.gold) for subset in subsets]
    weights = sizes if aggregation == "wmean" else [1] * len(sizes)
    each = [w * influence(metric, *it) for w, it in zip(weights, columns, strict=True)]
    return np.concatenate(each) / sum(weights)


def error(effects, pairs):
    """Pairs are dependent if they share a sentence; at least if they are the same."""
    variance = least = 0.0
    for i, one in enumerate(pairs):
        for j, other in enumerate(pairs):
            variance += effects[i] * effects[j] * bool(set(one) & set(other))
            least += effects[i] * effects[j] * (set(one) == set(other))
    return sqrt(max(variance, least))


@pytest.fixture
def sharing(senteval):
    """Tasks of unlike sizes whose sentences come often; the last has most of the first's pairs."""

    def short(sentences):
        return tuple(" ".join(it.split()[:2]) for it in sentences)

    tasks = [
        replace(
            task,
            subsets=tuple(
                replace(it, first=short(it.first), second=short(it.second)) for it in task.subsets
            ),
        )
        for task in sts_tasks(["sts12", "sts13", "stsb"], senteval).tasks
    ]
    return [*tasks[:2], replace(tasks[2], subsets=tasks[0].subsets[1:])]


def covariances(tasks, effects):
    """Of one estimate per task: pairs of two tasks are dependent if they share a sentence."""
    pairs = [list(zip(*task.sides, strict=True)) for task in tasks]
    return np.array(
        [
            [
                error(effects[i], one) ** 2
                if i == j
                else sum(
                    effects[i][a] * effects[j][b]
                    for a, first in enumerate(one)
                    for b, second in enumerate(other)
                    if set(first) & set(second)
                )
                for j, other in enumerate(pairs)
            ]
            for i, one in enumerate(pairs)
        ]
    )


@pytest.mark.parametrize("aggregation", ["all", "mean", "wmean"])
@pytest.mark.parametrize("metric", ["spearman", "pearson"])
def test_errors_go_together_of_shared_sentences(sharing, encoder, half, metric, aggregation):
    read = StsTasks(sharing)
    whole, part = (read.records(EncoderUse(it), bootstrap=BOOTSTRAP) for it in (encoder, half))
    before, after = (
        [moves(it, task.subsets, aggregation, metric) for task in sharing] for it in (encoder, half)
    )
    records = [r for r in whole.records if (r.metric, r.aggregation) == (metric, aggregation)]
    expected = covariances(sharing, before)
    labels = [task.name.label for task in sharing]
    quantile = NormalDist().inv_cdf(0.95)
    for number, (record, row) in enumerate(zip(records, expected, strict=True)):
        given = {**record.interval.covariances, record.task: record.interval.error**2}
        assert given == pytest.approx(dict(zip(labels, row, strict=True)))
        reach = quantile * sqrt(row[number]) / (1 - record.value**2)
        ends = tuple(tanh(atanh(record.value) + sign * reach) for sign in (-1, 1))
        assert (record.interval.low, record.interval.high) == pytest.approx(ends)
    found = compare(
        sharing, whole, part, metric=metric, aggregation=aggregation, bootstrap=BOOTSTRAP
    )
    both = covariances(sharing, [b - a for a, b in zip(before, after, strict=True)])
    for one, variance in zip(found.tasks.values(), both.diagonal(), strict=True):
        difference, error_of_it = one.difference, sqrt(variance)
        ends = tuple(difference + sign * quantile * error_of_it for sign in (-1, 1))
        assert (one.interval.low, one.interval.high) == pytest.approx(ends)
        p = 2 * NormalDist().cdf(-abs(difference) / error_of_it)
        assert (one.interval.error, one.p_value) == pytest.approx((error_of_it, p))
    assert both.sum() > both.trace(), "choose pairs that make the average less sure"
    assert found.average.interval.error == pytest.approx(sqrt(both.sum()) / 3)
    values = {
        TaskName(r.task): r.value
        for r in part.records
        if (r.metric, r.aggregation) == (metric, aggregation)
    }
    assert found.values == {**values, "the average": pytest.approx(np.mean([*values.values()]))}


def test_errors_of_subsets_count_their_own_pairs(sharing, encoder):
    records = StsTasks(sharing).records(EncoderUse(encoder), bootstrap=BOOTSTRAP).records
    subsets = {(task.name.name, it.name): it for task in sharing for it in task.subsets if it.name}
    found = [r for r in records if r.aggregation == "subset"]
    assert len(found) == 2 * len(subsets)
    for record in found:
        subset = subsets[record.task, record.subset]
        effects = influence(record.metric, *correlation(encoder, subset))
        expected = error(effects, list(zip(subset.first, subset.second, strict=True)))
        assert record.interval.error == pytest.approx(expected)


def test_p_values_are_adjusted_over_the_tasks_and_the_average_is_of_test_splits(both):
    tasks, first, second = both
    found = compare(tasks, first, second, metric="pearson", aggregation="all", bootstrap=BOOTSTRAP)
    each = list(found.tasks.values())
    assert [one.p_holm for one in each] == holm([one.p_value for one in each])
    assert {one.tests for one in each} == {4}
    named = [one.difference for name, one in found.tasks.items() if name.split == "test"]
    assert len(named) == 3
    assert found.average.difference == pytest.approx(sum(named) / 3)
    values = [value for name, value in found.values.items() if getattr(name, "split", "") == "test"]
    assert found.values["the average"] == pytest.approx(sum(values) / 3)
    assert found.average.tests == 1


def test_an_encoder_does_not_differ_from_itself(both):
    tasks, first, _ = both
    found = compare(tasks, first, first, metric="spearman", aggregation="all", bootstrap=BOOTSTRAP)
    for one in (*found.tasks.values(), found.average):
        assert (one.difference, one.interval.low, one.interval.high, one.p_value) == (0, 0, 0, 1)


def test_a_start_without_one_type_of_tasks_is_compared_in_the_others():
    def changed(difference):
        ends = Interval(low=0, high=1, error=0.0, confidence=0.95, resamples=10, seed=1)
        numbers = {"difference": difference, "interval": ends, "p_value": 0.1, "p_holm": 0.1}
        return Compared(baseline="x", tests=1, **numbers)

    def comparison(metric, *values, task="mr"):
        tasks = {TaskName(f"{task}{n or ''}"): changed(it) for n, it in enumerate(values)}
        average = changed(sum(values)) if len(values) > 1 else None
        return Comparison(metric, None, tasks, average)

    own = [comparison("spearman", 0.25, 0.5, task="stsb"), comparison("accuracy", 0.25, 0.5)]
    without = [comparison("accuracy", 0.0, 0.25), comparison("mrr@10", 0.5, task="a.tsv")]
    found = gains({"own": own, "cls": without})
    assert [(it.metric, it.of, it.start, it.compared.difference) for it in found] == [
        ("spearman", "the average", "own", 0.75),
        ("accuracy", "the average", "cls", 0.25),
        ("mrr@10", "a.tsv", "cls", 0.5),
    ]
