"""While an encoder serves, a single sentence takes another way; it must lead to the same vector."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import torch
from helpers.tiny_models import SENTENCES

from contrasent.model.backbones.base import WeightCache
from contrasent.model.backbones.packed_bert import PackedBert
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


def test_single_sentences_take_their_own_way_and_only_while_serving(tiny_encoder, monkeypatch):
    made, plain = [], PackedBert._lay_out

    def noted(self, dtype, *, alone=False):
        assert alone
        made.append(dtype)
        return plain(self, dtype, alone=alone)

    monkeypatch.setattr(PackedBert, "_lay_out", noted)
    tiny_encoder.encode(["dog"], precision="fp32")
    assert made == []
    with tiny_encoder.serving(), tiny_encoder.serving():
        tiny_encoder.encode(["dog", "cat"], precision="fp32")
        assert made == []
        tiny_encoder.encode(["dog"], precision="fp32")
        tiny_encoder.encode(["cat"], precision="fp32")
        assert made == [torch.float32]
    with tiny_encoder.serving():
        tiny_encoder.encode(["dog"], precision="fp32")
    assert made == [torch.float32] * 2
    tiny_encoder.encode(["dog"], precision="fp32")
    assert made == [torch.float32] * 2


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


def test_threads_hold_what_is_kept_together():
    kept, made, threads = WeightCache(), [], 8
    inside, asked = Barrier(threads), Barrier(threads)

    def make():
        made.append(object())
        return made[-1]

    def hold(_):
        with kept:
            inside.wait(timeout=10)
            found = kept.get("key", make)
            asked.wait(timeout=10)
            return found, kept.get("key", make) is kept.get("key", make), kept.is_open

    with kept:
        first = kept.get("key", make)
        with ThreadPoolExecutor(threads) as pool:
            results = list(pool.map(hold, range(threads)))
    assert results == [(first, True, True)] * threads
    assert made == [first]
    assert not kept.is_open
