from pathlib import Path

import numpy as np
import pytest

from contrasent.data import token_store as texts_module
from contrasent.data.token_store import keep_texts, text_numbers, tokenize
from contrasent.errors import ConfigError, DataError

LINES = ["a b", " é  x ", "", "日本 😀", "a b", "x" * 5000]


@pytest.fixture
def counted(monkeypatch):
    """How often texts were written."""
    calls = []
    write = texts_module._write_texts
    monkeypatch.setattr(
        texts_module, "_write_texts", lambda *args: calls.append(args) or write(*args)
    )
    return calls


def test_texts_are_the_sentences_of_the_source(opened):
    texts = keep_texts(opened(LINES, "lines.txt"))
    expected = [line.strip() for line in LINES if line]
    assert len(texts) == len(expected)
    assert [texts[number] for number in range(len(texts))] == expected
    for number in (-1, len(expected)):
        with pytest.raises(IndexError, match="no text"):
            texts[number]


def test_a_second_call_reads_the_cache(opened, counted):
    first = keep_texts(opened(LINES, "lines.txt"))
    again = keep_texts(opened(LINES, "same.txt"))
    assert len(counted) == 1
    assert [again[k] for k in range(5)] == [first[k] for k in range(5)]
    keep_texts(opened(LINES[1:], "fewer.txt"))
    assert len(counted) == 2


def test_the_same_bytes_read_otherwise_are_other_texts(opened):
    lines, cells = (keep_texts(opened(['"a b"', '"c"'], f"f.{kind}")) for kind in ("txt", "csv"))
    assert (lines[0], cells[0]) == ('"a b"', "a b")


@pytest.mark.parametrize("name", ["text.bin", "offsets.bin", "manifest.json"])
def test_a_damaged_entry_is_written_again(name, opened, cache, counted):
    keep_texts(opened(LINES, "lines.txt"))
    (damaged,) = (cache / "texts").glob(f"*/{name}")
    for damage in (lambda: damaged.write_bytes(damaged.read_bytes()[:-2]), damaged.unlink):
        damage()
        assert keep_texts(opened(LINES, "lines.txt"))[1] == "é  x"
    assert len(counted) == 3


def test_texts_fit_a_store_that_left_some_out(opened):
    class Letters:
        vocabulary, fingerprint = 1 << 17, "letters"

        def ids(self, texts, _):
            ids = [[ord(letter) for letter in text if letter != "x"] for text in texts]
            return [np.array(row, dtype=np.int32) for row in ids], 0

    random = np.random.default_rng(0)
    lines = random.choice(["a", "x", "", "b", "xx", "xax"], 300).tolist()
    examples = opened(lines, "lines.txt")
    store, texts = tokenize(examples, Letters(), None), keep_texts(examples)
    numbers = text_numbers(store)
    assert len(numbers) == len(store) < len(texts)
    for example, number in enumerate(numbers.tolist()):
        letters = [ord(letter) for letter in texts[number] if letter != "x"]
        assert store.tokens(example, 0).tolist() == letters
    assert store.manifest.tokenless == len(texts) - len(store)


def test_a_source_that_cannot_be_read_leaves_no_entry(opened, cache):
    examples = opened(["a", "b"], "lines.txt")
    with Path(examples.source).open("ab") as file:
        file.write(b"\xff\n")
    with pytest.raises(DataError, match=r"lines\.txt:3: not UTF-8"):
        keep_texts(examples)
    assert not list((cache / "texts").iterdir())


def test_a_cache_that_cannot_be_written_is_explained(opened, cache):
    cache.write_text("a file")
    with pytest.raises(ConfigError, match=r"cannot keep the texts in .*cache: .* CONTRASENT_CACHE"):
        keep_texts(opened(["a"], "lines.txt"))
