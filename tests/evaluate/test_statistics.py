"""Resamples against loops and scipy, intervals and p-values against simulated truth."""

from math import asin, pi, sqrt
from zlib import crc32

import numpy as np
import pytest
from scipy import stats

from contrasent.errors import ConfigError
from contrasent.evaluation import bootstrap as statistics
from contrasent.evaluation.bootstrap import Bootstrap, correlation_draws, holm, interval, p_value

SCIPY = {"spearman": stats.spearmanr, "pearson": stats.pearsonr}


def columns(seed, size=40):
    """Two columns of scores and one of gold, all with ties."""
    draw = np.random.default_rng(seed)
    gold = draw.integers(0, 6, size=size) / 2
    near = gold + draw.normal(size=size)
    return near.round(1), (gold + 3 * draw.normal(size=size)).round(0), gold


def places(bootstrap, stream, pairs):
    """The pairs of each resample, drawn one by one."""
    draw = np.random.default_rng([bootstrap.seed, crc32(stream.encode())])
    for _ in range(bootstrap.resamples):
        yield draw.integers(pairs, size=pairs, dtype=np.int32)


@pytest.mark.parametrize("metric", SCIPY)
@pytest.mark.parametrize("seed", range(3))
def test_a_resample_is_scored_as_scipy_scores_its_pairs(metric, seed):
    near, far, gold = columns(seed)
    bootstrap = Bootstrap(resamples=50, seed=seed)
    found = correlation_draws(metric, [near, far], gold, bootstrap, "sts12 MSRpar")
    assert found.shape == (2, 50)
    for number, rows in enumerate(places(bootstrap, "sts12 MSRpar", len(gold))):
        for column, scores in enumerate((near, far)):
            expected = SCIPY[metric](scores[rows], gold[rows]).statistic
            assert found[column, number] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", SCIPY)
def test_the_size_of_a_block_changes_nothing(metric, monkeypatch):
    near, far, gold = columns(0)
    whole = correlation_draws(metric, [near, far], gold, Bootstrap(resamples=30), "a")
    monkeypatch.setattr(statistics, "_AT_ONCE", 7 * len(gold))
    blocks = correlation_draws(metric, [near, far], gold, Bootstrap(resamples=30), "a")
    assert blocks == pytest.approx(whole, abs=1e-13)


def test_draws_depend_on_the_seed_and_on_the_name_of_the_pairs_only():
    near, far, gold = columns(0)
    first = correlation_draws("spearman", [near], gold, Bootstrap(resamples=9), "a")
    assert (
        correlation_draws("spearman", [far, near], gold, Bootstrap(resamples=9), "a")[1] == first
    ).all()
    for bootstrap, stream in ((Bootstrap(resamples=9, seed=2), "a"), (Bootstrap(resamples=9), "b")):
        assert not (correlation_draws("spearman", [near], gold, bootstrap, stream) == first).any()


def test_a_resample_of_equal_numbers_has_no_correlation():
    gold = np.array([1.0, 1.0, 1.0, 2.0])
    scores = np.array([0.1, 0.2, 0.3, 0.4])
    bootstrap = Bootstrap(resamples=400)
    equal = np.array([len(set(gold[rows])) == 1 for rows in places(bootstrap, "a", 4)])
    for metric in SCIPY:
        found = correlation_draws(metric, [scores], gold, bootstrap, "a")[0]
        assert (np.isnan(found) == equal).all()
        assert interval(found, bootstrap) is None
    assert 0.25 < equal.mean() < 0.4


def test_an_interval_is_of_the_middle_of_the_draws():
    found = interval(np.arange(1001.0), Bootstrap(0.9, 1001, 7))
    assert (found.low, found.high) == pytest.approx((50, 950))
    assert found.error == pytest.approx(np.std(np.arange(1001), ddof=1))
    assert (found.confidence, found.resamples, found.seed) == (0.9, 1001, 7)
    with_gaps = np.concatenate([np.arange(1001.0), [np.nan] * 50])
    assert interval(with_gaps, Bootstrap(0.9, 1051)).low == pytest.approx(50)


@pytest.mark.parametrize("metric", SCIPY)
def test_the_interval_holds_the_true_value_as_often_as_it_says(metric):
    """Normal pairs, whose correlations are known: Spearman's is 6 / pi asin(rho / 2)."""
    rho, trials, size = 0.8, 200, 100
    truth = {"pearson": rho, "spearman": 6 / pi * asin(rho / 2)}[metric]
    draw = np.random.default_rng(1)
    held = 0
    for seed in range(trials):
        gold = draw.normal(size=size)
        scores = rho * gold + sqrt(1 - rho**2) * draw.normal(size=size)
        bootstrap = Bootstrap(0.9, 300, seed)
        found = interval(correlation_draws(metric, [scores], gold, bootstrap, "a")[0], bootstrap)
        held += found.low <= truth <= found.high
    # Three standard errors of a share of .9 in 200 trials are .064.
    assert abs(held / trials - 0.9) < 0.064


def test_equal_encoders_are_told_apart_no_more_often_than_the_p_value_says():
    draw = np.random.default_rng(2)
    values = []
    for seed in range(200):
        gold = draw.normal(size=80)
        pair = [gold + draw.normal(size=80) for _ in range(2)]
        one, other = correlation_draws(
            "spearman", pair, gold, Bootstrap(resamples=300, seed=seed), "a"
        )
        values.append(p_value(other - one))
    # Three standard errors of a share of .1 are .064, of .5 are .106.
    assert abs(np.mean(np.array(values) < 0.1) - 0.1) < 0.064
    assert abs(np.mean(np.array(values) < 0.5) - 0.5) < 0.106


def test_a_p_value_counts_the_draws_on_the_rarer_side():
    assert p_value(np.array([-1.0, *[1.0] * 98])) == pytest.approx(2 * 2 / 100)
    assert p_value(np.array([1.0, *[-1.0] * 98])) == pytest.approx(2 * 2 / 100)
    assert p_value(np.ones(999)) == pytest.approx(2 / 1000)
    assert p_value(np.zeros(9)) == 1
    assert p_value(np.array([np.nan, np.nan])) == 1


def test_holms_adjustment():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"confidence": 95}, "confidence must be between 0 and 1, such as 0.95, not 95"),
        ({"confidence": 0}, "confidence must be between 0 and 1, such as 0.95, not 0"),
        ({"confidence": float("nan")}, "such as 0.95, not nan"),
        ({"resamples": 1}, "resamples must be at least 2, not 1"),
    ],
)
def test_settings_out_of_range_are_explained(settings, said):
    with pytest.raises(ConfigError) as caught:
        Bootstrap(**settings)
    assert said in str(caught.value)
