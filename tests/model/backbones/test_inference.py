"""The forward without gradients, on weights that were laid out for it."""

import pytest
import torch
from helpers.padded import ids_of
from helpers.tiny_models import config_of, transformer

from contrasent.data.batch import pack
from contrasent.model.backbones import packed_bert
from contrasent.model.backbones.kernels import has_products
from contrasent.model.backbones.packed_bert import LayerWeights, PackedBert

pytestmark = pytest.mark.precision

CPU, VOCABULARY, LENGTHS = torch.device("cpu"), 60, [7, 1, 30, 2, 17]
BF16 = pytest.mark.skipif(not has_products(CPU, torch.bfloat16), reason="no bf16 in oneDNN")
CLOSE = {"rtol": 0, "atol": 0.06}  # states are about 1, and rounded to 8 bits some ten times


@pytest.fixture(params=["bert", "distilbert"])
def backbone(request):
    model = transformer(config_of(request.param, VOCABULARY))
    return PackedBert(model).eval()


def rough(backbone, sentences, layers=(-1,), **kwargs):
    """States in bf16 while weights are promised to stay, on the route made for it."""
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), backbone.unchanging():
        return backbone(pack(sentences), layers, **kwargs)


@pytest.fixture
def only_laid_out(monkeypatch):
    """No test of that route may pass by way of the other."""

    class OfFp32:
        @staticmethod
        def of(modules, dtype, *rows, **how):
            assert rows or dtype != torch.bfloat16, "bf16 was computed as in training"
            return LayerWeights.of(modules, dtype, *rows, **how)

    monkeypatch.setattr(packed_bert, "LayerWeights", OfFp32)
    monkeypatch.setattr(packed_bert, "_WORTH_LAYING_OUT", 1)


@BF16
@pytest.mark.usefixtures("only_laid_out")
def test_bf16_states_are_close_to_those_of_fp32(backbone):
    sentences, numbers = ids_of(LENGTHS, VOCABULARY), list(range(backbone.depth + 1))
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
    sentences = ids_of(LENGTHS, VOCABULARY)
    firsts = rough(backbone, sentences, first_only=True)[-1]
    whole = rough(backbone, sentences)[-1]
    assert firsts.shape == (len(LENGTHS), backbone.width)
    torch.testing.assert_close(firsts, whole[pack(sentences).offsets[:-1].long()], **CLOSE)
