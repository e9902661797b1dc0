"""LoRA: nothing changes at first, only low-rank maps are trained, and what is saved is merged."""

import pytest
import torch
from helpers.tiny_models import SENTENCES, save_tiny
from helpers.tiny_runs import TINY

from contrasent.data.batch import pack
from contrasent.model.backbones.auto import AutoBackbone
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.weights import add_lora, effective_weight, merged_state
from contrasent.training.run import train

pytest.importorskip("peft")
IDS = [[2, 7, 8, 9, 3], [2, 10, 3]]


@pytest.fixture(params=["packed", "padded"])
def backbone(request, tiny_encoder):
    if request.param == "padded":
        tiny_encoder.backbone = AutoBackbone(tiny_encoder.backbone.model).eval()
    return tiny_encoder.backbone


def shake(backbone):
    torch.manual_seed(1)
    for name, weight in backbone.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.2)


def test_states_and_gradients_are_those_of_the_merged_weights(backbone, tiny_bert):
    before = backbone(pack(IDS), (-1,))[-1]
    add_lora(backbone, 2, 4.0)
    torch.testing.assert_close(backbone(pack(IDS), (-1,))[-1], before)
    shake(backbone)
    state = backbone(pack(IDS), (-1,))[-1]
    assert (state - before).abs().max() > 0.01
    plain = SentenceEncoder(tiny_bert, pooler="cls", head="none", device="cpu").backbone
    plain.model.load_state_dict(merged_state(backbone.model))
    torch.testing.assert_close(plain(pack(IDS), (-1,))[-1], state, atol=1e-5, rtol=0)
    state.square().sum().backward()
    trained = {n for n, p in backbone.named_parameters() if p.grad is not None}
    assert trained and all("lora_" in name for name in trained)
    assert len(trained) == 2 * 6 * 2  # A and B of six linear maps in two layers


@pytest.mark.parametrize(("rank", "alpha"), [(2, 4.0), (4, 1.0)])
def test_a_change_is_alpha_over_rank_times_the_product(rank, alpha, backbone):
    add_lora(backbone, rank, alpha)
    shake(backbone)
    changed = [part for part in backbone.model.modules() if hasattr(part, "lora_A")]
    assert len(changed) == 2 * 6
    for part in changed:
        (a,), (b,) = part.lora_A.values(), part.lora_B.values()
        expected = part.base_layer.weight + alpha / rank * b.weight @ a.weight
        torch.testing.assert_close(effective_weight(part), expected)


def test_a_run_saves_an_encoder_without_adapters(tmp_path):
    start = save_tiny(tmp_path / "start")
    changes = {"encoder.lora": 2, "train.max_steps": 3, "train.learning_rate": 0.05}
    recipe = TINY["unsup-simcse"].load(tmp_path, {"bert": start}, changes)
    result = train(recipe, tmp_path / "run")
    plain = SentenceEncoder(start, pooler="cls", head="none", device="cpu")
    trained = SentenceEncoder(tmp_path / "run", device="cpu")
    assert result.parameters == sum(it.numel() for it in trained.parameters())
    names = set(plain.backbone.model.state_dict())
    assert set(trained.backbone.model.state_dict()) == names
    before, after = (it.backbone.model.state_dict() for it in (plain, trained))
    changed = {name for name in names if not torch.equal(before[name], after[name])}
    assert changed and all(name.startswith("encoder.layer") for name in changed)
    assert not any("LayerNorm" in name or "bias" in name for name in changed)
    assert trained.encode(SENTENCES).shape == (len(SENTENCES), 16)
