"""A small file of word vectors, in GloVe's form."""

import numpy as np

from helpers.tiny_models import WORDS


def vectors_of(words, width=6, seed=0):
    """A fixed vector for each word."""
    draw = np.random.default_rng(seed)
    return {word: draw.normal(size=width).astype("f4") for word in words}


def write_vectors(path, vectors):
    """Write them as text, every digit kept."""
    rows = [f"{word} {' '.join(repr(float(x)) for x in row)}\n" for word, row in vectors.items()]
    path.write_text("".join(rows), encoding="utf-8")
    return path


def save_glove(path):
    """The words of the tiny models, and the marks around a sentence, with their vectors."""
    plain = [word for word in WORDS if not word.startswith("##")]
    return write_vectors(path, vectors_of([*plain, "<s>", "</s>"]))
