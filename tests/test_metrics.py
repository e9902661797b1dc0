"""Correlations and cosines against plain loops and against scipy."""

from math import sqrt

import numpy as np
import pytest
from scipy import stats

from contrasent.errors import DataError
from contrasent.metrics import pair_cosines, pearson, spearman


def looped_pearson(x, y):
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    over = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    under = sqrt(sum((a - mean_x) ** 2 for a in x) * sum((b - mean_y) ** 2 for b in y))
    return over / under


def looped_ranks(x):
    """One plus the numbers below, plus half of the other numbers that are equal."""
    return [1 + sum(b < a for b in x) + (sum(b == a for b in x) - 1) / 2 for a in x]


def columns(seed, size=60, ties=True):
    generator = np.random.default_rng(seed)
    scores = generator.normal(size=size)
    gold = scores + generator.normal(size=size)
    return (scores.round(1), gold.round(0)) if ties else (scores, gold)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ties", [True, False])
def test_correlations_are_the_formulas(seed, ties):
    scores, gold = columns(seed, ties=ties)
    x, y = scores.tolist(), gold.tolist()
    assert pearson(scores, gold) == pytest.approx(looped_pearson(x, y), abs=1e-12)
    by_rank = looped_pearson(looped_ranks(x), looped_ranks(y))
    assert spearman(scores, gold) == pytest.approx(by_rank, abs=1e-12)


@pytest.mark.parametrize(
    ("metric", "peer"), [(spearman, stats.spearmanr), (pearson, stats.pearsonr)]
)
@pytest.mark.parametrize("values", [2, 3, 40])
def test_correlations_agree_with_scipy_on_ties(metric, peer, values):
    draw = np.random.default_rng(values)
    scores, gold = draw.integers(values, size=50), draw.integers(values, size=50) / 5
    assert metric(scores, gold) == pytest.approx(peer(scores, gold).statistic, abs=1e-15)


@pytest.mark.parametrize("metric", [spearman, pearson])
def test_a_correlation_takes_no_notice_of_scale_order_or_direction(metric):
    scores, gold = columns(3)
    value = metric(scores, gold)
    order = np.random.default_rng(0).permutation(len(scores))
    assert metric(scores[order], gold[order]) == pytest.approx(value, abs=1e-12)
    assert metric(5 * scores + 2, gold / 7) == pytest.approx(value, abs=1e-12)
    assert metric(-scores, gold) == pytest.approx(-value, abs=1e-12)
    assert metric(gold, scores) == pytest.approx(value, abs=1e-12)


def test_only_the_order_counts_for_spearman():
    scores, gold = columns(4, ties=False)
    assert spearman(np.exp(3 * scores), gold) == spearman(scores, gold)
    assert pearson(np.exp(3 * scores), gold) != pytest.approx(pearson(scores, gold), abs=1e-3)


def test_pair_cosines_are_the_formula(rng):
    first, second = rng(6, 5).numpy(), rng(6, 5).numpy()
    expected = []
    for u, v in zip(first.tolist(), second.tolist(), strict=True):
        over = sum(a * b for a, b in zip(u, v, strict=True))
        expected.append(over / (sqrt(sum(a * a for a in u)) * sqrt(sum(b * b for b in v))))
    cosines = pair_cosines(first, second)
    assert cosines.dtype == np.float64
    assert cosines == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_equal_rows_are_at_one_whatever_their_length(rng, scale):
    rows = rng(200, 37).numpy() * np.float32(scale)
    assert pair_cosines(rows, rows.copy()) == pytest.approx(np.ones(200), abs=1e-15)
    assert pair_cosines(rows, -rows) == pytest.approx(-np.ones(200), abs=1e-15)


@pytest.mark.parametrize("metric", [spearman, pearson])
@pytest.mark.parametrize(
    ("scores", "gold", "said"),
    [
        ([1, float("nan"), 2], [1, 2, 3], "a score is nan"),
        ([1, 2, 3], [1, 2, float("inf")], "a gold is inf"),
        ([0.25, 0.25, 0.25], [1, 2, 3], "every score is 0.25"),
        ([1, 2, 3], [5, 5, 5], "every gold is 5"),
        ([1, 2, 3], [0, 0, 0], "every gold is 0"),
        ([1, 1 - 2**-52, 1], [1, 2, 3], "every score is 1"),
    ],
)
def test_a_correlation_that_does_not_exist_is_explained(metric, scores, gold, said):
    with pytest.raises(DataError) as caught:
        metric(scores, gold)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ([[1.0, 0.0], [np.nan, 1.0]], [[1.0, 0.0], [1.0, 1.0]], "row 1 is zero or has a NaN"),
        ([[1.0, 0.0]], [[np.inf, 0.0]], "row 0 is zero or has a NaN or infinite"),
        ([[1.0, 0.0], [0.0, 0.0]], [[1.0, 0.0], [1.0, 1.0]], "row 1 is zero or has"),
    ],
)
def test_a_cosine_that_does_not_exist_is_explained(first, second, said):
    with pytest.raises(DataError) as caught:
        pair_cosines(first, second)
    assert said in str(caught.value)


def test_the_cosine_of_a_row_of_zeros_is_0_where_that_is_asked_for():
    first, second = np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([[1.0, 0.0], [1.0, 2.0]])
    assert pair_cosines(first, second, zeros=True).tolist() == pytest.approx([sqrt(0.5), 0.0])
    with pytest.raises(DataError, match="row 1 is zero or has"):
        pair_cosines(first, second)
