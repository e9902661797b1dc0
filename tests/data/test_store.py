import json
import threading

import numpy as np
import pytest
from helpers.tiny_tokenizers import Letters, content

from contrasent.data import examples as examples_module
from contrasent.data import loader as store_module
from contrasent.data.documents import keep_texts
from contrasent.data.loader import text_numbers, tokenize
from contrasent.errors import ConfigError, DataError

WORDS = ["a", "b", "c", "d", "e", "cat", "cats"]


def rows_of(seed, count, views):
    random = np.random.default_rng(seed)
    return [
        tuple(" ".join(random.choice(WORDS, random.integers(4, 9))) for _ in range(views))
        for _ in range(count)
    ]


@pytest.mark.parametrize("views", [1, 2, 3, 5])
@pytest.mark.parametrize("at_once", [1, 7, 4096])
def test_the_store_holds_what_the_tokenizer_says(bert, opened, monkeypatch, views, at_once):
    monkeypatch.setattr(examples_module, "_SENTENCES_AT_ONCE", at_once)
    rows = rows_of(0, 23, views)
    store = tokenize(opened(rows), bert, 6)
    expected = [[ids.tolist() for ids in bert.ids(row, 6)[0]] for row in rows]
    assert content(store) == expected
    assert (len(store), store.views) == (23, views)
    assert store.tokens(0, 0).dtype == np.int32
    manifest = store.manifest
    assert manifest.tokens == sum(len(ids) for row in expected for ids in row)
    assert manifest.cut == sum(bert.ids(row, 6)[1] for row in rows) > 0
    assert manifest.max_tokens == 6


@pytest.mark.parametrize("views", [(0,), (0, 0), (0, 1, 2), (2, 0)])
def test_gather_lays_sentences_end_to_end_view_by_view(opened, views):
    store = tokenize(opened(rows_of(1, 20, 3)), Letters(), None)
    examples = np.array([7, 0, 19, 7])
    token_ids, offsets = store.gather(examples, views)
    sentences = [store.tokens(example, view).tolist() for view in views for example in examples]
    assert token_ids.tolist() == [token for sentence in sentences for token in sentence]
    assert np.diff(offsets).tolist() == [len(sentence) for sentence in sentences]
    assert (token_ids.dtype, offsets.dtype, offsets[0]) == (np.int64, np.int64, 0)


@pytest.mark.parametrize(
    ("vocabulary", "dtype"), [(128, "uint16"), (1 << 16, "uint16"), ((1 << 16) + 1, "int32")]
)
def test_ids_are_kept_in_two_bytes_if_the_vocabulary_allows(opened, vocabulary, dtype):
    store = tokenize(opened(["é\uffff"]), Letters(vocabulary), None)
    assert store.manifest.dtype == dtype
    assert content(store) == [[[0xE9, 0xFFFF]]]


def test_a_second_call_reads_the_cache(opened, cache):
    rows, tokenizer = rows_of(2, 9, 2), Letters()
    first = tokenize(opened(rows), tokenizer, 4)
    again = tokenize(opened(rows, "same content.tsv"), tokenizer, 4)
    assert len(tokenizer.calls) == 1
    assert again.folder == first.folder
    assert content(again) == content(first)
    assert again.manifest == first.manifest
    assert again.folder.parent == cache / "tokens"
    others = [tokenize(opened(rows), Letters(), limit).folder for limit in (4, 5, None)]
    assert len({*others, tokenize(opened(rows[1:]), Letters(), 4).folder}) == 4


def shorten(folder):
    for name in ("tokens.bin", "offsets.bin"):
        yield lambda name=name: (folder / name).write_bytes((folder / name).read_bytes()[:-2])
        yield lambda name=name: (folder / name).unlink()
    manifest = folder / "manifest.json"
    yield lambda: manifest.write_text("{")
    yield lambda: manifest.write_text("[]")
    yield lambda: manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "new": 1}))
    yield lambda: manifest.write_text(manifest.read_text().replace("uint16", "nonsense"))
    yield manifest.unlink


def test_a_damaged_entry_is_computed_again(opened):
    rows, tokenizer = rows_of(4, 9, 2), Letters()
    store = tokenize(opened(rows), tokenizer, None)
    expected = content(store)
    for number, damage in enumerate(shorten(store.folder), start=2):
        damage()
        assert content(tokenize(opened(rows), tokenizer, None)) == expected
        assert len(tokenizer.calls) == number
    assert number == 10


def test_rows_without_a_token_are_left_out_and_counted(opened):
    rows = [("a", "b"), ("x", "b"), ("", "b"), ("a", "xx"), ("c", "d")]
    store = tokenize(opened(rows), Letters(), None)
    assert content(store) == [[[97], [98]], [[99], [100]]]
    assert store.manifest.skipped == 3
    with pytest.raises(DataError, match=r"none.tsv holds no example whose sentences all have a"):
        tokenize(opened([("x", "a"), ("", "b")], "none.tsv"), Letters(), None)


def test_a_cache_that_cannot_be_written_is_explained(opened, cache, monkeypatch):
    cache.write_text("a file")
    with pytest.raises(ConfigError, match=r"cannot keep token ids in .*cache: .* CONTRASENT_CACHE"):
        tokenize(opened(["a"]), Letters(), None)
    cache.unlink()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_module, "portions", full)
    with pytest.raises(ConfigError, match="No space left on device; name a folder with room in"):
        tokenize(opened(["a"]), Letters(), None)
    assert not list((cache / "tokens").iterdir())


class Slow(Letters):
    """Blocks in the middle of its work until it is let go."""

    def __init__(self):
        super().__init__()
        self.started, self.go = threading.Event(), threading.Event()

    def ids(self, texts, max_tokens):
        self.started.set()
        assert self.go.wait(10)
        return super().ids(texts, max_tokens)


def test_of_two_that_want_one_entry_one_computes_and_one_waits(opened, caplog):
    rows, slow, quick, found = rows_of(5, 30, 2), Slow(), Letters(), []
    first = threading.Thread(target=lambda: found.append(tokenize(opened(rows), slow, None)))
    second = threading.Thread(
        target=lambda: found.append(tokenize(opened(rows, "2.tsv"), quick, None))
    )
    with caplog.at_level("INFO", logger="contrasent"):
        first.start()
        assert slow.started.wait(10)
        second.start()
        second.join(0.5)
        assert second.is_alive()
        slow.go.set()
        first.join(10)
        second.join(10)
    assert (len(slow.calls), len(quick.calls)) == (1, 0)
    assert content(found[0]) == content(found[1])
    assert "waiting for another process that computes the same token ids" in caplog.text


def test_texts_fit_a_store_that_left_some_out(opened):
    random = np.random.default_rng(0)
    lines = random.choice(["a", "x", "", "b", "xx", "xax"], 300).tolist()
    examples = opened(lines, "lines.txt")
    store, texts = tokenize(examples, Letters(), None), keep_texts(examples)
    numbers = text_numbers(store)
    assert len(numbers) == len(store) < len(texts)
    for example, number in enumerate(numbers.tolist()):
        letters = [ord(letter) for letter in texts[number].as_py() if letter != "x"]
        assert store.tokens(example, 0).tolist() == letters
    assert store.manifest.tokenless == len(texts) - len(store)
