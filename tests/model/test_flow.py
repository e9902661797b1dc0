"""The flow: invertible, its determinant that of autograd's Jacobian, parts by formula."""

import math

import pytest
import torch
from helpers.inverse_flow import inverse_flow
from helpers.tiny_models import shaken

from contrasent.errors import ConfigError
from contrasent.model.transforms import Flow


@pytest.mark.parametrize("sizes", [(16, 3, 3), (8, 1, 2), (12, 2, 1), (2, 1, 1)])
def test_inverse_of_forward_is_the_identity(sizes, rng):
    flow, rows = shaken(Flow(*sizes)), 3 * rng(20, sizes[0])
    assert not torch.allclose(flow(rows), rows, atol=0.1)
    torch.testing.assert_close(inverse_flow(flow, flow(rows)), rows, rtol=0, atol=1e-4)
    torch.testing.assert_close(flow(inverse_flow(flow, rows)), rows, rtol=0, atol=1e-4)


def test_bits_per_dimension_are_the_change_of_variables(rng):
    flow, rows = shaken(Flow(16, levels=3, depth=2, coupling_width=6)), rng(5, 16)
    total = 0.0
    for row in rows:
        mapped = flow(row.unsqueeze(0))[0]
        jacobian = torch.autograd.functional.jacobian(lambda it: flow(it.unsqueeze(0))[0], row)
        normal = sum(-0.5 * z.item() ** 2 - 0.5 * math.log(2 * math.pi) for z in mapped)
        total += normal + torch.linalg.slogdet(jacobian)[1].item()
    expected = -total / 5 / 16 / math.log(2)
    assert flow.bits_per_dimension(rows).item() == pytest.approx(expected, rel=1e-5)


def test_a_step_written_out(rng):
    """ActNorm, reversed components, additive coupling, for one sentence in plain loops."""
    flow = shaken(Flow(4, levels=1, depth=1, coupling_width=3))
    state = flow.state_dict()

    def weight(name):
        return state[f"steps.0.0.{name}"].tolist()

    def normed(values, name):
        shift, scale = weight(f"{name}.shift"), weight(f"{name}.log_scale")
        return [(v + b) * math.exp(3 * s) for v, b, s in zip(values, shift, scale, strict=True)]

    def product(matrix, values):
        return [sum(w * v for w, v in zip(row, values, strict=True)) for row in matrix]

    x = rng(1, 4)
    y = normed(x[0].tolist(), "norm")[::-1]
    hidden = y[:2]
    for part in ("inner", "middle"):
        sums = product(weight(f"coupling.{part}.weight"), hidden)
        hidden = [max(it, 0) for it in normed(sums, f"coupling.{part}_norm")]
    outer = product(weight("coupling.outer.weight"), hidden)
    added = [
        (o + b) * math.exp(3 * s)
        for o, b, s in zip(
            outer, weight("coupling.outer.bias"), weight("coupling.log_scale"), strict=True
        )
    ]
    expected = [*y[:2], y[2] + added[0], y[3] + added[1]]
    torch.testing.assert_close(flow(x)[0], torch.tensor(expected), rtol=1e-5, atol=1e-5)


def test_a_new_flow_starts_with_unit_variance(rng):
    rows = rng(500, 16) @ rng(16, 16) + 5
    flow = Flow(16, levels=2, depth=2)
    flow.start(rows)
    mapped = flow(rows)
    torch.testing.assert_close(mapped.mean(0), torch.zeros(16), rtol=0, atol=1e-4)
    torch.testing.assert_close(mapped.square().mean(0), torch.ones(16), rtol=0, atol=1e-3)
    coupling = flow.steps[1][1].coupling
    inner = coupling.inner_norm(coupling.inner(rng(50, 4)))
    assert not torch.equal(coupling.inner_norm.log_scale, torch.zeros(32)), inner


def test_a_constant_component_is_not_blown_up(rng):
    rows = rng(200, 8) + 3
    rows[:, 5] = 1.75
    flow = Flow(8, levels=1, depth=3)
    flow.start(rows)
    flow.bits_per_dimension(rows + 1e-6 * rng(200, 8)).backward()
    largest = max(parameter.grad.norm() for parameter in flow.parameters())
    assert largest < 1
    assert flow(rows).abs().max() < 10


@pytest.mark.parametrize(("width", "levels"), [(300, 3), (15, 1)])
def test_a_width_that_cannot_be_halved_so_often(width, levels):
    with pytest.raises(ConfigError, match=f"halves .* {levels} times: set fewer --levels"):
        Flow(width, levels)
