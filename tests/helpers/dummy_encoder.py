"""Encoders without a model: a text has a fixed random vector, or the mean of those of its words."""

import hashlib
from itertools import islice

import numpy as np

from contrasent.model.protocol import Conventions, unit_rows


class DummyEncoder:
    """Vectors drawn from the text's own hash, or taken from ``vectors``."""

    def __init__(self, width=8, *, salt="", vectors=None, name="dummy", max_tokens=64):
        self.width, self.salt, self.vectors = width, salt, vectors or {}
        self.name, self.max_tokens = name, max_tokens
        self.pooler, self.head_name, self.engine = "cls", "none", "torch"
        self.normalize = False
        self.embedded = []
        self.precisions = []

    def fingerprint(self):
        return hashlib.sha256(f"{self.width}{self.salt}".encode()).hexdigest()

    def resolve_precision(self, name):
        return name

    conventions = Conventions()

    def route(self, _):
        return self

    def limit(self, _):
        return self.max_tokens

    def cut(self, texts, _):
        return [len(text.split()) > self.max_tokens for text in texts]

    def vector(self, text):
        if text in self.vectors:
            return np.asarray(self.vectors[text], np.float32)
        seed = int.from_bytes(hashlib.sha256((self.salt + text).encode()).digest()[:8], "big")
        return np.random.default_rng(seed).standard_normal(self.width).astype(np.float32)

    def encode_stream(
        self,
        sentences,
        *,
        chunk=65_536,
        batch_tokens=None,
        normalize=None,
        precision="auto",
        show_progress=False,
        on_overflow="warn",
    ):
        assert batch_tokens is None or batch_tokens > 0
        assert on_overflow in ("warn", "error", "truncate")
        assert show_progress in (True, False)
        self.precisions.append(precision)
        rest = iter(sentences)
        while texts := list(islice(rest, chunk)):
            self.embedded += texts
            rows = np.stack([self.vector(text) for text in texts])
            unit = self.normalize if normalize is None else normalize
            yield unit_rows(rows) if unit else rows


WORDS = ("red", "green", "blue", "old", "new", "cat", "dog", "house", "runs", "never", "under")


class WordEncoder:
    """The mean of fixed random vectors of the words; says how often it was asked."""

    name = "some/words"
    pooler = "mean"

    def __init__(self):
        self.calls = []

    def resolve_precision(self, name):
        return name

    def encode(self, sentences, *, precision, show_progress):
        self.calls.append((list(sentences), precision, show_progress))
        return np.stack([self.embed(sentence) for sentence in sentences])

    def embed(self, sentence):
        vectors = []
        for word in sentence.split(" "):
            seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "little")
            vectors.append(np.random.default_rng(seed).normal(size=6))
        return np.mean(vectors, axis=0).astype(np.float32)
