"""Attention of packed rows: torch's own kernel, and masks without gradients."""

import pytest
import torch

from contrasent.data.batch import pack
from contrasent.model.backbones import kernels as module
from contrasent.model.backbones.kernels import Blocks, attention

HEADS, WIDTH = 2, 8
LENGTHS = {"ragged": [3, 1, 6], "equal": [4, 4], "one token": [1], "just above a step": [17, 2]}


@pytest.fixture(params=LENGTHS.values(), ids=LENGTHS)
def lengths(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["exact", "rounded"])
def blocks(request, lengths):
    return blocks_of(lengths, rounded=request.param)


def blocks_of(lengths, rounded=False):
    return Blocks.of(pack([[5] * n for n in lengths]), HEADS, rounded=rounded)


def rows_for(blocks, rng, dtype=torch.float64):
    return rng(blocks.rows, 3 * WIDTH).to(dtype).requires_grad_()


def first_by(packed, blocks, rate):
    """:func:`attention` of first tokens, of what it takes of all."""
    query, rest = packed.split([WIDTH, 2 * WIDTH], dim=1)
    return attention(rest.contiguous(), blocks, rate, query[blocks.first])


@pytest.mark.parametrize("compute", [attention, first_by])
def test_torch_s_own_kernel_gives_the_same(compute, blocks, lengths, rng, monkeypatch):
    """That of accelerators which lack the variable-length one, and of long sentences on CPUs."""
    found = []
    packed, weights = rows_for(blocks, rng), rng(len(lengths), WIDTH).double()
    for steps in (True, False):
        monkeypatch.setattr(module, "_writes_weights", lambda *_, steps=steps: steps)
        mixed = compute(packed, blocks, 0.0)
        firsts = mixed[blocks.first] if compute is attention else mixed
        found.append((mixed, *torch.autograd.grad(firsts, packed, weights)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("compute", [attention, first_by])
@pytest.mark.parametrize("length", [6, 140])
def test_a_pass_without_gradients_draws_the_same_masks(length, compute, rng):
    blocks = blocks_of([length, 3])
    packed = rows_for(blocks, rng)
    torch.manual_seed(0)
    expected = compute(packed, blocks, 0.2)
    torch.manual_seed(0)
    with torch.no_grad():
        assert torch.equal(compute(packed, blocks, 0.2), expected)
