"""The matrices of a layer, cast and joined once per step, and their gradients."""

import pytest
import torch
from helpers.tiny_models import config_of, transformer

from contrasent.model.backbones.layers import LayerWeights, layers_of

NAMES = ("qkv", "output", "up", "down")


def parts_of(layer):
    """The modules behind each of :data:`NAMES`."""
    joined = [layer.query, layer.key, layer.value]
    return dict(zip(NAMES, (joined, [layer.output], [layer.up], [layer.down]), strict=True))


@pytest.fixture(params=["bert", "distilbert"])
def layer(request):
    return layers_of(transformer(config_of(request.param, 60)))[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_values_and_gradients_are_those_of_each_part(kind, dtype, layer, rng):
    weights = LayerWeights.of(layer, dtype)
    for name, modules in parts_of(layer).items():
        leaves = [getattr(module, kind) for module in modules]
        found = getattr(getattr(weights, name), kind)
        assert torch.equal(found, torch.cat([leaf.to(dtype) for leaf in leaves]))
        gradient = rng(*found.shape).to(dtype)
        gradients = torch.autograd.grad(found, leaves, gradient)
        expected = gradient.split([len(leaf) for leaf in leaves])
        for one, other in zip(gradients, expected, strict=True):
            assert one.dtype == torch.float32
            assert torch.equal(one, other.float())


def test_gradients_of_two_passes_add_up(layer):
    """In fp32 the three gradients are views of one tensor; adding to them must not mix them."""
    for _ in range(2):
        LayerWeights.of(layer, torch.float32).qkv.weight.square().sum().backward()
    for part in (layer.query, layer.key, layer.value):
        torch.testing.assert_close(part.weight.grad, 4 * part.weight.detach())
