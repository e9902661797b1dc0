"""Dropout, residual and LayerNorm in one function, against the same in three steps."""

import pytest
import torch
from helpers.tiny_models import shaken
from torch import nn
from torch.nn import functional as F

from contrasent.model.backbones.kernels import dropout_norm, keep_mask

ROWS, WIDTH, RATE = 7, 16, 0.3
USED = {"both": (1.0, 1.0), "the wide one": (1.0, 0.0), "the narrow one": (0.0, 1.0)}
DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("used", USED.values(), ids=USED)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_and_gradients_are_those_of_three_steps(dtype, used, rng):
    state, norm = rng(ROWS, WIDTH).requires_grad_(), shaken(nn.LayerNorm(WIDTH, eps=1e-3))
    x = rng(ROWS, WIDTH).to(dtype).requires_grad_()
    leaves = [state, x, norm.weight, norm.bias]
    torch.manual_seed(3)
    mask, scale = keep_mask(x, RATE)
    kept = (mask != 0).float() * scale
    assert 0 < (kept == 0).sum() < kept.numel()
    total = state + x.float() * kept
    expected = F.layer_norm(total, (WIDTH,), norm.weight, norm.bias, norm.eps)
    torch.manual_seed(3)
    normed, narrow = dropout_norm(state, x, RATE, norm)
    assert (normed.dtype, narrow.dtype) == (torch.float32, dtype)
    torch.testing.assert_close(normed, expected)
    assert torch.equal(narrow, normed.to(dtype))
    gradients = []
    weights = rng(ROWS, WIDTH), rng(ROWS, WIDTH)
    for wide, cast in ((normed, narrow), (expected, expected.to(dtype))):
        parts = zip((wide, cast.float()), weights, used, strict=True)
        loss = sum((part * w).sum() for part, w, is_used in parts if is_used)
        gradients.append(torch.autograd.grad(loss, leaves))
    for mine, theirs in zip(*gradients, strict=True):
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs)
