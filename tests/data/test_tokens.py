import json
import logging
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers.tiny_models import FAMILY, TOKENIZERS, save_tokenizer
from helpers.tiny_tokenizers import WORDS, bert_folder, roberta_folder
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from contrasent.data.tokenizer import Tokenizer
from contrasent.errors import CheckpointError


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


def folder_with_its_own_limits(tmp_path):
    """Padding and truncation inside tokenizer.json, as all-MiniLM-L6-v2 has them."""
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
    return folder


def test_padding_and_truncation_of_the_folder_are_not_applied_but_saved(tmp_path):
    folder = folder_with_its_own_limits(tmp_path)
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
