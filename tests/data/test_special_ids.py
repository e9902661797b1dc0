"""Special tokens by name, whatever they are called, and the whole vocabulary."""

import pytest
from helpers.tiny_models import FAMILY, TOKENIZERS, save_tokenizer
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from contrasent.data.tokenizer import Tokenizer


def named(tokenizer):
    ids = tokenizer.special_ids
    tokens = {number: token for token, number in tokenizer.vocabulary_map.items()}
    return [tokens.get(number) for number in (ids.mask, ids.first, ids.last, ids.pad)]


@pytest.mark.parametrize("model_type", FAMILY)
def test_every_kind_of_tokenizer(model_type, tmp_path):
    make, tokenizer_class = TOKENIZERS[model_type]
    make(tmp_path / "it", tokenizer_class=tokenizer_class)
    tokenizer = Tokenizer.load(tmp_path / "it")
    names = ["[MASK]", "[CLS]", "[SEP]", "[PAD]"]
    if "Roberta" in tokenizer_class:
        names = ["<mask>", "<s>", "</s>", "<pad>"]
    assert named(tokenizer) == names
    ids, _ = tokenizer.ids(["dog"], None)
    assert (ids[0][0], ids[0][-1]) == (tokenizer.special_ids.first, tokenizer.special_ids.last)
    assert set(ids[0][1:-1].tolist()).isdisjoint(tokenizer.special_ids.every)


def test_a_tokenizer_without_special_tokens(tmp_path):
    backend = Backend(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    save_tokenizer(tmp_path / "plain", backend, tokenizer_class="PreTrainedTokenizerFast")
    tokenizer = Tokenizer.load(tmp_path / "plain")
    assert named(tokenizer) == [None] * 4
    assert tokenizer.special_ids.every == ()
    assert tokenizer.source.endswith("plain")
