"""BM25 and its fusion with dense scores, against loops over their formulas and bm25s."""

import numpy as np
import pytest
from helpers.oracles import bm25, standardised

from contrasent.search.words import WordIndex, best_by_words, fuse, without_words, words

TEXTS = ["a b c a", "B b", "", "c d, e; f g?", "-"]


@pytest.mark.parametrize("query", ["a", "b c unknown", "b b G", "", "!"])
def test_scores_are_those_of_the_formula(query):
    assert WordIndex.of(TEXTS).scores_of(query) == pytest.approx(bm25(TEXTS, query), rel=1e-5)


def test_scores_are_those_of_bm25s():
    bm25s = pytest.importorskip("bm25s")
    draw = np.random.default_rng(0)
    texts = [" ".join(map(str, draw.zipf(1.5, draw.integers(1, 30)) % 50)) for _ in range(300)]
    theirs = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
    theirs.index([text.split() for text in texts], show_progress=False)
    index = WordIndex.of(texts)
    for query in texts[:20]:
        assert index.scores_of(query) == pytest.approx(theirs.get_scores(query.split()), rel=1e-5)


def test_the_best_texts_share_a_word_and_equal_ones_are_in_their_order():
    index = WordIndex.of(["x y", "z", "x y", "x", "y x"])
    assert best_by_words(index.scores_of("y"), 9).tolist() == [0, 2, 4]
    assert best_by_words(index.scores_of("y"), 2).tolist() == [0, 2]
    assert best_by_words(index.scores_of("q"), 1).tolist() == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't PANIC: part AB-12/x!", ["don", "t", "panic", "part", "ab", "12", "x"]),
        ("東京タワー and ไทย", ["東", "京", "タ", "ワ", "ー", "and", "ไ", "ท", "ย"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("Straße 7", ["straße", "7"]),
        ("oublie\u0301 ﬁn ﾊﾟ", ["oublié", "fin", "パ"]),
    ],
)
def test_words_of_every_script(text, expected):
    assert words(text) == expected
    assert without_words(f"{text} (x)", {*expected, "x"}).strip(" '-:/!()x") == ""


@pytest.mark.parametrize("weight", [0.0, 0.1, 0.5, 1.0])
def test_fusion_is_the_weighted_sum_of_standardised_scores(weight):
    draw = np.random.default_rng(0)
    dense, by_words = draw.normal(3, 2, (4, 7)), draw.exponential(size=(4, 7))
    by_words[2] = 1.5  # says nothing
    fused = fuse(dense.astype(np.float32), by_words.astype(np.float32), weight)
    for q in range(4):
        columns = [standardised(row) for row in (dense[q], by_words[q])]
        for n in range(7):
            expected = (1 - weight) * columns[0][n] + weight * columns[1][n]
            assert fused[q, n] == pytest.approx(expected, abs=1e-5)
