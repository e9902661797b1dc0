"""Whitening: against the definition, numpy.cov, and itself on other parts of the same rows."""

import numpy as np
import pytest
import torch

from contrasent.errors import DataError
from contrasent.model.transforms import Moments
from contrasent.model.transforms import fit_whitening as fit


def rows_of(count=400, width=12, seed=0):
    """Correlated rows far from 0, some directions a hundred times wider than others."""
    draw = np.random.default_rng(seed)
    mixed = draw.normal(size=(width, width)) * np.logspace(-1, 1, width)[:, None]
    return (draw.normal(size=(count, width)) @ mixed + 2 * draw.normal(size=width)).astype("f4")


def moments_of(rows, parts=1):
    found = Moments(rows.shape[1])
    for part in np.array_split(rows, parts):
        found.add(part)
    return found


def applied(transform, rows):
    return transform(torch.from_numpy(rows)).numpy()


@pytest.mark.parametrize("parts", [1, 3, 399, 500])
def test_moments_do_not_depend_on_the_parts(parts):
    rows = rows_of()
    found = moments_of(rows, parts)
    np.testing.assert_allclose(found.mean, rows.astype("f8").mean(0), rtol=1e-12)
    expected = np.cov(rows.astype("f8").T)
    np.testing.assert_allclose(found.covariance, expected, atol=1e-11 * np.abs(expected).max())
    second = rows.astype("f8").T @ rows.astype("f8")
    np.testing.assert_allclose(found.second, second, atol=1e-11 * np.abs(second).max())


def test_moments_keep_their_digits_far_from_zero():
    rows = (np.random.default_rng(0).normal(size=(1000, 2)) + 1e6).astype("f8")
    np.testing.assert_allclose(moments_of(rows, 7).covariance, np.cov(rows.T), rtol=1e-6)


def test_it_is_the_definition():
    """``(x - mu) W`` with ``W = U diag(1 / sqrt(S))`` from the published code's SVD."""
    rows = rows_of().astype("f8")
    u, s, _ = np.linalg.svd(np.cov(rows.T))
    expected = (rows - rows.mean(0)) @ u @ np.diag(1 / np.sqrt(s))
    found = applied(fit(moments_of(rows_of()))[0], rows_of())
    signs = np.sign((expected * found).sum(0))
    np.testing.assert_allclose(found, expected * signs, atol=2e-4)


def test_fewer_dimensions_are_those_of_the_largest_variance():
    rows = rows_of()
    whole, some = (applied(fit(moments_of(rows), k)[0], rows) for k in (None, 4))
    np.testing.assert_allclose(some, whole[:, :4], atol=1e-5)
    variances = np.sort(np.linalg.eigvalsh(np.cov(rows.astype("f8").T)))[::-1]
    share = fit(moments_of(rows), 4)[2]
    assert share == pytest.approx(variances[:4].sum() / variances.sum(), rel=1e-9)


def test_one_constant_direction_is_left_out_unasked_and_refused_when_asked_for():
    rows = rows_of(width=11)
    rows = np.concatenate([rows, rows[:, :1] * 2 - rows[:, 1:2] + 3], axis=1)
    transform, rank, _ = fit(moments_of(rows))
    assert (rank, transform.width) == (11, 11)
    white = applied(transform, rows).astype("f8")
    assert np.abs(np.cov(white.T) - np.eye(11)).max() < 1e-4
    with pytest.raises(DataError, match="rank is 11 of 12"):
        fit(moments_of(rows), 12)


@pytest.mark.parametrize("rank", [0, 4])
def test_a_covariance_of_low_rank_is_named(rank):
    moments = moments_of(np.tile(rows_of(rank + 1), (20, 1)))
    with pytest.raises(DataError, match=rf"rank is {rank} of 12, .*sentences that differ more"):
        fit(moments)
    if rank:
        assert fit(moments, rank)[0].width == rank
