"""`contrasent.compat.SimCSE` against the few lines of transformers that the tool consists of."""

import numpy as np
import pytest
import torch
from helpers.tiny_sentences import sentence
from sklearn.metrics.pairwise import cosine_similarity
from transformers import AutoModel, AutoTokenizer

from contrasent.compat import SimCSE
from contrasent.errors import ConfigError, DataError

SENTENCES = [sentence(n, 3 + n % 6) for n in range(30)]
QUERIES = [SENTENCES[4], sentence(77, 5)]

pytestmark = pytest.mark.filterwarnings("ignore:.*does not say how it makes:UserWarning")


@pytest.fixture
def tool(uploaded):
    return SimCSE(uploaded, device="cpu")


def by_hand(folder, sentences, pooler):
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    rows = []
    for text in sentences:
        with torch.no_grad():
            output = model(**tokenizer(text, truncation=True, max_length=128, return_tensors="pt"))
        rows.append(output.pooler_output[0] if pooler == "cls" else output.last_hidden_state[0, 0])
    return torch.stack(rows)


@pytest.mark.parametrize("pooler", ["cls", "cls_before_pooler"])
def test_encode(uploaded, pooler):
    tool = SimCSE(uploaded, device="cpu", pooler=pooler)
    expected = by_hand(uploaded, SENTENCES, pooler)
    rows = tool.encode(SENTENCES, normalize_to_unit=False)
    assert isinstance(rows, torch.Tensor) and rows.dtype == torch.float32
    torch.testing.assert_close(rows, expected, atol=1e-5, rtol=1e-4)
    unit = tool.encode(SENTENCES, return_numpy=True, batch_size=7)
    np.testing.assert_allclose(unit, torch.nn.functional.normalize(expected), atol=1e-5)
    assert tool.encode(SENTENCES[0]).shape == (16,)
    assert tool.encode(SENTENCES[0], keepdim=True).shape == (1, 16)


def test_the_pooler_is_that_of_the_name_only_where_the_folder_says_nothing(uploaded, tmp_path):
    assert SimCSE(uploaded, device="cpu").encoder.head_name == "mlp"
    (tmp_path / "my-unsup-simcse").symlink_to(uploaded)
    assert SimCSE(tmp_path / "my-unsup-simcse", device="cpu").encoder.head_name == "none"
    SimCSE(uploaded, device="cpu").encoder.save(tmp_path / "unsup-by-name-only")
    assert SimCSE(tmp_path / "unsup-by-name-only", device="cpu").encoder.head_name == "mlp"


def test_similarity(tool, uploaded):
    expected = cosine_similarity(
        by_hand(uploaded, QUERIES, "cls"), by_hand(uploaded, SENTENCES, "cls")
    )
    found = tool.similarity(QUERIES, SENTENCES)
    assert found.shape == (2, 30)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(tool.similarity(QUERIES[0], SENTENCES), expected[0], atol=1e-5)
    keys = tool.encode(SENTENCES, return_numpy=True, normalize_to_unit=False)
    np.testing.assert_allclose(tool.similarity(QUERIES, keys), expected, atol=1e-5)
    one = tool.similarity(QUERIES[0], SENTENCES[3])
    assert isinstance(one, float) and one == pytest.approx(expected[0, 3], abs=1e-5)


def test_search(tool, tmp_path):
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join([*SENTENCES[20:], "", "one\u2028sentence"]) + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="call build_index with sentences first"):
        tool.search(QUERIES)
    tool.build_index(SENTENCES[:20], use_faiss=True, faiss_fast=True)
    tool.add_to_index(str(path))
    known = [*SENTENCES, "one\u2028sentence"]
    assert tool.sentences == known and len(SENTENCES) == 30
    cosines = tool.similarity(QUERIES, known)
    for threshold, top_k in [(0.6, 5), (-1.0, 1000), (0.9, 50)]:
        found = tool.search(QUERIES, threshold=threshold, top_k=top_k)
        for hits, scores in zip(found, cosines, strict=True):
            expected = sorted(scores[scores >= threshold], reverse=True)[:top_k]
            assert [score for _, score in hits] == pytest.approx(expected, abs=1e-5)
            assert hits[0][0] == known[int(scores.argmax())]
    assert [t for t, _ in tool.search(QUERIES[0])] == [t for t, _ in tool.search(QUERIES)[0]]
    with pytest.raises(DataError, match="A sentence"):
        tool.build_index("A sentence.")
