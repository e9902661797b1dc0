"""Token ids by tiny and real tokenizers, and the store that keeps them."""

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import numpy as np
import pytest
from helpers.tiny_models import FAMILY, TOKENIZERS, save_tokenizer
from helpers.tiny_tokenizers import WORDS, Letters, bert_folder, content, roberta_folder
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from contrasent.data import examples as examples_module
from contrasent.data import loader as store_module
from contrasent.data.documents import keep_texts
from contrasent.data.loader import text_numbers, tokenize
from contrasent.data.tokenizer import Tokenizer
from contrasent.errors import CheckpointError, ConfigError, DataError


def listed(tokenizer, texts, max_tokens=None):
    ids, cut = tokenizer.ids(texts, max_tokens)
    return [row.tolist() for row in ids], cut


def test_a_vocab_txt_alone_is_an_uncased_bert(bert):
    ids, cut = bert.ids(["A cats b", "zzz", ""], None)
    number = WORDS.index
    expected = [
        [number(w) for w in ("[CLS]", "a", "cat", "##s", "b", "[SEP]")],
        [number(w) for w in ("[CLS]", "[UNK]", "[SEP]")],
        [number(w) for w in ("[CLS]", "[SEP]")],
    ]
    assert [row.tolist() for row in ids] == expected
    assert cut == 0
    assert all(row.dtype == np.int32 for row in ids)
    assert (bert.vocabulary, bert.specials, bert.max_tokens) == (len(WORDS), 2, None)


@pytest.mark.parametrize("max_tokens", [3, 4, 5, 6, 7])
def test_the_limit_counts_specials_and_cut_texts_are_counted_exactly(bert, max_tokens):
    texts = ["a", "a b", "a b c", "a b c d", "a b c d e", ""]
    ids, cut = listed(bert, texts, max_tokens)
    whole, _ = listed(bert, texts)
    for short, full in zip(ids, whole, strict=True):
        expected = full if len(full) <= max_tokens else [*full[: max_tokens - 1], full[-1]]
        assert short == expected
    assert cut == sum(len(full) > max_tokens for full in whole)


def test_limits_do_not_disturb_each_other(bert):
    texts = ["a b c d e"] * 50

    def cut_to(limit):
        ids, _ = bert.ids(texts, limit)
        return {len(row) for row in ids}

    with ThreadPoolExecutor(4) as pool:
        limits = [3, 4, 5, 6, None] * 20
        assert list(pool.map(cut_to, limits)) == [{limit or 7} for limit in limits]


def test_padding_and_truncation_of_the_folder_are_not_applied_but_saved(tmp_path):
    """Those inside tokenizer.json, as all-MiniLM-L6-v2 has them."""
    folder = tmp_path / "limits"
    tokenizer = Tokenizer.load(bert_folder(tmp_path / "bert"))
    tokenizer.save(folder)
    settings = json.loads((folder / "tokenizer.json").read_text())
    settings["truncation"] = {"max_length": 4, "strategy": "LongestFirst", "stride": 0}
    settings["truncation"]["direction"] = "Right"
    settings["padding"] = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_id": 0}
    settings["padding"] |= {"pad_to_multiple_of": None, "pad_type_id": 0, "pad_token": "[PAD]"}
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"model_max_length": 8}))
    tokenizer = Tokenizer.load(folder)
    assert listed(tokenizer, ["a b c d e", "a"]) == ([[2, 5, 6, 7, 8, 9, 3], [2, 5, 3]], 0)
    assert tokenizer.max_tokens == 8

    tokenizer.ids(["a b"], 3)
    tokenizer.save(tmp_path / "saved")
    before = json.loads((folder / "tokenizer.json").read_text())
    after = json.loads((tmp_path / "saved" / "tokenizer.json").read_text())
    assert before == after
    assert Tokenizer.load(tmp_path / "saved").max_tokens == 8


