"""Products with their bias inside, against torch's own in fp32."""

import pytest
import torch
from torch.nn import functional as F

from contrasent.model.backbones.layers import Linear, has_products

pytestmark = pytest.mark.precision

ROUNDING = 2**-8  # of bf16, relative; sums are fp32 inside
SHAPES = [(1, 8, 8), (5, 16, 24), (33, 24, 16), (1, 1, 1)]


@pytest.fixture
def bf16_products():
    if not has_products(torch.device("cpu"), torch.bfloat16):
        pytest.skip("this CPU has no bf16 products in oneDNN")


def leaves(rng, rows, wide, narrow, dtype):
    parts = rng(rows, wide), rng(narrow, wide), rng(narrow)
    return [part.to(dtype).requires_grad_() for part in parts]


def in_fp32(parts):
    return [part.detach().float().requires_grad_() for part in parts]


def assert_rounded(found, exact):
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), exact, rtol=2 * ROUNDING, atol=1e-3)


@pytest.mark.usefixtures("bf16_products")
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_bf16_values_and_gradients_are_those_of_fp32(sizes, rng):
    parts = leaves(rng, *sizes, torch.bfloat16)
    exact_parts = in_fp32(parts)
    found, exact = Linear(*parts[1:])(parts[0]), F.linear(*exact_parts)
    assert found.shape == (sizes[0], sizes[2])
    assert_rounded(found, exact)
    weights = rng(*found.shape).to(torch.bfloat16)
    gradients = torch.autograd.grad(found, parts, weights)
    expected = torch.autograd.grad(exact, exact_parts, weights.float())
    for gradient, theirs in zip(gradients, expected, strict=True):
        assert_rounded(gradient, theirs)
