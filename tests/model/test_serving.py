"""While an encoder serves, a single sentence takes another way; it must lead to the same vector."""

import numpy as np
import pytest
from helpers.tiny_models import SENTENCES

from contrasent.model.encoder import SentenceEncoder
from contrasent.model.heads import POOLERS

pytestmark = pytest.mark.precision


def one_by_one(encoder, **settings):
    return np.concatenate([encoder.encode([s], **settings) for s in SENTENCES])


def modes(encoder):
    return {name: part.training for name, part in encoder.named_modules()}


@pytest.mark.parametrize("pooler", POOLERS)
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("bf16", 0.1)])
def test_a_sentence_has_the_same_vector_while_serving(pooler, precision, tolerance, tiny_bert):
    encoder = SentenceEncoder.load(tiny_bert, pooler=pooler, head="none", device="cpu")
    rows = encoder.encode(SENTENCES, precision=precision)
    with encoder.serving() as serving:
        assert serving is encoder
        alone = one_by_one(encoder, precision=precision)
        together = encoder.encode(SENTENCES, precision=precision)
    assert np.array_equal(together, rows)
    np.testing.assert_allclose(alone, rows, rtol=0, atol=tolerance)
    cosine = (alone * rows).sum(1) / np.linalg.norm(alone, axis=1) / np.linalg.norm(rows, axis=1)
    assert cosine.min() > 0.999


def test_modes_are_those_of_evaluation_inside_and_put_back_after(tiny_encoder):
    expected = tiny_encoder.encode(["a dog"], precision="fp32")
    tiny_encoder.train()
    tiny_encoder.backbone.model.embeddings.eval()
    before = modes(tiny_encoder)
    with pytest.raises(KeyError), tiny_encoder.serving():
        assert not any(modes(tiny_encoder).values())
        row = tiny_encoder.encode(["a dog"], precision="fp32")
        raise KeyError
    assert modes(tiny_encoder) == before
    assert not tiny_encoder.is_serving
    np.testing.assert_allclose(row, expected, rtol=0, atol=1e-5)
