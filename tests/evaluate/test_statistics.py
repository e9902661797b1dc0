"""Errors of correlations against loops and simulated truth; percentiles and p-values."""

from math import asin, pi

import numpy as np
import pytest
from scipy import stats

from contrasent.evaluation import intervals
from contrasent.metrics import METRICS

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
        found = intervals.correlation_interval(value, intervals.pair_error(*sides, moves), 0.95)
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
        moves = intervals.influence("spearman", other, gold) - intervals.influence(
            "spearman", one, gold
        )
        difference = METRICS["spearman"](other, gold) - METRICS["spearman"](one, gold)
        values.append(intervals.normal_p_value(difference, intervals.pair_error(*sides, moves)))
    # Three standard errors of a share of .05 are .046, of .5 are .106.
    assert abs(np.mean(np.array(values) < 0.05) - 0.05) < 0.046
    assert abs(np.mean(np.array(values) < 0.5) - 0.5) < 0.106


def test_normal_p_values_and_intervals_at_their_ends():
    assert intervals.normal_p_value(1.96, 1.0) == pytest.approx(0.05, abs=1e-4)
    assert intervals.normal_p_value(-1.96, 1.0) == intervals.normal_p_value(1.96, 1.0)
    assert intervals.normal_p_value(0.0, 0.0) == 1
    assert (
        intervals.correlation_interval(1.0, 0.0, 0.95).low,
        intervals.normal_p_value(0.5, 0.0),
    ) == (1, 1)
    near = intervals.correlation_interval(0.98, 0.02, 0.95)
    assert 0.8 < near.low < 0.95 < near.high < 1


def test_a_p_value_counts_the_draws_on_the_rarer_side():
    assert intervals.p_value(np.array([-1.0, *[1.0] * 98])) == pytest.approx(2 * 2 / 100)
    assert intervals.p_value(np.array([1.0, *[-1.0] * 98])) == pytest.approx(2 * 2 / 100)
    assert intervals.p_value(np.ones(999)) == pytest.approx(2 / 1000)
    assert intervals.p_value(np.zeros(9)) == 1
    assert intervals.p_value(np.array([np.nan, np.nan])) == 1


def test_holms_adjustment():
    assert intervals.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert intervals.holm([0.6, 0.9]) == [1.0, 1.0]
    assert intervals.holm([0.2]) == [0.2]
    assert intervals.holm([]) == []
