"""Packed backbones against transformers' own padded forward: states and gradients, dropout 0."""

import pytest
import torch
from helpers.padded import gradients, ids_of, packed_states, padded_states
from helpers.tiny_models import FAMILY, config_of, transformer

from contrasent.data.batch import pack
from contrasent.model.backbones.auto import AutoBackbone
from contrasent.model.weights import backbone_of

BAR = 1e-5

LENGTHS = {
    "random, 1 to 512": [1, 512, 37, 3, 200, 1, 90],
    "equal": [8, 8, 8],
    "equal, 1 token": [1, 1, 1, 1],
    "one sentence": [17],
    "one token": [1],
}
VOCABULARY = 100


def no_dropout(model_type, **changes):
    """A tiny model in training mode with every dropout off."""
    if model_type == "modernbert":  # one layer sees all, the other what is near
        changes = {"local_attention": 6, "global_attn_every_n_layers": 2}
    model = transformer(config_of(model_type, VOCABULARY, positions=512, **changes))
    if hasattr(model, "pooler"):
        model.pooler = None
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model.train()


@pytest.fixture(scope="module", params=[*FAMILY, "electra", "mpnet", "modernbert"])
def model(request):
    return no_dropout(request.param)


def by_hook(model, sentences, first):
    """States of transformers with the first rows of its embedding layer overwritten."""

    def overwrite(_module, _given, output):
        return torch.cat([first.unsqueeze(1), output[:, 1:]], dim=1)

    name = "embeddings_project" if model.config.model_type == "electra" else "embeddings"
    hook = model.get_submodule(name).register_forward_hook(overwrite)
    states = padded_states(model, sentences)
    hook.remove()
    return states


def assert_same(model, sentences, first=None):
    backbone, more = backbone_of(model).train(), {} if first is None else {"first": first}
    assert not isinstance(backbone, AutoBackbone)
    expected = by_hook(model, sentences, first) if more else padded_states(model, sentences)
    got = packed_states(backbone, sentences, first_state=first)
    for layer, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        torch.testing.assert_close(mine, theirs, rtol=BAR, atol=BAR, msg=f"layer {layer}")
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(state.shape, generator=generator) for state in expected]
    theirs = gradients(model, expected, weights, **more)
    mine = gradients(model, got, weights, **more)
    assert all(gradient is not None for gradient in theirs.values())
    for name, gradient in theirs.items():
        torch.testing.assert_close(mine[name], gradient, rtol=BAR, atol=BAR, msg=name)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_states_and_gradients_are_those_of_transformers(model, lengths):
    assert_same(model, ids_of(lengths, VOCABULARY))


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "relu"},
        {"hidden_act": "gelu_new"},
        {"num_attention_heads": 4, "num_hidden_layers": 3},
        {"layer_norm_eps": 0.1},
        {"attn_implementation": "eager"},
    ],
    ids=str,
)
@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_other_configurations(model_type, changes):
    assert_same(no_dropout(model_type, **changes), ids_of([5, 1, 9], VOCABULARY))


def test_a_given_first_state_takes_the_place_of_what_the_embedding_layer_made(model):
    first = torch.randn(4, 16, generator=torch.Generator().manual_seed(7)).requires_grad_()
    assert_same(model, ids_of([7, 1, 30, 2], VOCABULARY), first)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_first_rows_alone_are_those_of_the_whole(model, lengths):
    backbone, batch = backbone_of(model), pack(ids_of(lengths, VOCABULARY))
    rows = backbone(batch, [-1], first_only=True)[-1]
    if model.config.model_type in ("mpnet", "modernbert"):  # which compute all of them
        rows = rows[batch.offsets[:-1]]
    assert rows.shape == (len(lengths), 16)
    whole = backbone(batch, [-1])[-1][batch.offsets[:-1]]
    torch.testing.assert_close(rows, whole, rtol=0, atol=BAR)
    weights = [torch.randn(rows.shape, generator=torch.Generator().manual_seed(2))]
    expected = gradients(model, [whole], weights)
    for name, gradient in gradients(model, [rows], weights).items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=BAR, msg=name)


def test_bf16_is_close(model):
    backbone, batch = backbone_of(model).eval(), pack(ids_of([7, 1, 30, 2, 64], VOCABULARY))
    with torch.no_grad():
        exact = backbone(batch, [1, -1])
        with torch.autocast("cpu", torch.bfloat16):
            rough = backbone(batch, [1, -1])
    for layer, state in exact.items():
        cosine = torch.cosine_similarity(rough[layer].float(), state, dim=-1)
        assert 0.999 < cosine.min() < 1
        assert not torch.equal(rough[layer].float(), state)


def test_bf16_gradients_are_close(model):
    backbone, sentences = backbone_of(model), ids_of([7, 1, 30, 2], VOCABULARY)
    weights = [torch.randn(40, 16, generator=torch.Generator().manual_seed(3)) for _ in range(3)]
    exact = gradients(model, packed_states(backbone, sentences), weights)
    with torch.autocast("cpu", torch.bfloat16):
        states = packed_states(backbone, sentences)
    rough = gradients(model, [state.float() for state in states], weights)
    flat = [torch.cat([g.flatten() for g in found.values()]) for found in (exact, rough)]
    assert torch.cosine_similarity(*flat, dim=0) > 0.999
