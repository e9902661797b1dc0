"""Correlations, cosines, spectrum and isotropy against plain loops, scipy and numpy."""

from math import exp, sqrt

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics.pairwise import paired_distances

from contrasent import metrics
from contrasent.errors import DataError


@pytest.mark.parametrize(
    "metric, peer", [(metrics.spearman, stats.spearmanr), (metrics.pearson, stats.pearsonr)]
)
@pytest.mark.parametrize("values", [2, 3, 40, None])
def test_correlations_are_those_of_scipy_with_and_without_ties(metric, peer, values):
    draw = np.random.default_rng(values or 3)
    scores, gold = draw.normal(size=(2, 60)).cumsum(0)
    if values:
        scores, gold = draw.integers(values, size=50), draw.integers(values, size=50) / 5
    assert metric(scores, gold) == pytest.approx(peer(scores, gold).statistic, abs=1e-15)


def test_pair_cosines_are_the_formula(rng):
    first, second = rng(6, 5).numpy(), rng(6, 5).numpy()
    expected = 1 - paired_distances(first.astype(float), second, metric="cosine")
    cosines = metrics.pair_cosines(first, second)
    assert cosines.dtype == np.float64
    assert cosines == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_equal_rows_are_at_one_whatever_their_length(rng, scale):
    rows = rng(200, 37).numpy() * np.float32(scale)
    assert metrics.pair_cosines(rows, rows.copy()) == pytest.approx(np.ones(200), abs=1e-15)
    assert metrics.pair_cosines(rows, -rows) == pytest.approx(-np.ones(200), abs=1e-15)


@pytest.mark.parametrize("metric", [metrics.spearman, metrics.pearson])
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


def test_the_cosine_of_a_row_of_zeros_is_0_where_that_is_asked_for():
    first, second = np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([[1.0, 0.0], [1.0, 2.0]])
    assert metrics.pair_cosines(first, second, zeros=True).tolist() == pytest.approx(
        [sqrt(0.5), 0.0]
    )
    with pytest.raises(DataError, match="row 1 is zero or has"):
        metrics.pair_cosines(first, second)


@pytest.fixture
def rows():
    draw = np.random.default_rng(0)
    return draw.normal(loc=[1, 0, 0, 0, 0.5, 0], size=(40, 6))


def scaled(rows):
    return np.array([[x / sqrt(sum(y * y for y in row)) for x in row] for row in rows])


@pytest.mark.parametrize("shape", [(40, 6), (6, 6), (3, 6), (1, 4)])
def test_the_spectrum_is_that_of_the_matrix(shape):
    matrix = np.random.default_rng(1).normal(size=shape)
    values = np.linalg.svd(scaled(matrix), compute_uv=False)
    assert metrics.spectrum(matrix) == pytest.approx(values / values[0], abs=1e-7)
    assert len(metrics.spectrum(matrix)) == min(shape)


def test_mean_cosine_is_that_of_all_pairs_and_partition_ratio_mu_and_viswanaths(rows):
    unit = scaled(rows)
    found = [float(a @ b) for i, a in enumerate(unit) for j, b in enumerate(unit) if i != j]
    assert metrics.mean_cosine(rows) == pytest.approx(sum(found) / len(found))
    _, _, directions = np.linalg.svd(unit, full_matrices=False)
    sums = [
        sum(exp(sign * float(direction @ v)) for v in unit)
        for direction in directions
        for sign in (1, -1)
    ]
    assert metrics.partition_ratio(rows) == pytest.approx(min(sums) / max(sums))


def test_what_is_even_and_what_is_collapsed():
    axes = np.concatenate([np.eye(4), -np.eye(4)])
    assert metrics.partition_ratio(axes) == pytest.approx(1)
    assert metrics.mean_cosine(axes) == pytest.approx(-1 / 7)
    assert metrics.spectrum(axes) == pytest.approx([1, 1, 1, 1])
    assert metrics.partition_ratio(np.ones((5, 3))) == pytest.approx(exp(-2))
    assert metrics.mean_cosine(np.ones((5, 3))) == pytest.approx(1)


@pytest.mark.parametrize("bad", [0, np.nan, np.inf])
@pytest.mark.parametrize(
    "measure", [metrics.spectrum, metrics.mean_cosine, metrics.partition_ratio, metrics.directions]
)
def test_a_row_without_a_direction_is_named(measure, bad, rows):
    rows[7] = bad
    with pytest.raises(DataError, match="row 7 is zero or has a NaN or infinite number"):
        measure(rows)
