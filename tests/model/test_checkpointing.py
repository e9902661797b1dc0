"""Layers computed again for their gradient: the same gradient, dropout included, in less memory."""

import pytest
import torch
from helpers.tiny_models import config_of, transformer
from torch.autograd.graph import saved_tensors_hooks

from contrasent.data.batch import pack
from contrasent.errors import ConfigError
from contrasent.model.backbones.auto import AutoBackbone
from contrasent.model.backbones.packed_bert import PackedBert


@pytest.fixture(params=[PackedBert, AutoBackbone])
def backbone(request):
    return request.param(transformer(config_of("bert", 60, num_hidden_layers=4))).train()


def gradients(backbone, layers, first_only, checkpointed):
    """Gradients of all parameters, and what torch's generator gives afterwards."""
    backbone.set_checkpointing(checkpointed)
    torch.manual_seed(5)
    batch = pack([[2, *range(5, 5 + n), 3] for n in (1, 7, 12, 3)])
    states = backbone(batch, layers, first_only=first_only)
    loss = sum(state.float().square().mean() for state in states.values())
    loss.backward()
    found = {name: p.grad for name, p in backbone.named_parameters() if p.grad is not None}
    backbone.zero_grad(set_to_none=True)
    return found, torch.rand(1)


@pytest.mark.parametrize(
    ("layers", "first_only"), [((-1,), True), ((-1,), False), ((1, -1), False)]
)
def test_the_gradient_is_the_plain_one(backbone, layers, first_only):
    expected, after = gradients(backbone, layers, first_only, False)
    found, left = gradients(backbone, layers, first_only, True)
    assert found.keys() == expected.keys()
    assert len(found) > 60
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-6, atol=1e-7, msg=name)
    assert left.equal(after)


def test_less_is_kept_for_the_backward_pass(backbone):
    def kept(checkpointed):
        sizes = []

        def pack_hook(tensor):
            sizes.append(tensor.nbytes)
            return tensor

        backbone.set_checkpointing(checkpointed)
        with saved_tensors_hooks(pack_hook, lambda tensor: tensor):
            backbone(pack([[2, *[7] * 40, 3]] * 8))
        return sum(sizes)

    assert kept(True) < 0.5 * kept(False)


def test_a_model_that_cannot_is_refused(monkeypatch):
    model = transformer(config_of("bert", 60))
    monkeypatch.setattr(type(model), "supports_gradient_checkpointing", False)
    with pytest.raises(ConfigError, match=r"no gradient checkpointing for .*bert"):
        AutoBackbone(model).set_checkpointing(True)
