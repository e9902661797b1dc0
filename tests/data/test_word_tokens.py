"""Words to the rows of their vectors: what is known, cut, left out and put around."""

import numpy as np
import pytest
from helpers.tiny_glove import vectors_of, write_vectors

from contrasent.data.word_vectors import MARKS, WordTokenizer, open_words, sentence_marks
from contrasent.errors import ConfigError

WORDS = ["dog", "Dog", "runs", ".", "do", "n't", "it", "'s", "(", ")", "U.S.", "two", "cat"]


def store_of(tmp_path, words=WORDS):
    return open_words(write_vectors(tmp_path / "glove.txt", vectors_of(words)))


def read(tokenizer, text, max_tokens=None):
    """The words of a text, by their rows; # for the word of zeros."""
    words = [*(WORDS if not tokenizer.marks else [*WORDS, *tokenizer.marks]), "#"]
    (ids,), cut = tokenizer.ids([text], max_tokens)
    assert ids.dtype == np.int32
    return " ".join(words[number] for number in ids), cut


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dog runs .", "dog runs ."),
        ("A dog  runs.", "dog runs ."),
        ("Dog DOG dog", "Dog dog dog"),
        ("don't", "do n't"),
        ("Don't (DOG'S)", "do n't ( dog 's )"),
        ("it's U.S.", "it 's U.S."),
        ("two-cat...", "two cat . . ."),
        ("bird", "#"),
        ("", "#"),
        ("bird dog", "dog"),
    ],
)
def test_words_are_found_or_cut_at_punctuation_or_left_out(text, words, tmp_path):
    assert read(WordTokenizer(store_of(tmp_path)), text) == (words, 0)


def test_marks_stand_around_every_sentence(tmp_path):
    store = store_of(tmp_path, [*WORDS, "<s>", "</s>"])
    assert (sentence_marks(store), sentence_marks(store_of(tmp_path))) == (MARKS[0], ())
    assert sentence_marks(store_of(tmp_path, [*WORDS, "<s>", "<p>", "</p>"])) == MARKS[1]
    tokenizer = WordTokenizer(store, sentence_marks(store))
    assert read(tokenizer, "the dog runs") == ("<s> dog runs </s>", 0)
    assert read(tokenizer, "bird") == ("<s> </s>", 0)
    assert tokenizer.specials == 2
    assert tokenizer.special_ids.every == (len(WORDS), len(WORDS) + 1)


def test_long_sentences_are_cut_and_counted_with_their_marks(tmp_path):
    tokenizer = WordTokenizer(store_of(tmp_path, [*WORDS, "<s>", "</s>"]), MARKS[0])
    assert read(tokenizer, "dog runs . it", 5) == ("<s> dog runs . </s>", 1)
    assert read(tokenizer, "dog runs .", 5) == ("<s> dog runs . </s>", 0)
    with pytest.raises(ConfigError, match="max_tokens must be above 2, not 2"):
        tokenizer.ids(["dog"], 2)
