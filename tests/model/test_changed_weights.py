"""An encoder keeps cast copies of its weights between calls; changed weights must be noticed."""

import numpy as np
import pytest
import torch
from tiny_models import SENTENCES

from contrasent.data.batch import pack
from contrasent.model.encoder import SentenceEncoder


def in_place(encoder):
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.mul_(1.5)


def by_inference_mode(encoder):
    with torch.inference_mode():
        for parameter in encoder.parameters():
            parameter.mul_(1.5)


def by_state_dict(encoder):
    state = {name: tensor * 1.5 for name, tensor in encoder.state_dict().items()}
    encoder.load_state_dict(state)


def by_a_step(optimizer, **settings):
    def change(encoder):
        encoder.train()
        stepper = optimizer(encoder.parameters(), lr=0.1, **settings)
        encoder(pack([[2, 7, 3], [2, 9, 3]])).pooled.square().sum().backward()
        stepper.step()
        encoder.eval()

    return change


def by_new_parameters(encoder):
    for part in encoder.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            setattr(part, name, torch.nn.Parameter(parameter.detach() * 1.5))


def by_assigning_data(encoder):
    for parameter in encoder.parameters():
        parameter.data = parameter.data * 1.5


def by_assigning_data_twice(encoder):
    by_assigning_data(encoder)
    by_assigning_data(encoder)


CHANGES = {
    "in place": in_place,
    "in place in inference mode": by_inference_mode,
    "state dict": by_state_dict,
    "AdamW": by_a_step(torch.optim.AdamW),
    "fused AdamW": by_a_step(torch.optim.AdamW, fused=True),
    "foreach AdamW": by_a_step(torch.optim.AdamW, foreach=True),
    "SGD": by_a_step(torch.optim.SGD),
    "new parameters": by_new_parameters,
    "data assigned": by_assigning_data,
    "data assigned twice": by_assigning_data_twice,
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_between_two_calls_is_noticed(change, precision, tiny_encoder, tiny_bert):
    before = tiny_encoder.encode(SENTENCES, precision=precision)
    change(tiny_encoder)
    after = tiny_encoder.encode(SENTENCES, precision=precision)
    fresh = SentenceEncoder.load(tiny_bert, pooler="cls", head="none", device="cpu")
    fresh.load_state_dict(tiny_encoder.state_dict())
    expected = fresh.encode(SENTENCES, precision=precision)
    assert np.abs(before - expected).max() > 1e-3
    assert np.array_equal(after, expected)


def test_precisions_take_turns(tiny_encoder):
    exact = tiny_encoder.encode(SENTENCES, precision="fp32")
    rough = tiny_encoder.encode(SENTENCES, precision="bf16")
    assert np.array_equal(tiny_encoder.encode(SENTENCES, precision="fp32"), exact)
    assert np.array_equal(tiny_encoder.encode(SENTENCES, precision="bf16"), rough)


def test_after_encoding_the_encoder_can_be_trained(tiny_encoder):
    tiny_encoder.encode(SENTENCES)
    encoded = tiny_encoder.train()(pack([[2, 7, 3], [2, 9, 3]], views=2))
    assert encoded.pooled.shape == (2, 1, 16)
    encoded.pooled.sum().backward()
    assert all(p.grad is not None for p in tiny_encoder.parameters())
