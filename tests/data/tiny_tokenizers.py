"""Tiny real tokenizers and text files, for the tests of this folder."""

import json

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
