"""Clipping folded into the fused optimiser is ``clip_grad_norm_`` before its step."""

import pytest
import torch

from contrasent.train.update import gradient_norm, update

SHAPES = [(300, 16), (16,), (16, 16), (1,)]


def parameters(rng, size):
    made = [torch.nn.Parameter(rng(*shape)) for shape in SHAPES]
    for parameter in made:
        parameter.grad = size * rng(*parameter.shape)
    return made


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1.0, weight_decay=0.01, fused=True)


@pytest.mark.parametrize("size", [1e-4, 0.1, 30.0])
def test_the_norm_is_that_of_all_gradients_together(size, rng):
    found = parameters(rng, size)
    expected = torch.cat([p.grad.double().flatten() for p in found]).norm()
    torch.testing.assert_close(gradient_norm(found).double(), expected, rtol=1e-6, atol=0)


def test_parameters_without_a_gradient_count_nothing(rng):
    found = parameters(rng, 1.0)
    norm = gradient_norm(found[:2])
    found[2].grad = found[3].grad = None
    assert gradient_norm(found) == norm
    found[0].grad = found[1].grad = None
    assert gradient_norm(found) == 0


def test_a_gradient_that_lies_across_memory_counts_whole(rng):
    parameter = torch.nn.Parameter(rng(4, 6))
    parameter.grad = rng(6, 4).T
    torch.testing.assert_close(gradient_norm([parameter]), parameter.grad.norm())


@pytest.mark.parametrize("size", [1e-4, 0.1, 30.0])
def test_updates_are_those_of_clipping_first(size, rng):
    ours = parameters(rng, size)
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    optimizers = adamw(ours), adamw(theirs)
    for step in range(4):
        rate = 0.01 / (step + 1)
        for a, b in zip(ours, theirs, strict=True):
            a.grad = size * rng(*a.shape) * (step + 1)
            b.grad = a.grad.clone()
        update(optimizers[0], rate, gradient_norm(ours), clip=1.0)
        torch.nn.utils.clip_grad_norm_(theirs, 1.0)
        for group in optimizers[1].param_groups:
            group["lr"] = rate
        optimizers[1].step()
        assert all(a.grad is None for a in ours)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


def test_a_small_gradient_is_not_touched(rng):
    ours = parameters(rng, 1e-4)
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    for a, b in zip(ours, theirs, strict=True):
        b.grad = a.grad.clone()
    update(adamw(ours), 0.01, gradient_norm(ours), clip=1.0)
    optimizer = adamw(theirs)
    optimizer.param_groups[0]["lr"] = 0.01
    optimizer.step()
    assert all(a.equal(b) for a, b in zip(ours, theirs, strict=True))
