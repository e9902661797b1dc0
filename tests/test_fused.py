"""The kernels for a GPU against loops; without one, Triton interprets them."""

import pytest
import torch
from torch import nn

from contrasent.data.batch import pack
from contrasent.model.backbones import kernels
from contrasent.model.backbones.kernels import Runs

fused = pytest.importorskip("contrasent.model.backbones.fused", exc_type=ImportError)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS, EXACT = 2, 1e-5


def loop(packed, query, lengths, width, causal=False):
    """``softmax(q k / sqrt(d)) v`` of each sentence and head in turn, in float64."""
    parts = packed.double().view(len(packed), -1, HEADS, width).split(lengths)
    mixed = []
    for sentence, rows in enumerate(parts):
        key, value = rows[:, -2], rows[:, -1]
        asked = rows[:, 0] if query is None else query.double().view(-1, 1, HEADS, width)[sentence]
        scores = torch.einsum("qhd,khd->hqk", asked, key) / width**0.5
        if causal:
            scores += torch.full_like(scores, float("-inf")).triu(1)
        mixed.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).flatten(1))
    return torch.cat(mixed)


# A GPU has torch's kernel for longer sentences.
LENGTHS = [[1], [5, 16, 1], [33, 2], [8, 8], *[[130, 1, 90], [512, 1, 511]] * (DEVICE == "cuda")]
HALF = dict.fromkeys([torch.bfloat16, torch.float16] * (DEVICE == "cuda"), 2e-2)
DTYPES = {torch.float32: EXACT, **HALF}


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("kind", ["all", "first", "causal"])
@pytest.mark.parametrize("width", [8, 24])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_sentence_attends_to_itself(lengths, kind, width, dtype, rng):
    runs = Runs.of(pack([[1] * it for it in lengths]).to(torch.device(DEVICE)), kind == "causal")
    parts = 2 if kind == "first" else 3
    packed = rng(sum(lengths), parts * HEADS * width).to(DEVICE, dtype).requires_grad_()
    query = rng(len(lengths), HEADS * width).to(DEVICE, dtype).requires_grad_()
    given = [packed, query] if kind == "first" else [packed]
    query = query if kind == "first" else None
    if runs.longest > 64:
        if dtype == torch.float32:
            pytest.skip("torch's kernel takes 16 bits")
        got = kernels.packed_attention(packed, HEADS, runs, 0.0, query)
    else:
        got = fused.Attention.apply(packed, query, runs, HEADS, 0.0)
    expected = loop(packed, query, lengths, width, kind == "causal")
    weights = rng(*expected.shape).to(DEVICE)
    mine = torch.autograd.grad((got * weights).sum(), given)
    theirs = torch.autograd.grad((expected * weights).sum(), given)
    for one, other in zip((got, *mine), (expected, *theirs), strict=True):
        assert (one.double() - other.double()).norm() <= DTYPES[dtype] * other.double().norm()


def test_dropped_weights_are_dropped_in_the_gradient_too(rng):
    tokens, width, rate = 20, 24, 0.25
    runs = Runs.of(pack([[1] * tokens]).to(torch.device(DEVICE)))
    packed = rng(tokens, 3, HEADS, width)
    packed[:, 2] = torch.eye(tokens, width).unsqueeze(1)  # so that weights come out
    packed = packed.flatten(1).to(DEVICE).requires_grad_()
    got = fused.Attention.apply(packed, None, runs, HEADS, rate)
    kept = got.view(tokens, HEADS, width)[..., :tokens].transpose(0, 1) != 0
    assert 0.65 < kept.double().mean() < 0.85
    assert not torch.equal(*kept)  # each head has masks of its own
    query, key, value = packed.view(tokens, 3, HEADS, width).transpose(0, 2).unbind(1)
    weights = (query @ key.transpose(1, 2) / width**0.5).softmax(-1) * kept / (1 - rate)
    expected = (weights @ value).transpose(0, 1).flatten(1)
    torch.testing.assert_close(got, expected, rtol=EXACT, atol=EXACT)
    factors = rng(*got.shape).to(DEVICE)
    mine, theirs = (torch.autograd.grad((it * factors).sum(), packed) for it in (got, expected))
    torch.testing.assert_close(mine, theirs, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("rate", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_norm_after_a_residual(rate, dtype, rng):
    norm = nn.LayerNorm(24).to(DEVICE)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    state, x = rng(40, 24).to(DEVICE), rng(40, 24).to(DEVICE, dtype)
    given = [state.requires_grad_(), x.requires_grad_(), norm.weight, norm.bias]
    wide, narrow = fused.DropoutNorm.apply(state, x, rate, norm.weight, norm.bias, norm.eps)
    assert (wide.dtype, narrow.dtype) == (torch.float32, dtype)
    weights = rng(2, 40, 24).to(DEVICE)
    mine = torch.autograd.grad((wide * weights[0] + narrow.float() * weights[1]).sum(), given)
    kept = mine[1] != 0
    assert abs((~kept).double().mean() - rate) < 0.05
    expected = norm(state + torch.where(kept, x.float() / (1 - rate), 0.0))
    torch.testing.assert_close(wide, expected, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(narrow, expected.to(dtype), rtol=1e-2, atol=1e-2)
    loss = (expected * weights[0] + expected.to(dtype).float() * weights[1]).sum()
    theirs = torch.autograd.grad(loss, given)
    for one, other in zip(mine, theirs, strict=True):
        rounding = EXACT if one.dtype == torch.float32 and dtype == torch.float32 else 1e-2
        assert (one.float() - other.float()).norm() <= rounding * other.float().norm()
