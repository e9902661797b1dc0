import shutil
import sys
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from helpers.tiny_wordnet import only_wordnet

from contrasent.data import views
from contrasent.data.views import WordNet
from contrasent.errors import DataError, MissingExtraError

DRAWS = 4000


def words(count):
    return [f"w{number}" for number in range(count)]


def generator(seed=0):
    return np.random.default_rng(seed)


def drawn(edit, count, **settings):
    """How often each result came up."""
    random = generator()
    return Counter(tuple(edit(words(count), random, **settings)) for _ in range(DRAWS))


def near(found, share):
    """Whether a count of ``DRAWS`` is within five standard deviations of a share."""
    return abs(found / DRAWS - share) < 5 * (share * (1 - share) / DRAWS) ** 0.5


def spans(count, kept):
    return {tuple(words(count)[start : start + kept]) for start in range(count - kept + 1)}


def subsets(count, kept):
    return set(combinations(words(count), kept))


EDITS = [(views.crop, spans), (views.delete_words, subsets)]


@pytest.mark.parametrize(("edit", "possible"), EDITS)
@pytest.mark.parametrize(("count", "share", "gone"), [(10, 0.1, 1), (10, 0.3, 3), (8, 0.25, 2)])
def test_a_share_of_whole_words_goes_and_every_way_is_as_likely(edit, possible, count, share, gone):
    found = drawn(edit, count, share=share)
    ways = possible(count, count - gone)
    assert set(found) == ways
    assert all(near(number, 1 / len(ways)) for number in found.values())


@pytest.mark.parametrize(("edit", "possible"), EDITS)
@pytest.mark.parametrize(("count", "share"), [(7, 0.1), (3, 0.2), (13, 0.15), (2, 0.1)])
def test_a_share_between_whole_words_is_right_in_the_mean(edit, possible, count, share):
    found = drawn(edit, count, share=share)
    low = int(share * count)
    assert set(found) <= possible(count, count - low) | possible(count, count - low - 1)
    more = sum(number for kept, number in found.items() if len(kept) == count - low - 1)
    assert near(more, share * count - low)


def test_one_word_goes_any_as_likely():
    found = drawn(views.delete_one_word, 5)
    assert set(found) == subsets(5, 4)
    assert all(near(number, 1 / 5) for number in found.values())
    assert set(drawn(views.delete_one_word, 1)) == {("w0",)}


SYNONYMS = {"cat": ("guy", "true cat"), "big": ("large",), "X": ("y",), "US": ("us of a",)}


def replaced(text, share=None, seed=0, synonyms=SYNONYMS):
    def lookup(word):
        return synonyms.get(word.lower()) or synonyms.get(word) or ()

    return " ".join(views.replace_words(text.split(), generator(seed), share, lookup))


def test_one_word_gets_a_synonym_and_each_way_is_as_likely():
    found = Counter(replaced("a big cat ran", seed=seed) for seed in range(DRAWS))
    assert set(found) == {"a large cat ran", "a big guy ran", "a big true cat ran"}
    assert near(found["a large cat ran"], 1 / 2)
    assert near(found["a big guy ran"], 1 / 4)


def test_a_share_counts_all_words_and_takes_those_with_a_synonym():
    text = "cat b cat d cat f cat h i j"
    for seed in range(20):
        edited = replaced(text, share=0.3, seed=seed).replace("true cat", "guy").split()
        changed = [a for a, b in zip(text.split(), edited, strict=True) if a != b]
        assert changed == ["cat"] * 3
    assert replaced("big b c", share=0.9) == "large b c"
    share = [replaced("big big", share=0.25, seed=seed).count("large") for seed in range(DRAWS)]
    assert set(share) == {0, 1}
    assert near(sum(share), 0.5)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("big,", "large,"),
        ('("big"),', '("large"),'),
        ("Big", "Large"),
        ("BIG!", "LARGE!"),
        ("X", "Y"),
        ("US.", "US OF A."),
        ("“Big”", "“Large”"),
        ("big-cat", "big-cat"),
        ("big's", "big's"),
        ("bIg", "large"),
    ],
)
def test_punctuation_and_capitals_stay(word, expected):
    assert replaced(word) == expected


def test_the_studys_edits_are_those_of_its_notebook():
    """``sentence[:int((1 - fraction) * len(sentence))]``, and int((1 - k) n) words in order."""
    text, random = "a sentence, of several  words", generator()
    for share in (0.1, 0.2, 0.3, 0.9):
        assert views.crop_prefix(text, share) == text[: int((1 - share) * len(text))]
        words = [str(n) for n in range(17)]
        kept = views.keep_whole_words(words, random, share)
        assert len(kept) == max(1, int((1 - share) * 17))
        assert kept == sorted(kept, key=int) and set(kept) <= set(words)
    assert len({tuple(views.keep_whole_words(words, random, 0.5)) for _ in range(9)}) > 1


@pytest.mark.parametrize(
    ("word", "synonyms"),
    [
        ("cat", {"true cat", "guy", "hombre"}),
        ("cats", {"cat", "true cat", "guy", "hombre"}),
        ("ran", {"run", "scat", "operate"}),
        ("run", {"scat", "operate"}),
        ("big", {"large"}),
        ("quickly", {"fast"}),
        ("true", set()),
        ("", set()),
        ("IN", set()),
    ],
)
def test_synonyms_are_the_lemmas_of_all_meanings_without_the_word(word, synonyms, tmp_path):
    pytest.importorskip("nltk")
    with only_wordnet(tmp_path / "nltk_data"):
        found = WordNet().synonyms(word)
    assert set(found) == synonyms
    assert len(found) == len(synonyms)


def test_a_wordnet_that_is_missing_or_damaged_is_explained(tmp_path, monkeypatch):
    pytest.importorskip("nltk")
    with only_wordnet(tmp_path / "nltk_data"):
        (tmp_path / "nltk_data/corpora/wordnet/lexnames").write_text("cat n\n")
        with pytest.raises(DataError, match="which NLTK cannot read"):
            WordNet()
        shutil.rmtree(tmp_path / "nltk_data")
        with pytest.raises(DataError, match="view synonym needs WordNet"):
            WordNet()
    monkeypatch.setitem(sys.modules, "nltk", None)
    with pytest.raises(MissingExtraError, match=r"pip install '.*\[synonyms\]'"):
        WordNet()
