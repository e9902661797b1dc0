"""Spectrum and isotropy against loops and numpy's singular values; what must not change them."""

from math import exp, sqrt

import numpy as np
import pytest

from contrasent.errors import DataError
from contrasent.metrics import mean_cosine, partition_ratio, spectrum, unit_rows

MEASURES = [spectrum, mean_cosine, partition_ratio]


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
    assert spectrum(matrix) == pytest.approx(values / values[0], abs=1e-7)
    assert len(spectrum(matrix)) == min(shape)


def test_the_spectrum_of_collapsed_rows_is_one_value():
    assert spectrum(np.ones((5, 3))) == pytest.approx([1, 0, 0], abs=1e-7)


def test_mean_cosine_is_the_mean_over_all_pairs(rows):
    unit = scaled(rows)
    found = [float(a @ b) for i, a in enumerate(unit) for j, b in enumerate(unit) if i != j]
    assert mean_cosine(rows) == pytest.approx(sum(found) / len(found))


def test_partition_ratio_is_mu_and_viswanaths(rows):
    unit = scaled(rows)
    _, _, directions = np.linalg.svd(unit, full_matrices=False)
    sums = [
        sum(exp(sign * float(direction @ v)) for v in unit)
        for direction in directions
        for sign in (1, -1)
    ]
    assert partition_ratio(rows) == pytest.approx(min(sums) / max(sums))


def test_what_is_even_and_what_is_collapsed():
    axes = np.concatenate([np.eye(4), -np.eye(4)])
    assert partition_ratio(axes) == pytest.approx(1)
    assert mean_cosine(axes) == pytest.approx(-1 / 7)
    assert spectrum(axes) == pytest.approx([1, 1, 1, 1])
    assert partition_ratio(np.ones((5, 3))) == pytest.approx(exp(-2))
    assert mean_cosine(np.ones((5, 3))) == pytest.approx(1)


@pytest.mark.parametrize("measure", MEASURES)
def test_lengths_order_and_rotation_change_nothing(measure, rows):
    draw = np.random.default_rng(2)
    rotation = np.linalg.qr(draw.normal(size=(6, 6))).Q
    lengths = draw.uniform(0.1, 9, size=(40, 1))
    changed = (rows * lengths)[draw.permutation(40)] @ rotation
    assert measure(changed) == pytest.approx(measure(rows), abs=1e-7)


@pytest.mark.parametrize("bad", [0, np.nan, np.inf])
@pytest.mark.parametrize("measure", [*MEASURES, unit_rows])
def test_a_row_without_a_direction_is_named(measure, bad, rows):
    rows[7] = bad
    with pytest.raises(DataError, match="row 7 is zero or has a NaN or infinite number"):
        measure(rows)
