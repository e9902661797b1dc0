"""Word vectors as an encoder, against a plain loop, and words to the rows of their vectors."""

import numpy as np
import pytest
from helpers.tiny_glove import vectors_of, write_vectors

from contrasent.data.word_vectors import MARKS, WordTokenizer, open_words, sentence_marks
from contrasent.errors import CheckpointError, ConfigError
from contrasent.model.loading import WordEncoder, load_encoder

WORDS = ["the", "cat", "Dog", "dog", "sits", "red", ".", "ünder"]
SENTENCES = ["the cat sits .", "The DOG sits", "Dog dog", "", "unknown words", "ünder  the\tred"]


@pytest.fixture
def vectors():
    return vectors_of(WORDS, 5)


@pytest.fixture
def glove(vectors, tmp_path):
    return write_vectors(tmp_path / "glove.txt", vectors)


def mean(vectors, sentence):
    found = [vectors.get(w, vectors.get(w.lower())) for w in sentence.split()]
    found = [vector for vector in found if vector is not None]
    return sum(found) / len(found) if found else np.zeros(5)


def test_a_sentence_is_the_mean_of_its_known_words(glove, vectors):
    encoder = load_encoder(glove)
    with pytest.warns(UserWarning, match=r"^2 of 6 sentences have no word that glove\.txt knows"):
        rows = encoder.encode(SENTENCES)
    assert (rows.dtype, rows.shape, encoder.width) == (np.float32, (6, 5), 5)
    np.testing.assert_allclose(rows, [mean(vectors, s) for s in SENTENCES], atol=1e-6)
    assert not rows[3:5].any()


def test_the_first_line_of_a_word_counts_and_a_header_does_not(tmp_path):
    path = tmp_path / "v.vec"
    path.write_text("3 2\ncat 1 2\ndog 3 4\ncat 5 6\n")
    store = open_words(path)
    assert (store.words, store.width) == (3, 2)
    np.testing.assert_array_equal(
        WordEncoder(store).encode(["cat", "dog", "cat dog"]), [[1, 2], [3, 4], [2, 3]]
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cat 1 2\ndog 3\n", ":2: no word and 2 finite numbers"),
        ("cat 1 2\ndog 3 4 5\n", ":2: no word and 2 finite numbers"),
        ("cat\n", ":1: no word and some finite"),
        ("", "holds no word vector"),
    ],
)
def test_bad_files_are_named_by_line(text, said, tmp_path, monkeypatch):
    monkeypatch.setenv("CONTRASENT_CACHE", str(tmp_path))
    path = tmp_path / "v.txt"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=rf"v\.txt.*{said}"):
        load_encoder(path)
    assert not [entry for entry in (tmp_path / "words").glob("*") if entry.is_dir()]


def test_a_changed_file_is_another_encoder(glove, vectors):
    once = load_encoder(glove)
    assert load_encoder(glove).fingerprint() == once.fingerprint()
    assert load_encoder(glove, truncate_dim=2).fingerprint() != once.fingerprint()
    write_vectors(glove, {"the": vectors["cat"]})
    again = load_encoder(glove)
    assert again.fingerprint() != once.fingerprint()
    np.testing.assert_allclose(again.encode(["the"])[0], vectors["cat"])


def test_what_words_do_not_have_is_refused(glove):
    for wrong in ({"pooler": "mean"}, {"head": "mlp"}, {"engine": "int8"}):
        with pytest.raises(ConfigError, match=f"has no {next(iter(wrong))} .*: leave it out"):
            load_encoder(glove, **wrong)
    load_encoder(glove, pooler="vectors", head="none")
    encoder = load_encoder(glove)
    assert encoder.resolve_precision("auto") == "fp32"
    for wrong in ({"precision": "bf16"}, {"on_overflow": "x"}, {"batch_tokens": 0}):
        with pytest.raises(ConfigError):
            encoder.encode(["cat"], **wrong)


PIECES = ["dog", "Dog", "runs", ".", "do", "n't", "it", "'s", "(", ")", "U.S.", "two", "cat"]


def store_of(tmp_path, words=PIECES):
    return open_words(write_vectors(tmp_path / "glove.txt", vectors_of(words)))


def read(tokenizer, text, max_tokens=None):
    """The words of a text, by their rows; # for the word of zeros."""
    words = [*(PIECES if not tokenizer.marks else [*PIECES, *tokenizer.marks]), "#"]
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
    store = store_of(tmp_path, [*PIECES, "<s>", "</s>"])
    assert (sentence_marks(store), sentence_marks(store_of(tmp_path))) == (MARKS[0], ())
    assert sentence_marks(store_of(tmp_path, [*PIECES, "<s>", "<p>", "</p>"])) == MARKS[1]
    tokenizer = WordTokenizer(store, sentence_marks(store))
    assert read(tokenizer, "the dog runs") == ("<s> dog runs </s>", 0)
    assert read(tokenizer, "bird") == ("<s> </s>", 0)
    assert tokenizer.specials == 2
    assert tokenizer.special_ids.every == (len(PIECES), len(PIECES) + 1)


def test_long_sentences_are_cut_and_counted_with_their_marks(tmp_path):
    tokenizer = WordTokenizer(store_of(tmp_path, [*PIECES, "<s>", "</s>"]), MARKS[0])
    assert read(tokenizer, "dog runs . it", 5) == ("<s> dog runs . </s>", 1)
    assert read(tokenizer, "dog runs .", 5) == ("<s> dog runs . </s>", 0)
    with pytest.raises(ConfigError, match="max_tokens must be above 2, not 2"):
        tokenizer.ids(["dog"], 2)
