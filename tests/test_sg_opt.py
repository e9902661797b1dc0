"""SG-OPT: its formula, the frozen clone, the distance from the start, and its runs."""

import pytest
import torch
from helpers import oracles

from contrasent import objectives
from contrasent.data.batch import pack

ROWS = [[2, 10, 11, 3], [2, 20, 21, 22, 3], [2, 30, 3]]


def built(encoder, **settings):
    return objectives.build(
        "sg_opt", {"projection": 8, **settings}, width=16, data_views=1, encoder=encoder
    )


def test_a_step_is_computed_as_the_paper_says(tiny_encoder):
    """Means of every layer of transformers' own forward, projected, and the loops."""
    torch.manual_seed(0)
    objective = built(tiny_encoder, distance_weight=0.0, temperature=0.1)
    batch = pack(ROWS)
    layers = []
    for row in ROWS:
        states = tiny_encoder.backbone.model(torch.tensor([row]), output_hidden_states=True)
        layers.append([state[0].mean(0) for state in states.hidden_states])
    guides = torch.stack([torch.stack(layer) for layer in zip(*layers, strict=True)]).detach()
    encoded = tiny_encoder(batch)
    first, gelu, second, _ = objective.projector

    def project(rows):
        return torch.nn.functional.gelu(second(gelu(first(rows))))

    expected = oracles.self_guided(project(encoded.pooled[0]), project(guides), 0.1)
    terms = objective(encoded, batch)
    assert terms.keys() == {"guided"}
    torch.testing.assert_close(terms["guided"], expected, rtol=1e-4, atol=1e-5)
    assert first.weight.std().item() == pytest.approx(0.02, rel=0.3)
    assert not first.bias.any() and not second.bias.any()


def test_the_guide_stays_while_the_encoder_moves_and_the_distance_is_squared(tiny_encoder):
    objective, batch = built(tiny_encoder, distance_weight=0.25), pack(ROWS)
    before = objective._layers(batch)
    assert objective(tiny_encoder(batch), batch)["distance"] == 0
    squares = 0.0
    with torch.no_grad():
        for number, parameter in enumerate(tiny_encoder.parameters()):
            parameter.add_(0.01 * (1 + number % 3))
            squares += parameter.numel() * (0.01 * (1 + number % 3)) ** 2
    distance = objective(tiny_encoder(batch), batch)["distance"]
    assert distance.item() == pytest.approx(0.25 * squares, rel=1e-3)
    (gradient,) = torch.autograd.grad(distance, next(tiny_encoder.parameters()))
    torch.testing.assert_close(gradient, torch.full_like(gradient, 0.005), rtol=1e-2, atol=1e-6)
    torch.testing.assert_close(objective._layers(batch), before, rtol=0, atol=0)
