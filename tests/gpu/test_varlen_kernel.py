"""The variable-length kernel against a loop over sentences in fp32, and its dropout."""

import pytest
import torch

from contrasent.data.batch import pack
from contrasent.model.backbones import kernels as packing

pytestmark = pytest.mark.gpu

LENGTHS = {
    "random": [1, 32, 37, 3, 130, 1, 90],
    "equal": [8, 8, 8],
    "one token": [1],
    "a training batch": [9 + n % 24 for n in range(128)],
    "the longest": [512, 1, 511],
}
HEADS = 3


def runs_of(lengths, device):
    return packing.Runs.of(pack([[1] * length for length in lengths]).to(device))


def loop(packed, lengths, width):
    """``softmax(q k / sqrt(d)) v`` of each sentence in turn, fp32."""
    rows = packed.float().view(len(packed), 3, HEADS, width)
    mixed = []
    for sentence in rows.split(lengths):
        query, key, value = sentence.permute(1, 2, 0, 3)
        weights = (query @ key.transpose(1, 2) / width**0.5).softmax(-1)
        mixed.append((weights @ value).transpose(0, 1).flatten(1))
    return torch.cat(mixed)


def relative(got, expected):
    return ((got.float() - expected.float()).norm() / expected.float().norm()).item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [8, 32, 64, 128])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_each_sentence_attends_to_itself(lengths, width, dtype, cuda):
    if not packing.packed_attention_available(cuda, dtype, width):
        pytest.skip(f"no kernel for {width} numbers per head in {dtype} on this device")
    packed = torch.randn(sum(lengths), 3 * HEADS * width, device=cuda).to(dtype).requires_grad_()
    expected = loop(packed, lengths, width)
    got = packing.packed_attention(packed, HEADS, runs_of(lengths, cuda), 0.0)
    assert relative(got, expected) < 1e-2
    weights = torch.randn_like(expected)
    (theirs,) = torch.autograd.grad((expected * weights).sum(), packed)
    (mine,) = torch.autograd.grad((got * weights.to(dtype)).sum(), packed)
    assert relative(mine, theirs) < 2e-2


def kept_weights(length, sentences, rate, device):
    """Attention weights after dropout, ``(sentences, H, length, length)``.

    With the unit vectors as values, what comes out is the weights themselves.
    """
    width, rows = 64, length * sentences
    runs = runs_of([length] * sentences, device)
    packed = torch.zeros(rows, 3, HEADS, width, device=device, dtype=torch.bfloat16)
    packed[:, 2] = torch.eye(length, width, device=device).repeat(sentences, 1).unsqueeze(1)
    mixed = packing.packed_attention(packed.flatten(1), HEADS, runs, rate)
    return mixed.view(sentences, length, HEADS, width)[..., :length].transpose(1, 2)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_weights_are_dropped_at_the_rate_and_scaled(rate, cuda):
    weights = kept_weights(32, 200, rate, cuda)
    dropped = (weights == 0).double()
    error = (rate * (1 - rate) / dropped.numel()) ** 0.5
    assert abs(dropped.mean().item() - rate) < 5 * error + 1 / 256
    kept = weights[weights != 0].float()
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 32 / (1 - rate)), rtol=1e-2, atol=0)
    assert len({tuple(row) for row in dropped.flatten(2).flatten(0, 1).tolist()}) == 200 * HEADS
