"""Masks: the asked rate, no pattern, and the same from the same seed."""

import numpy as np
import pytest
import torch

from contrasent.model.backbones import kernels as module
from contrasent.model.backbones.kernels import dropout, keep_mask

DEVIATIONS = 5.0
DRAWS = 400_000
EVERY_NUMBER = np.arange(1 << 16, dtype=np.uint16)


def kept(shape, rate, seed=None):
    """One where an element stays and zero where not, and the factor."""
    if seed is not None:
        torch.manual_seed(seed)
    mask, scale = keep_mask(torch.empty(shape), rate)
    assert set(mask.unique().tolist()) <= {0, -1}
    return (mask != 0).double(), scale


class Counting:
    """Each number of 16 bits once, in place of a generator."""

    def __init__(self, _):
        pass

    def random_raw(self, _):
        return EVERY_NUMBER.copy().view(np.uint64)


@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.1, 0.15, 1 / 3, 0.5, 0.9, 0.999])
def test_the_rate_is_exact(rate, monkeypatch):
    monkeypatch.setattr(module.np.random, "SFC64", Counting)
    stays, scale = kept((len(EVERY_NUMBER),), rate)
    assert abs((1 - stays.mean().item()) - rate) <= 1 / 65_536
    assert stays.mean().item() * scale == pytest.approx(1, abs=1e-12)


def test_the_four_of_a_number_are_independent():
    stays, _ = kept((DRAWS, 4), 0.5, seed=2)
    pattern = (stays @ torch.tensor([8.0, 4.0, 2.0, 1.0], dtype=torch.float64)).long()
    shares = torch.bincount(pattern, minlength=16) / DRAWS
    error = (1 / 16 * 15 / 16 / DRAWS) ** 0.5
    assert (shares - 1 / 16).abs().max() < DEVIATIONS * error


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_and_its_gradient(dtype, rng):
    x, weights = rng(6, 7).to(dtype).requires_grad_(), rng(7, 6).to(dtype).T
    stays, scale = kept(x.shape, 0.3, seed=8)
    factor = (stays * scale).to(dtype)
    torch.manual_seed(8)
    found = dropout(x, 0.3)
    torch.testing.assert_close(found, x * factor)
    (gradient,) = torch.autograd.grad(found, x, weights)
    torch.testing.assert_close(gradient, weights * factor)


def test_without_a_rate_nothing_is_drawn(rng):
    x, before = rng(3, 4), torch.get_rng_state()
    assert torch.equal(dropout(x, 0.0), x)
    assert torch.equal(torch.get_rng_state(), before)
