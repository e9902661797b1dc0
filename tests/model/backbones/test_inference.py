"""The forward without gradients, on weights that were laid out for it."""

import pytest
import torch
from helpers.tiny_models import config_of, transformer

from contrasent.data.batch import pack
from contrasent.model.backbones import packed_bert
from contrasent.model.backbones.attention import Blocks
from contrasent.model.backbones.layers import Linear, Map, has_products, lay_out, layers_of
from contrasent.model.backbones.packed_bert import PackedBert

pytestmark = pytest.mark.precision

CPU, VOCABULARY, LENGTHS = torch.device("cpu"), 60, [7, 1, 30, 2, 17]
FP32 = pytest.mark.skipif(not has_products(CPU, torch.float32), reason="no oneDNN")
BF16 = pytest.mark.skipif(not has_products(CPU, torch.bfloat16), reason="no bf16 in oneDNN")
CLOSE = {"rtol": 0, "atol": 0.06}  # states are about 1, and rounded to 8 bits some ten times


@pytest.fixture(params=["bert", "distilbert"])
def backbone(request):
    model = transformer(config_of(request.param, VOCABULARY))
    return PackedBert(model).eval()


def made_up():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(5, VOCABULARY, (n,), generator=generator).tolist() for n in LENGTHS]


def rough(backbone, sentences, layers=(-1,), **kwargs):
    """States in bf16 while weights are promised to stay, on the route made for it."""
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), backbone.unchanging():
        return backbone(pack(sentences), layers, **kwargs)


@pytest.fixture
def only_laid_out(monkeypatch):
    """No test of that route may pass by way of the other."""
    plain = PackedBert._compute

    def refused(self, batch, wanted, dtype, *given, **how):
        assert dtype != torch.bfloat16, "bf16 was computed as in training"
        return plain(self, batch, wanted, dtype, *given, **how)

    monkeypatch.setattr(PackedBert, "_compute", refused)
    monkeypatch.setattr(packed_bert, "_WORTH_LAYING_OUT", 1)


@FP32
@pytest.mark.parametrize("rows", [1, 16, 4096])
def test_a_map_takes_any_number_of_rows(rows, rng):
    weight, bias = rng(12, 8), rng(12)
    laid_out = Map.of(Linear(weight, bias), rows)
    for count in (1, 5, 40):
        x, rest = rng(count, 8), rng(count, 12)
        expected = x @ weight.T + bias
        torch.testing.assert_close(laid_out(x), expected)
        total, narrow = laid_out.add_norm(x, rest, torch.nn.Identity(), 0.0)
        torch.testing.assert_close(total, expected + rest)
        assert narrow is total


@FP32
@torch.no_grad()
def test_in_fp32_a_layer_is_that_of_training(backbone):
    batch = pack(made_up())
    blocks = Blocks.of(batch, backbone.heads)
    before, after = backbone(batch, [0, 1]).values()
    state = torch.cat([before, before.new_zeros(blocks.rows - len(before), backbone.width)])
    layer = lay_out(layers_of(backbone.model)[0], torch.float32, 16, parted=True)
    found, _ = layer((state, state), blocks)
    torch.testing.assert_close(found[: len(after)], after, rtol=0, atol=1e-5)
    firsts, _ = layer((state, state), blocks, blocks.first)
    torch.testing.assert_close(firsts, after[blocks.first], rtol=0, atol=1e-5)


@BF16
@pytest.mark.usefixtures("only_laid_out")
def test_bf16_states_are_close_to_those_of_fp32(backbone):
    sentences, numbers = made_up(), list(range(backbone.depth + 1))
    with torch.no_grad():
        exact = backbone(pack(sentences), numbers)
    found = rough(backbone, sentences, numbers)
    assert torch.equal(found[0], exact[0])
    for number in numbers:
        assert found[number].dtype == torch.float32
        torch.testing.assert_close(found[number], exact[number], **CLOSE)
        cosine = torch.cosine_similarity(found[number], exact[number], dim=-1)
        assert cosine.min() > 0.999
    assert not torch.equal(found[2], exact[2])


@BF16
@pytest.mark.usefixtures("only_laid_out")
def test_first_rows_alone_are_those_of_the_whole(backbone):
    sentences = made_up()
    firsts = rough(backbone, sentences, first_only=True)[-1]
    whole = rough(backbone, sentences)[-1]
    assert firsts.shape == (len(LENGTHS), backbone.width)
    torch.testing.assert_close(firsts, whole[pack(sentences).offsets[:-1].long()], **CLOSE)


@BF16
def test_weights_are_laid_out_for_the_first_large_batch(backbone, monkeypatch):
    made = []
    plain = PackedBert._lay_out
    monkeypatch.setattr(
        PackedBert, "_lay_out", lambda self, dtype: made.append(dtype) or plain(self, dtype)
    )
    small, large = pack([[5, 6, 7]]), pack([[5, 6, 7, 8] * 16] * 16)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), backbone.unchanging():
        before = backbone(small)[-1]
        assert not made
        backbone(large)
        torch.testing.assert_close(backbone(small)[-1], before, **CLOSE)
        backbone(large)
    assert made == [torch.bfloat16]
