"""Clipping folded into the fused optimiser is ``clip_grad_norm_`` before its step."""

import pytest
import torch

from contrasent.settings import TrainSettings
from contrasent.training.loop import gradient_norm, optimizer_of, set_rate, update

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
        optimizers[0].param_groups[0]["lr"] = rate
        update(optimizers[0], gradient_norm(ours), clip=1.0)
        torch.nn.utils.clip_grad_norm_(theirs, 1.0)
        for group in optimizers[1].param_groups:
            group["lr"] = rate
        optimizers[1].step()
        assert all(a.grad is None for a in ours)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [1e-4, 30.0])
@pytest.mark.parametrize("clip", [1.0, None])
def test_rmsprop_is_torchs_after_clipping(size, clip, rng):
    settings = TrainSettings(optimizer="rmsprop", betas=[0.0, 0.9], eps=1e-7, weight_decay=0.01)
    ours = parameters(rng, size)
    theirs = [torch.nn.Parameter(p.detach().clone()) for p in ours]
    optimizer = optimizer_of(settings, ours)
    expected = torch.optim.RMSprop(theirs, lr=1.0, alpha=0.9, eps=1e-7, weight_decay=0.01)
    for step in range(3):
        rate = 0.01 / (step + 1)
        for a, b in zip(ours, theirs, strict=True):
            a.grad = size * rng(*a.shape)
            b.grad = a.grad.clone()
        set_rate(optimizer, settings, rate, step)
        update(optimizer, gradient_norm(ours), clip)
        if clip:
            torch.nn.utils.clip_grad_norm_(theirs, clip)
        expected.param_groups[0]["lr"] = rate
        expected.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize(("shape", "decay_all"), [((5,), True), ((5,), False), ((5, 1), False)])
def test_adamw_is_its_formula_with_and_without_bias_correction(corrected, shape, decay_all, rng):
    """Loshchilov and Hutter 2019, algorithm 2, number by number; t counts from 1."""
    settings = TrainSettings(
        betas=[0.8, 0.9], eps=1e-2, weight_decay=0.1, bias_correction=corrected, decay_all=decay_all
    )
    decay = 0.1 if decay_all or len(shape) > 1 else 0.0
    parameter, other = torch.nn.Parameter(rng(5)), torch.nn.Parameter(rng(2))
    theta = parameter.detach().double().tolist()
    means, squares = [0.0] * 5, [0.0] * 5
    parameter.data = parameter.data.view(shape)
    optimizer = optimizer_of(settings, [parameter, other])
    for step in range(4):
        rate, t = 0.1 / (step + 1), step + 1
        gradient = rng(5)
        for i, g in enumerate(gradient.double().tolist()):
            means[i] = 0.8 * means[i] + 0.2 * g
            squares[i] = 0.9 * squares[i] + 0.1 * g * g
            m = means[i] / (1 - 0.8**t) if corrected else means[i]
            v = squares[i] / (1 - 0.9**t) if corrected else squares[i]
            theta[i] -= rate * (m / (v**0.5 + 1e-2) + decay * theta[i])
        parameter.grad = gradient.clone().view(shape)
        set_rate(optimizer, settings, rate, step)
        update(optimizer, gradient_norm([parameter]), clip=None)
        assert parameter.flatten().tolist() == pytest.approx(theta, rel=1e-5, abs=1e-6)
