"""Correlations: two encoders against loops, errors against simulated truth, and p-values."""

from dataclasses import replace
from math import asin, atanh, pi, sqrt, tanh
from statistics import NormalDist

import numpy as np
import pytest
from helpers.tiny_sts import StsTasks, sts_tasks
from scipy import stats

from contrasent.evaluation import intervals
from contrasent.evaluation.compare import Comparison, compare, gains
from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.intervals import Bootstrap, holm, influence
from contrasent.evaluation.task_names import TaskName
from contrasent.metrics import METRICS, pair_cosines
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

    def short(subset):
        first, second = (
            tuple(" ".join(it.split()[:2]) for it in side) for side in (subset.first, subset.second)
        )
        return replace(subset, first=first, second=second)

    tasks = sts_tasks(["sts12", "sts13", "stsb"], senteval).tasks
    one, two, three = (replace(it, subsets=tuple(map(short, it.subsets))) for it in tasks)
    return [one, two, replace(three, subsets=one.subsets[1:])]


def covariances(tasks, effects):
    """Of one estimate per task: pairs of two tasks are dependent if they share a sentence."""
    pairs, found = [list(zip(*task.sides, strict=True)) for task in tasks], np.zeros((3, 3))
    for i, one in enumerate(pairs):
        for j, other in enumerate(pairs):
            for a, first in enumerate(one):
                for b, second in enumerate(other):
                    if set(first) & set(second):
                        found[i, j] += effects[i][a] * effects[j][b]
        found[i, i] = error(effects[i], one) ** 2
    return found


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
    """And an encoder does not differ from itself."""
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


SCIPY = {"spearman": stats.spearmanr, "pearson": stats.pearsonr}


@pytest.mark.parametrize("metric", SCIPY)
@pytest.mark.parametrize("seed", range(3))
def test_influence_is_what_a_little_more_of_a_pair_changes(metric, seed):
    """Each pair 400 times, and one of them once more; there are ties in both columns."""
    draw, times = np.random.default_rng(seed), 400
    gold = draw.integers(0, 6, size=15) / 2
    scores = (gold + draw.normal(size=15)).round(0)
    rows = np.repeat(np.arange(15), times)
    correlation = SCIPY[metric](scores, gold).statistic
    found = intervals.influence(metric, scores, gold)
    for pair in range(15):
        more = np.append(rows, pair)
        changed = SCIPY[metric](scores[more], gold[more]).statistic
        assert found[pair] == pytest.approx(times * (changed - correlation), abs=2e-3)
    assert found.sum() == pytest.approx(0, abs=1e-12)


# Simulated pairs: a number per sentence and one per pair of sentences, both normal
REPEATED = [(2 * k, 2 * k + 1) for k in range(12) for _ in range(10)]  # as STS12's SMTeuroparl
CHAINED = [(k, (k + d) % 40) for k in range(40) for d in (1, 2, 3)]  # each sentence in 6 pairs
APART = [(500 + 2 * k, 501 + 2 * k) for k in range(120)]
GRAPHS = {"repeated": REPEATED + APART, "chained": CHAINED + APART}


def simulated(places, encoders, draw):
    """Gold scores, and those of encoders that are equally good: their correlation is rho."""
    first, second = np.array(places).T
    own = first == second
    of_pair = {pair: k for k, pair in enumerate(dict.fromkeys(places))}
    same = np.array([of_pair[pair] for pair in places])

    def column(of_sentence):
        drawn = draw.normal(size=(2, 1000))
        shared = drawn[0, first] + np.where(own, drawn[1, first], drawn[0, second])
        return of_sentence * shared + draw.normal(size=len(of_pair))[same]

    gold = column(0.6)
    return gold, [gold + column(0.6) for _ in range(encoders)]


RHO = np.sqrt(0.5)
TRUTH = {"pearson": RHO, "spearman": 6 / pi * asin(RHO / 2)}


@pytest.mark.parametrize("metric", SCIPY)
@pytest.mark.parametrize("graph", GRAPHS)
def test_the_interval_holds_the_true_value_as_often_as_it_says(metric, graph):
    """Normal pairs, whose correlations are known: Spearman's is 6 / pi asin(rho / 2)."""
    places, trials, draw = GRAPHS[graph], 200, np.random.default_rng(1)
    sides = [*zip(*places, strict=True)]
    held, independent = 0, 0
    for _ in range(trials):
        gold, (scores,) = simulated(places, 1, draw)
        moves, value = intervals.influence(metric, scores, gold), METRICS[metric](scores, gold)
        error = intervals.mean_error(intervals.pair_covariance(*sides, moves[None]))
        found = intervals.correlation_interval(value, error, 0.95)
        held += found.low <= TRUTH[metric] <= found.high
        naive = intervals.correlation_interval(value, np.sqrt(np.square(moves).sum()), 0.95)
        independent += naive.low <= TRUTH[metric] <= naive.high
    # Three standard errors of a share of .95 in 200 trials are .046.
    assert abs(held / trials - 0.95) < 0.046
    if graph == "repeated":
        assert independent / trials < 0.85


@pytest.mark.parametrize("graph", GRAPHS)
def test_equal_encoders_are_told_apart_no_more_often_than_the_p_value_says(graph):
    places, draw = GRAPHS[graph], np.random.default_rng(2)
    sides = [*zip(*places, strict=True)]
    values = []
    for _ in range(200):
        gold, (one, other) = simulated(places, 2, draw)
        moves = influence("spearman", other, gold) - influence("spearman", one, gold)
        difference = METRICS["spearman"](other, gold) - METRICS["spearman"](one, gold)
        error = intervals.mean_error(intervals.pair_covariance(*sides, moves[None]))
        values.append(intervals.normal_p_value(difference, error))
    # Three standard errors of a share of .05 are .046, of .5 are .106.
    assert abs(np.mean(np.array(values) < 0.05) - 0.05) < 0.046
    assert abs(np.mean(np.array(values) < 0.5) - 0.5) < 0.106


def test_normal_p_values_and_intervals_at_their_ends():
    assert intervals.normal_p_value(1.96, 1.0) == pytest.approx(0.05, abs=1e-4)
    assert intervals.normal_p_value(-1.96, 1.0) == intervals.normal_p_value(1.96, 1.0)
    assert intervals.normal_p_value(0.0, 0.0) == 1
    assert intervals.normal_p_value(0.5, 0.0) == 1
    assert intervals.correlation_interval(1.0, 0.0, 0.95).low == 1
    near = intervals.correlation_interval(0.98, 0.02, 0.95)
    assert 0.8 < near.low < 0.95 < near.high < 1


def test_a_p_value_counts_the_draws_on_the_rarer_side():
    assert intervals.p_value(np.array([-1.0, *[1.0] * 98])) == pytest.approx(2 * 2 / 100)
    assert intervals.p_value(np.array([1.0, *[-1.0] * 98])) == pytest.approx(2 * 2 / 100)
    assert intervals.p_value(np.ones(999)) == pytest.approx(2 / 1000)
    assert intervals.p_value(np.zeros(9)) == 1
    assert intervals.p_value(np.array([np.nan, np.nan])) == 1
    # Holm's adjustment
    assert intervals.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert intervals.holm([0.6, 0.9]) == [1.0, 1.0]
    assert intervals.holm([0.2]) == [0.2]
    assert intervals.holm([]) == []
