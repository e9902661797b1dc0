import itertools
import threading

import numpy as np
import pytest
from helpers.tiny_models import SENTENCES, with_template

from contrasent.errors import ConfigError, DataError
from contrasent.model import encoder as encoding

pytestmark = pytest.mark.precision

MANY = [f"{a} {b}" for a, b in itertools.product(SENTENCES, ["", "dog", "the cat sits"])]
LONG = "dog " * 80


@pytest.fixture
def rows(tiny_encoder):
    return tiny_encoder.encode(MANY, precision="fp32")


def test_rows_are_float32_in_the_order_of_the_sentences(tiny_encoder, rows):
    assert rows.shape == (len(MANY), 16) == (21, tiny_encoder.width)
    assert rows.dtype == np.float32
    for sentence, row in zip(MANY, rows, strict=True):
        alone = tiny_encoder.encode([sentence], precision="fp32")
        np.testing.assert_allclose(alone[0], row, rtol=0, atol=1e-6)


@pytest.mark.parametrize("batch_tokens", [1, 7, 20, 100, 100_000])
def test_the_batch_budget_does_not_matter(batch_tokens, tiny_encoder, rows):
    got = tiny_encoder.encode(MANY, batch_tokens=batch_tokens, precision="fp32")
    np.testing.assert_allclose(got, rows, rtol=0, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 5, 21, 1000])
def test_a_stream_gives_chunks_in_order_and_reads_no_further_than_it_must(
    chunk, tiny_encoder, rows
):
    taken = []
    sentences = (taken.append(s) or s for s in MANY)
    stream = tiny_encoder.encode_stream(sentences, chunk=chunk, precision="fp32")
    first = next(stream)
    assert len(taken) == min(chunk, len(MANY))
    parts = [first, *stream]
    assert [len(p) for p in parts[:-1]] == [chunk] * (len(parts) - 1)
    np.testing.assert_allclose(np.concatenate(parts), rows, rtol=0, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 4, 10, 1000])
def test_tokenizing_ahead_changes_no_bit(chunk, tiny_encoder, monkeypatch):
    settings = {"chunk": chunk, "precision": "fp32"}
    expected = list(tiny_encoder.encode_stream(iter(MANY), **settings))
    monkeypatch.setattr(encoding, "overlaps", lambda _: True)
    found = list(tiny_encoder.encode_stream(iter(MANY), **settings))
    assert len(found) == len(expected)
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_stream_that_is_closed_early_leaves_no_thread(tiny_encoder, monkeypatch):
    monkeypatch.setattr(encoding, "overlaps", lambda _: True)
    before = threading.active_count()
    stream = tiny_encoder.encode_stream(itertools.cycle(MANY), chunk=4)
    next(stream)
    assert threading.active_count() == before + 1
    stream.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("nothing", [[], (), iter([])])
def test_no_sentence_gives_no_row(nothing, tiny_encoder):
    rows = tiny_encoder.encode(nothing)
    assert rows.shape == (0, 16)
    assert rows.dtype == np.float32
    assert list(tiny_encoder.encode_stream([])) == []


def test_one_string_is_one_row_but_no_stream(tiny_encoder):
    assert np.array_equal(tiny_encoder.encode("a dog"), tiny_encoder.encode(["a dog"])[0])
    with pytest.raises(ConfigError, match="a list of strings, not str"):
        tiny_encoder.encode_stream("a dog")


@pytest.mark.parametrize("item", [None, 3.5, float("nan"), b"dog", ["dog"]])
def test_what_is_not_a_string_is_named_with_its_number(item, tiny_encoder):
    sentences = ["a", "b", "c", item]
    said = f"sentence 3 is {type(item).__name__}, not a string: "
    with pytest.raises(DataError, match=said):
        tiny_encoder.encode(sentences)
    with pytest.raises(DataError, match=said):
        list(tiny_encoder.encode_stream(iter(sentences), chunk=2))


def test_a_sentence_without_a_token_is_named_with_its_number(tiny_encoder):
    bare = with_template(tiny_encoder, "$A")
    assert bare.encode(["a dog"]).shape == (1, 16)
    for texts, number in (([""], 0), (["a dog", " ", "a cat"], 1)):
        with pytest.raises(DataError, match=rf"text {number} has no token: ' ?'"):
            bare.encode(texts)


@pytest.mark.parametrize("form", [iter, list])
def test_too_long_sentences_are_cut_with_one_warning_and_their_number(form, tiny_encoder):
    sentences = ["dog", LONG, "dog " * 62, "dog " * 63, LONG]  # 64 tokens with the two specials
    with pytest.warns(UserWarning, match="^3 of 5 sentences were cut at 64 tokens$") as caught:
        rows = tiny_encoder.encode(form(sentences), precision="fp32")
    assert len(caught) == 1
    assert caught[0].filename == __file__
    np.testing.assert_allclose(rows[1], rows[2], rtol=0, atol=1e-6)
    with pytest.warns(UserWarning, match="^3 of 5 sentences were cut at 64 tokens$") as caught:
        list(tiny_encoder.encode_stream(sentences, chunk=2))
    assert len(caught) == 1
    silent = tiny_encoder.encode(sentences, on_overflow="truncate", precision="fp32")
    np.testing.assert_allclose(silent, rows, rtol=0, atol=1e-6)


def test_too_long_sentences_can_be_an_error(tiny_encoder):
    fitting = tiny_encoder.encode(["dog " * 62], on_overflow="error", precision="fp32")
    assert fitting.shape == (1, 16)
    said = "2 of the sentences 2 to 3 are longer than 64 tokens; .* on_overflow='truncate'"
    with pytest.raises(DataError, match=said):
        list(tiny_encoder.encode_stream(["a", "b", LONG, LONG], chunk=2, on_overflow="error"))


def test_normalize_gives_unit_rows_and_its_default_is_the_encoders(tiny_encoder, rows):
    unit = tiny_encoder.encode(MANY, normalize=True, precision="fp32")
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
    expected = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(unit, expected, rtol=0, atol=1e-6)
    tiny_encoder.normalize = True
    assert np.array_equal(tiny_encoder.encode(MANY, precision="fp32"), unit)
    raw = tiny_encoder.encode(MANY, normalize=False, precision="fp32")
    assert np.array_equal(raw, rows)


def modes(encoder):
    return {name: part.training for name, part in encoder.named_modules()}


def test_every_part_is_put_back_into_its_mode(tiny_encoder, rows):
    tiny_encoder.train()
    tiny_encoder.backbone.model.embeddings.eval()
    before = modes(tiny_encoder)
    assert {True, False} == set(before.values())
    dropped = tiny_encoder.encode(MANY, precision="fp32")
    assert modes(tiny_encoder) == before
    np.testing.assert_allclose(dropped, rows, rtol=0, atol=1e-6)
