"""With dropout, PackedBert draws its states from the distribution transformers draws them from.

Each test compares two samples of states by their means and their variances. The bounds follow
from the samples themselves: a mean of n draws has variance s^2 / n, and a variance of n draws
has variance (m4 - s^4) / n, where m4 is the fourth central moment.
"""

import pytest
import torch
from helpers.padded import ids_of, packed_states, padded_states
from helpers.tiny_models import config_of, transformer

from contrasent.data.batch import pack
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
