"""An encoder keeps cast copies of its weights for a while; changed weights must be noticed."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from helpers.tiny_models import SENTENCES

from contrasent.data.batch import pack
from contrasent.model.encoder import SentenceEncoder

pytestmark = pytest.mark.precision


def in_place(encoder):
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.mul_(1.5)


def by_inference_mode(encoder):
    with torch.inference_mode():
        for parameter in encoder.parameters():
            parameter.mul_(1.5)


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


def in_data(encoder):
    for parameter in encoder.parameters():
        parameter.data.mul_(1.5)


CHANGES = {
    "data in place": in_data,
    "in place": in_place,
    "in place in inference mode": by_inference_mode,
    "AdamW": by_a_step(torch.optim.AdamW),
    "fused AdamW": by_a_step(torch.optim.AdamW, fused=True),
    "new parameters": by_new_parameters,
    "data assigned": by_assigning_data,
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


def test_threads_may_encode_at_once(tiny_encoder):
    texts = SENTENCES * 20
    expected = tiny_encoder.encode(texts, precision="fp32", batch_tokens=64)
    with ThreadPoolExecutor(4) as pool:
        how = {"precision": "fp32", "batch_tokens": 64}
        jobs = [pool.submit(tiny_encoder.encode, texts, **how) for _ in range(16)]
        for job in jobs:
            np.testing.assert_allclose(job.result(), expected, rtol=0, atol=1e-6)
