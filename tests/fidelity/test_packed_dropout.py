"""With dropout, PackedBert draws its states from the distribution transformers draws them from.

Two samples of states are compared by their means and their variances. The bounds follow from the
samples themselves: a mean of n draws has variance s^2 / n, and a variance of n draws has variance
(m4 - s^4) / n, where m4 is the fourth central moment.

Gradients are those of the masks that were drawn: the same seed draws the same masks, so the loss is
a smooth function of the weights, and its slope along any direction is a difference quotient.
"""

import pytest
import torch
from helpers.padded import ids_of, packed_states, padded_states
from helpers.tiny_models import config_of, transformer

from contrasent.data.batch import pack
from contrasent.model.backbones.kernels import Blocks
from contrasent.model.backbones.packed_bert import PackedBert

DRAWS = 3000
DEVIATIONS = 5.0  # of a normal: 6e-7 per number, a few hundred numbers per comparison
VOCABULARY = 60
FAMILY = ("bert", "roberta", "distilbert")


def tiny(model_type):
    model = transformer(config_of(model_type, VOCABULARY))
    if hasattr(model, "pooler"):
        model.pooler = None
    return model.train()


def dropouts(model):
    return {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Dropout)}


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


@pytest.mark.parametrize("model_type", FAMILY)
def test_each_place_alone(model_type):
    model = tiny(model_type)
    sentence = ids_of([4], VOCABULARY)[0]
    places = dropouts(model)
    for name, chosen in places.items():
        for module in places.values():
            module.p = 0.3 if module is chosen else 0.0
        theirs, ours = draw(model, sentence)
        assert theirs.var(0).max() > 1e-4, f"{name} does nothing in transformers"
        assert largest_deviation(theirs, ours) < DEVIATIONS, name


def test_the_first_rows_alone_are_drawn_from_the_same_distribution():
    model = tiny("bert")
    sentence = ids_of([6], VOCABULARY)[0]
    theirs, _ = draw(model, sentence)
    backbone = PackedBert(model).train()
    with torch.no_grad():
        rows = backbone(pack([sentence] * DRAWS), [-1], first_only=True)[-1]
    assert largest_deviation(theirs[:, -16:], rows.double()) < DEVIATIONS


def test_set_dropout_sets_every_rate():
    backbone = PackedBert(tiny("bert"))
    backbone.set_dropout(0.0)
    batch = pack(ids_of([4, 6], VOCABULARY) * 2, views=2)
    one, two = backbone.train()(batch, [-1])[-1].chunk(2)
    torch.testing.assert_close(one, two)
    backbone.set_dropout(0.25)
    assert {module.p for module in dropouts(backbone).values()} == {0.25}


LENGTHS = {"ragged": [6, 1, 9, 3], "equal": [5, 5, 5]}
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


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
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
