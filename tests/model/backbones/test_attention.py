"""Attention of packed rows, against each sentence and head by itself."""

import math

import pytest
import torch

from contrasent.data.batch import pack
from contrasent.model.backbones import attention as module
from contrasent.model.backbones.attention import Blocks, attention, keep_mask

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


def kept_by(blocks, queries, rate, seed=2):
    """``(S, H, Q, L)`` factors of the weights: the first mask that is drawn from ``seed``."""
    shape = blocks.sentences, HEADS, queries, blocks.longest
    if not rate:
        return torch.ones(shape, dtype=torch.float64)
    torch.manual_seed(seed)
    mask, scale = keep_mask(torch.empty(shape), rate)
    return (mask != 0).double() * scale


def by_sentence(packed, lengths, kept):
    """``(T, D)`` from ``(R, 3 D)``; fewer queries than tokens in ``kept`` are the first ones."""
    mixed = []
    for rows, keep in zip(packed[: sum(lengths)].split(lengths), kept, strict=True):
        query, key, value = rows.view(len(rows), 3, HEADS, -1).unbind(1)
        heads = []
        for head in range(HEADS):
            scores = query[:, head] @ key[:, head].T / math.sqrt(WIDTH // HEADS)
            weights = scores.softmax(-1)[: keep.shape[1]]
            heads.append(weights * keep[head, : len(rows), : len(rows)] @ value[:, head])
        mixed.append(torch.cat(heads, -1))
    return torch.cat(mixed)


def rows_for(blocks, rng, dtype=torch.float64):
    return rng(blocks.rows, 3 * WIDTH).to(dtype).requires_grad_()


def first_by(packed, blocks, rate):
    """:func:`attention` of first tokens, of what it takes of all."""
    query, rest = packed.split([WIDTH, 2 * WIDTH], dim=1)
    return attention(rest.contiguous(), blocks, rate, query[blocks.first])


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_values_and_gradients_are_those_of_each_sentence(rate, blocks, lengths, rng):
    packed, tokens = rows_for(blocks, rng), sum(lengths)
    expected = by_sentence(packed, lengths, kept_by(blocks, blocks.longest, rate))
    torch.manual_seed(2)
    mixed = attention(packed, blocks, rate)
    assert mixed.shape == (blocks.rows, WIDTH)
    torch.testing.assert_close(mixed[:tokens], expected)
    assert not mixed[tokens:].any()
    weights = rng(tokens, WIDTH).double()
    (gradient,) = torch.autograd.grad(mixed[:tokens], packed, weights)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, packed, weights)[0])
    assert not gradient[tokens:].any()


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_first_tokens_alone(rate, blocks, lengths, rng):
    packed = rows_for(blocks, rng)
    expected = by_sentence(packed, lengths, kept_by(blocks, 1, rate))
    torch.manual_seed(2)
    mixed = first_by(packed, blocks, rate)
    torch.testing.assert_close(mixed, expected)
    weights = rng(len(lengths), WIDTH).double()
    (gradient,) = torch.autograd.grad(mixed, packed, weights)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, packed, weights)[0])
    assert not gradient[sum(lengths) :].any()


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
