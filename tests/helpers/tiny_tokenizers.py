"""Tiny tokenizers, real ones and one of letters, and the content of a token store."""

import json

import numpy as np

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d", "e", "##s", "cat"]
PAIRS = [("a", "b"), ("ab", "c")]


def bert_folder(folder):
    """A BERT tokenizer as vocab.txt and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"{w}\n" for w in WORDS), encoding="utf-8")
    return folder


def roberta_folder(folder):
    """A byte-level BPE tokenizer as vocab.json and merges.txt and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *"abcde", "\u0120", "ab", "abc", "<mask>"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    merges = "#version: 0.2\n" + "".join(f"{x} {y}\n" for x, y in PAIRS)
    (folder / "merges.txt").write_text(merges, encoding="utf-8")
    return folder


class Letters:
    """A tokenizer without special tokens: one id per letter, and none for an x."""

    fingerprint = "letters"

    def __init__(self, vocabulary=128):
        self.vocabulary = vocabulary
        self.calls = []

    def ids(self, texts, max_tokens):
        self.calls.append(list(texts))
        whole = [[ord(letter) for letter in text if letter != "x"] for text in texts]
        ids = [np.array(row[:max_tokens], dtype=np.int32) for row in whole]
        return ids, sum(len(a) > len(b) for a, b in zip(whole, ids, strict=True))


def content(store):
    """The token ids of a store, for each example and view."""
    return [
        [store.tokens(example, view).tolist() for view in range(store.views)]
        for example in range(len(store))
    ]
