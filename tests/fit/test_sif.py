"""SIF: the published algorithm in plain loops, and what is saved of it."""

import json
from collections import Counter

import numpy as np
import pytest
from helpers.command_line import worked
from helpers.tiny_glove import vectors_of, write_vectors

from contrasent.errors import ConfigError
from contrasent.fitting import fit_sif, open_fitting_text, read_frequencies, word_weights
from contrasent.model.loading import WordEncoder, load_encoder

WORDS = ["the", "cat", "dog", "sits", "red", "runs"]


@pytest.fixture
def vectors():
    return {word: vector + 1 for word, vector in vectors_of(WORDS, 5).items()}


@pytest.fixture
def glove(vectors, tmp_path):
    return write_vectors(tmp_path / "glove.txt", vectors)


@pytest.fixture
def sentences():
    draw = np.random.default_rng(1)
    words = [*WORDS, "the", "the", "nowhere", "Cat"]
    return [" ".join(draw.choice(words, size=draw.integers(2, 7))) for _ in range(40)] + ["nowhere"]


@pytest.fixture
def text(sentences, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(sentences) + "\n")
    return open_fitting_text([str(tmp_path / "text.txt")])


def by_hand(vectors, sentences, a, components):
    counts = Counter(word for sentence in sentences for word in sentence.split())
    total = sum(counts.values())
    weight = {}
    for word in vectors:
        p = sum(n for w, n in counts.items() if word == (w if w in vectors else w.lower()))
        weight[word] = a / (a + p / total)
    rows = []
    for sentence in sentences:
        known = [w if w in vectors else w.lower() for w in sentence.split()]
        known = [w for w in known if w in vectors]
        row = sum((weight[w] * vectors[w].astype("f8") for w in known), np.zeros(5))
        rows.append(row / max(len(known), 1))
    rows = np.array(rows)
    _, _, directions = np.linalg.svd(rows, full_matrices=False)
    common = directions[:components]
    return rows - rows @ common.T @ common


@pytest.mark.parametrize(("a", "components"), [(1e-3, 1), (1e-3, 0), (0.1, 2)])
def test_it_is_the_published_algorithm(a, components, glove, vectors, sentences, text):
    made, info = fit_sif(load_encoder(glove), text, smoothing=a, components=components)
    with pytest.warns(UserWarning, match="1 of 41 sentences have no word"):
        found = made.encode(sentences)
    np.testing.assert_allclose(found, by_hand(vectors, sentences, a, components), atol=1e-5)
    assert info["transform"]["sentences_without_a_known_word"] == 1
    if components:
        assert np.abs(found @ made.components.T).max() < 1e-5


def test_frequencies_of_a_file(glove, text, tmp_path):
    (tmp_path / "counts.txt").write_text("the 60\n\nCat 10\ncat 5\nfar 25\n")
    counts = read_frequencies(tmp_path / "counts.txt")
    weights = word_weights(load_encoder(glove).store, counts, 0.01)
    expected = [0.01 / 0.61, 0.01 / 0.16, 1, 1, 1, 1]
    np.testing.assert_allclose(weights, expected, rtol=1e-6)
    how = {"smoothing": 0.01, "frequencies": tmp_path / "counts.txt"}
    made, info = fit_sif(load_encoder(glove), text, **how)
    np.testing.assert_allclose(made.weights, expected, rtol=1e-6)
    assert info["transform"]["frequencies"] == "counts.txt"
    assert "frequencies of counts.txt" in made.transform_described


def test_settings_out_of_range(glove, text):
    for wrong in ({"smoothing": 0.0}, {"components": -1}, {"components": 5}):
        with pytest.raises(ConfigError, match=r"a is .* components must be 0 to 4"):
            fit_sif(load_encoder(glove), text, **wrong)
    made, _ = fit_sif(load_encoder(glove), text)
    with pytest.raises(ConfigError, match="not fitted"):
        fit_sif(made, text)


def test_the_command_saves_an_encoder_for_every_command(glove, text, sentences, tmp_path):
    expected, _ = fit_sif(load_encoder(glove), text)
    command = ("fit", "sif", glove, "--data", tmp_path / "text.txt", "--output", tmp_path / "sif")
    described = "SIF with a 0.001, 1 component taken out, frequencies of its words, fitted on text"
    assert described in worked(*command).out
    glove.unlink()
    loaded = load_encoder(tmp_path / "sif")
    assert isinstance(loaded, WordEncoder)
    assert np.array_equal(loaded.encode(sentences[:40]), expected.encode(sentences[:40]))
    assert loaded.fingerprint() == expected.fingerprint()
    assert loaded.fingerprint() != WordEncoder(expected.store).fingerprint()
    assert loaded.transform_described == expected.transform_described
    info = json.loads((tmp_path / "sif" / "contrasent.json").read_text())["transform"]
    facts = [info[name] for name in ("a", "components", "target", "sentences")]
    assert facts == [1e-3, 1, False, 41]
    assert info["words"]["source"] == "glove.txt"
    (tmp_path / "in.txt").write_text("the cat\nred dog\n")
    worked("encode", tmp_path / "sif", tmp_path / "in.txt", tmp_path / "out.npy")
    assert np.array_equal(np.load(tmp_path / "out.npy"), loaded.encode(["the cat", "red dog"]))
    (tmp_path / "p.tsv").write_text("the cat\tdog runs\t1\nred cat\tred dog\t5\nthe runs\tsits\t3")
    shown = worked("evaluate", tmp_path / "sif", "--tasks", tmp_path / "p.tsv").out
    assert "SIF with a 0.001" in " ".join(shown.split())
