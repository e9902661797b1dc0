"""Packed backbones against transformers' own padded forward: states and gradients, without dropout
and with it.

Two samples of states are compared by their means and their variances. The bounds follow from the
samples themselves: a mean of n draws has variance s^2 / n, and a variance of n draws has variance
(m4 - s^4) / n, where m4 is the fourth central moment.

Gradients are those of the masks that were drawn: the same seed draws the same masks, so the loss is
a smooth function of the weights, and its slope along any direction is a difference quotient.
"""

import pytest
import torch
from helpers.padded import gradients, ids_of, packed_states, padded_states
from helpers.tiny_models import FAMILY, config_of, transformer

from contrasent.data.batch import pack
from contrasent.model.backbones.auto import AutoBackbone
from contrasent.model.backbones.kernels import Blocks
from contrasent.model.backbones.packed_bert import PackedBert
from contrasent.model.weights import backbone_of

BAR = 1e-5

LENGTHS = {
    "random, 1 to 512": [1, 512, 37, 3, 200, 1, 90],
    "equal": [8, 8, 8],
    "equal, 1 token": [1, 1, 1, 1],
    "one sentence": [17],
    "one token": [1],
}
VOCABULARY, FEW = 100, 60


def tiny(model_type, vocabulary=FEW, **changes):
    """A tiny model in training mode."""
    model = transformer(config_of(model_type, vocabulary, **changes))
    if hasattr(model, "pooler"):
        model.pooler = None
    return model.train()


def dropouts(model):
    return {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Dropout)}


def no_dropout(model_type, **changes):
    if model_type == "modernbert":  # one layer sees all, the other what is near
        changes = {"local_attention": 6, "global_attn_every_n_layers": 2}
    model = tiny(model_type, VOCABULARY, positions=512, **changes)
    for module in dropouts(model).values():
        module.p = 0.0
    return model


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


DRAWS = 3000
DEVIATIONS = 5.0  # of a normal: 6e-7 per number, a few hundred numbers per comparison
DROPPING = ("bert", "roberta", "distilbert")


def samples(states):
    """The first token's states as ``(draws, layers * D)`` float64."""
    firsts = [state.view(DRAWS, -1, state.shape[-1])[:, 0] for state in states]
    return torch.cat(firsts, dim=1).double()


def draw(model, sentence):
    """Two samples of the same sentence, transformers' and ours, one forward call each."""
    torch.manual_seed(0)
    with torch.no_grad():
        theirs = samples(padded_states(model, [sentence] * DRAWS))
        ours = samples(packed_states(PackedBert(model).train(), [sentence] * DRAWS))
    return theirs, ours


def moments(sample):
    """Mean and variance of each column, and the variances of these two estimates."""
    mean = sample.mean(0)
    squares = (sample - mean) ** 2
    return mean, squares.mean(0), squares.mean(0) / len(sample), squares.var(0) / len(sample)


def largest_deviation(a, b):
    """How many standard errors the means and the variances of two samples are apart."""
    mean_a, var_a, mean_error_a, var_error_a = moments(a)
    mean_b, var_b, mean_error_b, var_error_b = moments(b)
    tiny_number = 1e-12  # states before the first dropout that acts do not vary at all
    of_mean = (mean_a - mean_b).abs() / (mean_error_a + mean_error_b + tiny_number).sqrt()
    of_variance = (var_a - var_b).abs() / (var_error_a + var_error_b + tiny_number).sqrt()
    return max(of_mean.max().item(), of_variance.max().item())


@pytest.mark.parametrize("model_type", DROPPING)
def test_each_place_alone(model_type):
    model = tiny(model_type)
    sentence = ids_of([4], FEW)[0]
    places = dropouts(model)
    for name, chosen in places.items():
        for module in places.values():
            module.p = 0.3 if module is chosen else 0.0
        theirs, ours = draw(model, sentence)
        assert theirs.var(0).max() > 1e-4, f"{name} does nothing in transformers"
        assert largest_deviation(theirs, ours) < DEVIATIONS, name


def test_the_first_rows_alone_are_drawn_from_the_same_distribution():
    model = tiny("bert")
    sentence = ids_of([6], FEW)[0]
    theirs, _ = draw(model, sentence)
    backbone = PackedBert(model).train()
    with torch.no_grad():
        rows = backbone(pack([sentence] * DRAWS), [-1], first_only=True)[-1]
    assert largest_deviation(theirs[:, -16:], rows.double()) < DEVIATIONS


def test_set_dropout_sets_every_rate():
    backbone = PackedBert(tiny("bert"))
    backbone.set_dropout(0.0)
    batch = pack(ids_of([4, 6], FEW) * 2, views=2)
    one, two = backbone.train()(batch, [-1])[-1].chunk(2)
    torch.testing.assert_close(one, two)
    backbone.set_dropout(0.25)
    assert {module.p for module in dropouts(backbone).values()} == {0.25}


SHAPES = {"ragged": [6, 1, 9, 3], "equal": [5, 5, 5]}
STEP = 1e-5


def loss_of(backbone, batch, first_only):
    torch.manual_seed(4)
    layers = [-1] if first_only else [0, 1, -1]
    states = backbone(batch, layers, first_only=first_only)
    generator = torch.Generator().manual_seed(5)
    total = 0.0
    for state in states.values():
        weights = torch.randn(state.shape, generator=generator, dtype=torch.float64)
        total = total + (state * weights).sum()
    return total


@pytest.mark.parametrize("lengths", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert"])
def test_the_slope_along_each_parameter(model_type, first_only, lengths):
    backbone, batch = PackedBert(tiny(model_type).double()), pack(ids_of(lengths, 60))
    backbone.set_dropout(0.3)
    backbone.train()
    parameters = dict(backbone.named_parameters())
    loss = loss_of(backbone, batch, first_only)
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    generator = torch.Generator().manual_seed(6)
    for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        slopes = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(direction, alpha=sign * STEP)
            slopes.append(loss_of(backbone, batch, first_only).item())
            with torch.no_grad():
                parameter.sub_(direction, alpha=sign * STEP)
        quotient = (slopes[0] - slopes[1]) / (2 * STEP)
        slope = (gradient * direction).sum().item()
        assert slope == pytest.approx(quotient, rel=1e-5, abs=1e-5), name


def test_spare_rows_change_no_state_and_no_gradient(tiny_encoder, monkeypatch):
    """bf16 rounds the rows of packed matrices up; fp32 with rounding must equal fp32 without."""
    batch = pack([[2, *range(5, 5 + n), 3] for n in (1, 9, 4, 17, 6, 2)], views=2)
    plain = Blocks.of.__func__
    found = []
    for rounded in (False, True):
        monkeypatch.setattr(
            Blocks,
            "of",
            classmethod(lambda cls, *given, r=rounded, **_: plain(cls, *given, rounded=r)),
        )
        tiny_encoder.zero_grad()
        encoded = tiny_encoder(batch, (1, 2))
        (encoded.pooled.square().sum() + encoded.states[2].pow(3).sum()).backward()
        gradients = [p.grad for p in tiny_encoder.parameters() if p.grad is not None]
        found.append([encoded.pooled, *encoded.states.values(), *gradients])
    assert Blocks.of(batch, 2).rows > len(batch.token_ids)
    for without, with_spare in zip(*found, strict=True):
        torch.testing.assert_close(with_spare, without, atol=1e-6, rtol=1e-5)