@pytest.mark.parametrize("make", [bert_folder, roberta_folder])
def test_a_saved_tokenizer_is_the_same_tokenizer_for_transformers_too(make, tmp_path):
    from transformers import AutoTokenizer

    original = Tokenizer.load(make(tmp_path / "original"))
    original.save(tmp_path / "saved")
    texts = ["abc", "a b  c", "Cats, a!", "", "é 日本"]
    again = Tokenizer.load(tmp_path / "saved")
    assert listed(again, texts, 5) == listed(original, texts, 5)
    assert again.fingerprint == original.fingerprint
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert theirs(texts, truncation=True, max_length=5)["input_ids"] == listed(again, texts, 5)[0]


def test_a_vocabulary_without_special_tokens_or_unknown_words(tmp_path):
    backend = Backend(models.WordLevel({"a": 0, "dog": 1}))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    save_tokenizer(tmp_path / "plain", backend, tokenizer_class="PreTrainedTokenizerFast")
    words = Tokenizer.load(tmp_path / "plain")
    assert listed(words, ["a dog"]) == ([[0, 1]], 0)
    assert (words.special_ids.mask, words.special_ids.every) == (None, ())
    with pytest.raises(CheckpointError, match=r"cannot encode every text \(WordLevel error"):
        words.ids(["a cat"], None)


@pytest.mark.acceptance
@pytest.mark.parametrize("name", ["bert-base-uncased", "roberta-base"])
@pytest.mark.parametrize("max_tokens", [None, 8])
def test_real_vocabularies_give_the_ids_of_transformers(shared, name, max_tokens):
    from transformers import BertTokenizerFast, RobertaTokenizerFast

    logging.getLogger("transformers").setLevel(logging.ERROR)
    folder = shared / "data" / "tokenizers" / name
    kind = BertTokenizerFast if name.startswith("bert") else RobertaTokenizerFast
    theirs = kind.from_pretrained(folder)
    lines = (shared / "data/wiki/wiki1m_for_simcse.head11914.txt").read_text().splitlines()[:300]
    lines += ["", " spaces  inside ", "naïve Café 日本語 😀", "[MASK] <mask> [SEP]"]
    ours = Tokenizer.load(folder)
    settings = {} if max_tokens is None else {"truncation": True, "max_length": max_tokens}
    expected = theirs(lines, **settings)["input_ids"]
    whole = theirs(lines)["input_ids"]
    ids, cut = listed(ours, lines, max_tokens)
    assert ids == expected
    assert cut == (sum(len(row) > 8 for row in whole) if max_tokens else 0)
    assert ours.vocabulary == len(theirs)


@pytest.mark.parametrize("model_type", FAMILY)
def test_every_kind_of_tokenizer(model_type, tmp_path):
    make, tokenizer_class = TOKENIZERS[model_type]
    make(tmp_path / "it", tokenizer_class=tokenizer_class)
    tokenizer = Tokenizer.load(tmp_path / "it")
    names = ["[MASK]", "[CLS]", "[SEP]", "[PAD]"]
    if "Roberta" in tokenizer_class:
        names = ["<mask>", "<s>", "</s>", "<pad>"]
    special, vocabulary = tokenizer.special_ids, tokenizer.vocabulary_map
    known = (special.mask, special.first, special.last, special.pad)
    assert known == tuple(vocabulary[it] for it in names)
    ids, _ = tokenizer.ids(["dog"], None)
    assert (ids[0][0], ids[0][-1]) == (tokenizer.special_ids.first, tokenizer.special_ids.last)
    assert set(ids[0][1:-1].tolist()).isdisjoint(tokenizer.special_ids.every)


def rows_of(seed, count, views):
    random, words = np.random.default_rng(seed), ["a", "b", "c", "d", "e", "cat", "cats"]
    return [
        tuple(" ".join(random.choice(words, random.integers(4, 9))) for _ in range(views))
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
    full = Mock(side_effect=OSError(28, "No space left on device"))
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
