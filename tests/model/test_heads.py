"""Heads against the formulas of the papers."""

import pytest
import torch
from torch import nn

from contrasent.model.heads import BatchNormHead

WIDTH = 6


def projection_mlp(width):
    """The module of DiffCSE's Appendix A."""
    return nn.Sequential(
        nn.Linear(width, 2 * width, bias=False),
        nn.BatchNorm1d(2 * width),
        nn.ReLU(inplace=True),
        nn.Linear(2 * width, width, bias=False),
        nn.BatchNorm1d(width, affine=False),
    )


@pytest.fixture
def head(rng):
    """A projector whose normalisation has weights of its own too."""
    made = BatchNormHead(WIDTH)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(0.5 * rng(*parameter.shape))
    return made


def test_the_projector_is_the_module_of_the_paper(head, rng):
    theirs = projection_mlp(WIDTH)
    theirs.load_state_dict(head.net.state_dict())
    for _ in range(3):
        ours, expected = (rng(2, 5, WIDTH).requires_grad_() for _ in range(2))
        expected.data.copy_(ours.data)
        weights = rng(2, 5, WIDTH)
        (head(ours) * weights).sum().backward()
        (theirs(expected.view(10, WIDTH)).view(2, 5, WIDTH) * weights).sum().backward()
        torch.testing.assert_close(ours.grad, expected.grad)
    torch.testing.assert_close(head.net.state_dict(), theirs.state_dict())
    for parameter, wanted in zip(head.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, wanted.grad)
    rows = rng(4, WIDTH)
    torch.testing.assert_close(head.eval()(rows), theirs.eval()(rows))


def test_the_projector_starts_as_the_papers_does():
    torch.manual_seed(0)
    first, normalise, _, second, last = BatchNormHead(256).net
    for layer in (first, second):
        assert layer.bias is None
        assert layer.weight.mean().item() == pytest.approx(0, abs=3e-4)
        assert layer.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert (first.out_features, second.out_features) == (512, 256)
    assert (normalise.weight == 1).all()
    assert (normalise.bias == 0).all()
    assert (last.weight, last.bias) == (None, None)
    assert (last.eps, last.momentum) == (1e-5, 0.1)
