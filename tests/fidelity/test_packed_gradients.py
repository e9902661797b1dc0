"""With dropout on, the gradients of PackedBert are those of the masks that it drew.

The same seed draws the same masks, so the loss is a smooth function of the weights, and its slope
along any direction is a difference quotient.
"""

import pytest
import torch
from helpers.padded import ids_of
from helpers.tiny_models import config_of, transformer

from contrasent.data.batch import pack
from contrasent.model.backbones.packed_bert import PackedBert

LENGTHS = {"ragged": [6, 1, 9, 3], "equal": [5, 5, 5]}
STEP = 1e-5


def tiny(model_type, rate):
    model = transformer(config_of(model_type, 60)).double()
    if hasattr(model, "pooler"):
        model.pooler = None
    backbone = PackedBert(model)
    backbone.set_dropout(rate)
    return backbone.train()


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
    backbone, batch = tiny(model_type, 0.3), pack(ids_of(lengths, 60))
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


def test_the_same_seed_draws_the_same_masks_and_another_seed_others():
    backbone, batch = tiny("bert", 0.1), pack(ids_of([6, 2], 60))
    draws = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        draws.append(backbone(batch, [-1])[-1])
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_spare_rows_change_no_state_and_no_gradient(tiny_encoder, monkeypatch):
    """bf16 rounds the rows of packed matrices up; fp32 with rounding must equal fp32 without."""
    from contrasent.model.backbones.attention import Blocks

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
