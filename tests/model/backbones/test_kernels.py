"""Kernels: attention of packed rows, dropout and its masks, and dropout with residual and norm."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.tiny_models import shaken
from torch import nn
from torch.nn import functional as F

from contrasent.data.batch import pack
from contrasent.model.backbones import kernels as module
from contrasent.model.backbones.kernels import Blocks, attention, dropout, dropout_norm, keep_mask

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


ROWS, HIDDEN, RATE = 7, 16, 0.3
USED = {"both": (1.0, 1.0), "the wide one": (1.0, 0.0), "the narrow one": (0.0, 1.0)}
DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("used", USED.values(), ids=USED)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_and_gradients_are_those_of_three_steps(dtype, used, rng):
    state, norm = rng(ROWS, HIDDEN).requires_grad_(), shaken(nn.LayerNorm(HIDDEN, eps=1e-3))
    x = rng(ROWS, HIDDEN).to(dtype).requires_grad_()
    leaves = [state, x, norm.weight, norm.bias]
    torch.manual_seed(3)
    mask, scale = keep_mask(x, RATE)
    kept = (mask != 0).float() * scale
    assert 0 < (kept == 0).sum() < kept.numel()
    total = state + x.float() * kept
    expected = F.layer_norm(total, (HIDDEN,), norm.weight, norm.bias, norm.eps)
    torch.manual_seed(3)
    normed, narrow = dropout_norm(state, x, RATE, norm)
    assert (normed.dtype, narrow.dtype) == (torch.float32, dtype)
    torch.testing.assert_close(normed, expected)
    assert torch.equal(narrow, normed.to(dtype))
    gradients = []
    weights = rng(ROWS, HIDDEN), rng(ROWS, HIDDEN)
    for wide, cast in ((normed, narrow), (expected, expected.to(dtype))):
        parts = zip((wide, cast.float()), weights, used, strict=True)
        loss = sum((part * w).sum() for part, w, is_used in parts if is_used)
        gradients.append(torch.autograd.grad(loss, leaves))
    for mine, theirs in zip(*gradients, strict=True):
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs)


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


@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.1, 0.15, 1 / 3, 0.5, 0.9, 0.999])
def test_the_rate_is_exact(rate, monkeypatch):
    """Of each number of 16 bits once, in place of a generator's."""
    counting = SimpleNamespace(random_raw=lambda _: EVERY_NUMBER.copy().view(np.uint64))
    monkeypatch.setattr(module.np.random, "SFC64", lambda _: counting)
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


@pytest.mark.parametrize("first_only", [False, True])
def test_the_layout_of_what_torch_attends_to_does_not_matter(first_only, tiny_encoder, monkeypatch):
    """On a GPU what comes out is laid out by tokens, in which a sentence of a head is no block."""

    def by_tokens(query, *others):
        mixed = attend(query, *others)
        return mixed.transpose(1, 2).contiguous().transpose(1, 2)

    attend = F.scaled_dot_product_attention
    backbone, batch = tiny_encoder.backbone.eval(), pack([[5, 6, 7], [8, 9], [5]])
    with torch.no_grad():
        expected = backbone(batch, first_only=first_only)[-1]
        monkeypatch.setattr(module, "_writes_weights", lambda *_: False)
        monkeypatch.setattr(F, "scaled_dot_product_attention", by_tokens)
        got = backbone(batch, first_only=first_only)[-1]
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
