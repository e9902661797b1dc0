"""The variable-length route without its kernel: what it asks of torch, and what it is asked for."""

from unittest.mock import Mock

import pytest
import torch
from helpers.padded import gradients, ids_of
from helpers.tiny_models import config_of, transformer
from torch.nn import functional as F

from contrasent.data.batch import pack
from contrasent.model.backbones import kernels as packing
from contrasent.model.backbones.packed_bert import PackedBert

CPU, CUDA, META = (torch.device(name) for name in ("cpu", "cuda", "meta"))
LENGTHS = [[5, 1, 9, 3], [4, 4], [1]]
VOCABULARY = 100


def test_it_is_there_where_torch_says_so(monkeypatch):
    monkeypatch.setattr(packing, "flash_sdp_enabled", lambda: True)
    monkeypatch.setattr(packing, "_takes", lambda *_: True)
    monkeypatch.setattr(torch.version, "hip", None)
    available = packing.packed_attention_available
    assert available(CUDA, torch.bfloat16, 64)
    assert not available(CPU, torch.bfloat16, 64)
    assert not available(CUDA, torch.bfloat16, 12)
    for owner, name, value in (
        (torch.version, "hip", "6.4"),  # another kernel
        (packing, "flash_sdp_enabled", lambda: False),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, value)
            assert not available(CUDA, torch.bfloat16, 64)


def test_torch_is_asked_without_a_device_of_its_own():
    assert packing._takes.__wrapped__(CPU, torch.bfloat16, 64) is False


def test_torch_takes_the_call_and_has_its_gradient():
    runs = packing.Runs.of(pack([[1] * 5, [1] * 4], views=2).to(META))
    assert (runs.longest, runs.offsets.dtype, runs.offsets.shape) == (5, torch.int32, (3,))
    packed = torch.empty(9, 48, dtype=torch.bfloat16, device=META, requires_grad=True)
    mixed = packing.packed_attention(packed, 2, runs, 0.1)
    query = torch.empty(2, 16, dtype=torch.bfloat16, device=META, requires_grad=True)
    first = packing.packed_attention(packed[:, 16:], 2, runs, 0.1, query)
    assert (mixed.shape, first.shape) == ((9, 16), (2, 16))
    (mixed.sum() + first.sum()).backward()
    assert (packed.grad.shape, query.grad.shape) == (packed.shape, query.shape)


def sentence_by_sentence(parts, of_query, of_key, rate):
    """What the kernel is documented to compute, in a loop."""
    assert rate == 0
    mixed, longest = [], []
    for s in range(len(of_query.offsets) - 1):
        rows = slice(*of_query.offsets[s : s + 2].tolist())
        seen = slice(*of_key.offsets[s : s + 2].tolist())
        longest.append((rows.stop - rows.start, seen.stop - seen.start))
        query, key, value = (
            part[there].transpose(0, 1)
            for part, there in zip(parts, (rows, seen, seen), strict=True)
        )
        mixed.append(F.scaled_dot_product_attention(query, key, value).transpose(0, 1))
    assert tuple(max(counts) for counts in zip(*longest, strict=True)) == (
        of_query.longest,
        of_key.longest,
    )
    assert of_query.offsets[-1] == len(parts[0]) and of_key.offsets[-1] == len(parts[1])
    return torch.cat(mixed)


@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_the_backbone_asks_it_for_each_sentence_alone(lengths, first_only, monkeypatch):
    model = transformer(config_of("bert", VOCABULARY))
    model.pooler = None
    backbone, batch = PackedBert(model).eval(), pack(ids_of(lengths, VOCABULARY))
    loop = Mock(wraps=sentence_by_sentence)
    expected = backbone(batch, [1, -1], first_only=first_only)
    monkeypatch.setattr(packing, "_flash", loop)
    monkeypatch.setattr(packing, "packed_attention_available", lambda *_: True)
    got = backbone(batch, [1, -1], first_only=first_only)
    assert loop.call_count == 2
    weights = []
    for layer, state in expected.items():
        torch.testing.assert_close(got[layer], state, rtol=0, atol=1e-5)
        weights.append(torch.randn(state.shape, generator=torch.Generator().manual_seed(layer)))
    theirs = gradients(model, list(expected.values()), weights)
    for name, gradient in gradients(model, list(got.values()), weights).items():
        torch.testing.assert_close(gradient, theirs[name], rtol=0, atol=1e-5, msg=name)
