"""Packed rows to blocks and back: nothing is lost, and padding comes from spare rows only."""

import pytest
import torch

from contrasent.data.batch import pack
from contrasent.model.backbones.attention import Blocks, move

HEADS, WIDTH = 2, 6
LENGTHS = {
    "ragged": [3, 1, 6],
    "equal": [4, 4],
    "one token": [1],
    "full and rounded": [16] * 65,
    "just above a step": [17, 2],
}


def batch_of(lengths):
    return pack([[5] * n for n in lengths])


@pytest.fixture(params=LENGTHS.values(), ids=LENGTHS)
def lengths(request):
    return request.param


@pytest.fixture(params=[False, True], ids=["exact", "rounded"])
def blocks(request, lengths):
    return Blocks.of(batch_of(lengths), HEADS, rounded=request.param)


def test_each_token_goes_to_its_place(blocks, lengths, rng):
    parts = 3
    packed = rng(blocks.rows, parts * HEADS * WIDTH)
    block = blocks.spread(packed, parts)
    assert block.shape == (parts, len(lengths) * HEADS, blocks.longest, WIDTH)
    rows = packed.view(blocks.rows, parts, HEADS, WIDTH)
    start = 0
    for sentence, length in enumerate(lengths):
        own = slice(sentence * HEADS, (sentence + 1) * HEADS)
        expected = rows[start : start + length].permute(1, 2, 0, 3)
        assert torch.equal(block[:, own, :length], expected)
        start += length
        if length < blocks.longest:
            spare = rows[sum(lengths)]
            filling = block[:, own, length:]
            assert torch.equal(filling, spare.unsqueeze(2).expand(filling.shape))


def test_each_is_the_gradient_of_the_other(blocks, lengths, rng):
    packed = rng(blocks.rows, 2 * HEADS * WIDTH).requires_grad_()
    block = move(packed, blocks, 2)
    weights = rng(*block.shape)
    (gradient,) = torch.autograd.grad(block, packed, weights)
    assert torch.equal(gradient, blocks.gather(weights))
    other = block.detach().requires_grad_()
    rows = rng(*packed.shape)
    rows[sum(lengths) :] = 0
    (gradient,) = torch.autograd.grad(move(other, blocks), other, rows)
    assert torch.equal(gradient, blocks.spread(rows, 2))


def test_the_bias_forbids_padding_and_nothing_else(blocks, lengths):
    bias = blocks.bias(torch.float32)
    if blocks.mask is None:
        assert bias is None
        assert all(length == blocks.longest for length in lengths)
        return
    assert bias.shape == (len(lengths) * HEADS, 1, blocks.longest)
    for number, row in enumerate(bias[:, 0]):
        length = lengths[number // HEADS]
        assert not row[:length].any()
        assert torch.isneginf(row[length:]).all()
