"""ELECTRA, MPNet and ModernBERT on packed tokens, beside transformers' own padded forward."""

import pytest
import torch
import transformers
from helpers.tiny_models import transformer

from contrasent.data.batch import pack
from contrasent.errors import ConfigError
from contrasent.model.backbones.auto import AutoBackbone
from contrasent.model.int8 import Int8Bert
from contrasent.model.weights import backbone_of

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 64,
}
SENTENCES = [[5, 6], [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18], [19], [20, 21, 22, 23, 24]]


def config_of(name, **changes):
    kinds = {
        "electra": (transformers.ElectraConfig, {"embedding_size": 8}),
        "mpnet": (transformers.MPNetConfig, {"pad_token_id": 1}),
        "modernbert": (
            transformers.ModernBertConfig,
            {"local_attention": 6, "pad_token_id": 0, "global_attn_every_n_layers": 3},
        ),
    }
    kind, more = kinds[name]
    return kind(**{**SIZES, **more, **changes})


NAMES = ("electra", "mpnet", "modernbert")


@pytest.fixture(params=NAMES)
def model(request):
    return transformer(config_of(request.param))


def both(model, batch, layers, **how):
    kinds = (backbone_of(model), AutoBackbone(model))
    return [kind.eval()(batch, layers, **how) for kind in kinds]


def assert_alike(mine, theirs):
    for number, state in theirs.items():
        torch.testing.assert_close(mine[number], state, atol=1e-5, rtol=0)


def test_all_states_are_those_of_transformers(model):
    assert not isinstance(backbone_of(model), AutoBackbone)
    with torch.no_grad():
        assert_alike(*both(model, pack(SENTENCES), (0, 1, 2, 3)))
        assert_alike(*both(model, pack([SENTENCES[1]]), (0, -1)))
    assert_alike(*both(model, pack(SENTENCES), (0, 1, 2, 3)))  # with gradients


def test_gradients_are_those_of_transformers(model):
    gradients = []
    for kind in (backbone_of, AutoBackbone):
        model.zero_grad()
        state = kind(model).eval()(pack(SENTENCES), (-1,))[-1]
        (state * torch.linspace(-1, 1, 16)).square().sum().backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[1].items():
        torch.testing.assert_close(gradients[0][name], gradient, atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize("name", ["electra", "mpnet"])
def test_int8_refuses_what_it_would_compute_wrongly(name):
    with pytest.raises(ConfigError, match=f"not '{name}'"):
        Int8Bert.from_backbone(backbone_of(transformer(config_of(name))))


@pytest.mark.parametrize(("is_causal", "padding"), [(True, -1), (False, 0)])
def test_a_decoder_sees_what_its_config_says(is_causal, padding):
    config = transformers.Qwen2Config(**SIZES, num_key_value_heads=1)
    config.is_causal, config.pad_token_id = is_causal, padding  # LLaMA's first says -1
    backbone = backbone_of(transformer(config)).eval()
    with torch.no_grad():
        first = backbone(pack([[5, 6, 7]]), (-1,))[-1][0]
        other = backbone(pack([[5, 6, 9], [4, 8]]), (-1,))[-1][0]
    assert torch.allclose(first, other, atol=1e-5) is is_causal


def test_a_decoder_is_made_to_see_both_sides_and_says_so_in_its_config():
    config = transformers.Qwen2Config(**SIZES, num_key_value_heads=1, pad_token_id=0)
    backbone = backbone_of(transformer(config)).eval()
    batches = [pack([[5, 6, 7]]), pack([[5, 6, 9], [4, 8]])]
    assert backbone.identity == ()
    with torch.no_grad():
        assert torch.allclose(*(backbone(it, (-1,))[-1][0] for it in batches), atol=1e-5)
        backbone.see_both_sides()
        alone, other = (backbone(it, (-1,))[-1][0] for it in batches)
        padded = backbone(pack([[5, 6, 7], [4, 8, 3, 2]]), (-1,))[-1][0]
    assert not torch.allclose(alone, other, atol=1e-5)
    assert torch.allclose(alone, padded, atol=1e-5)
    assert backbone.model.config.to_dict()["is_causal"] is False
    assert backbone.identity != ()  # the weights are equal, the vectors are not
    for seeing in (backbone, backbone_of(transformer(config_of("electra")))):
        with pytest.raises(ConfigError, match="sees all of the sentence already"):
            seeing.see_both_sides()
