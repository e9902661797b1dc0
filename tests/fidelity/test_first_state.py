"""A given first state goes into layer 1 in place of what the embedding layer made of the token.

The reference is transformers' padded forward with a hook of the tests' own on its embedding layer.
"""

import pytest
import torch
import transformers
from helpers.padded import ids_of, padded_states
from helpers.tiny_models import FAMILY, SIZES, config_of, transformer

from contrasent.data.batch import pack
from contrasent.errors import ConfigError
from contrasent.model.backbones.auto import AutoBackbone
from contrasent.model.backbones.packed_bert import PackedBert
from contrasent.model.weights import backbone_of

BAR = 1e-6
VOCABULARY = 60
WIDTH = 16


OTHERS = {
    "mpnet": (transformers.MPNetConfig, {"pad_token_id": 1}, "embeddings"),
    "electra": (transformers.ElectraConfig, {"embedding_size": 8}, "embeddings_project"),
    "modernbert": (
        transformers.ModernBertConfig,
        {"local_attention": 8}
        | {f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")},
        "embeddings",
    ),
}


def set_dropout(model, rate):
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = rate
    return model.train()


def family(model_type, rate=0.0, **changes):
    model = transformer(config_of(model_type, VOCABULARY, **changes))
    if hasattr(model, "pooler"):
        model.pooler = None
    return set_dropout(model, rate)


def normal(*shape, seed=7, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()


def random_lengths(seed):
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.randint(2, 12, (), generator=generator))
    return torch.randint(1, 40, (count,), generator=generator).tolist()


def by_hook(model, layer, sentences, first):
    """States of transformers with rows 0 of the output of ``layer`` overwritten."""

    def overwrite(_module, _given, output):
        output = output.clone()
        for row in range(len(output)):
            output[row, 0] = first[row]
        return output

    hook = model.get_submodule(layer).register_forward_hook(overwrite)
    states = padded_states(model, sentences)
    hook.remove()
    return states


def injected(backbone, sentences, first, **kwargs):
    states = backbone(pack(sentences), [0, 1, 2], first_state=first, **kwargs)
    return [states[number] for number in range(3)]


def gradients(model, first, states):
    """Of a weighted mean of all states, by name of the parameter; "first" is the given state."""
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(s.shape, generator=generator).to(s) for s in states]
    loss = sum((s * w).sum(-1).mean() for s, w in zip(states, weights, strict=True))
    leaves = {"first": first, **dict(model.named_parameters())}
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return dict(zip(leaves, found, strict=True))


def assert_close(found, expected, bar=BAR):
    """To ``bar``, relative to numbers beyond 1."""
    for name, wanted in expected.items():
        assert (found[name] is None) == (wanted is None), name
        if wanted is not None:
            torch.testing.assert_close(found[name], wanted, rtol=bar, atol=bar, msg=str(name))


def assert_same(backbone, layer, sentences, bar=BAR):
    model = backbone.model
    first = normal(len(sentences), WIDTH, dtype=model.dtype)
    theirs = by_hook(model, layer, sentences, first)
    ours = injected(backbone, sentences, first)
    assert ours[0][pack(sentences).offsets[:-1]].equal(first)
    assert_close(dict(enumerate(ours)), dict(enumerate(theirs)), bar)
    assert_close(gradients(model, first, ours), gradients(model, first, theirs), bar)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("model_type", FAMILY)
def test_packed_states_and_gradients(model_type, seed):
    backbone = PackedBert(family(model_type)).train()
    assert_same(backbone, "embeddings", ids_of(random_lengths(seed), VOCABULARY))


@pytest.mark.parametrize("name", OTHERS)
def test_other_packed_architectures(name):
    kind, changes, layer = OTHERS[name]
    model = transformer(kind(vocab_size=VOCABULARY, max_position_embeddings=64, **SIZES, **changes))
    backbone = backbone_of(set_dropout(model, 0.0)).train()
    sentences = ids_of(random_lengths(4), VOCABULARY)
    assert_same(backbone, layer, sentences, bar=1e-5)


def test_the_replaced_token_gets_no_gradient():
    """Each first token occurs nowhere else, and position 0 is that of first tokens only."""
    model = family("bert")
    sentences = [[50 + row, *range(6, 8 + row)] for row in range(4)]
    first = normal(4, WIDTH)
    found = gradients(model, first, injected(PackedBert(model), sentences, first))
    words = found["embeddings.word_embeddings.weight"]
    assert words[50:54].count_nonzero() == 0
    assert words[6:8].abs().min() > 0
    positions = found["embeddings.position_embeddings.weight"]
    assert positions[0].count_nonzero() == 0
    assert positions[1].abs().min() > 0
    assert found["first"].abs().min() > 0


def test_an_architecture_without_such_a_layer_is_refused():
    config = transformers.XLNetConfig(
        vocab_size=VOCABULARY, d_model=WIDTH, n_layer=2, n_head=2, d_inner=24
    )
    with pytest.raises(ConfigError, match=r"first state of .* 'xlnet' cannot"):
        AutoBackbone(transformer(config))(pack([[5, 6]]), first_state=normal(1, WIDTH))
