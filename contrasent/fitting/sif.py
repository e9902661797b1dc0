"""Fitting of SIF: frequencies of words, and the directions that all sentences have in common.

Arora, Liang and Ma 2017, "A Simple but Tough-to-Beat Baseline for Sentence Embeddings", algorithm
1. Shapes: W words, D numbers in a vector, C components.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import numpy as np

from contrasent.data.readers import lines
from contrasent.data.rows import as_number
from contrasent.data.word_vectors import Vectors, WordStore
from contrasent.errors import ConfigError, DataError
from contrasent.files import sha256_of
from contrasent.fitting.text import FittingText
from contrasent.model.lookup_encoders import WordEncoder
from contrasent.model.transforms import Moments

_AT_ONCE = 8192


def fit_sif(
    encoder: WordEncoder,
    text: FittingText,
    *,
    smoothing: float = 1e-3,
    components: int = 1,
    frequencies: Path | None = None,
) -> tuple[WordEncoder, dict[str, object]]:
    """Weigh words by ``a / (a + p(w))``, and find the components that are taken out.

    ``smoothing`` is a; C ``components``, the first singular vectors of the text's embeddings, not
    centred, are taken out; ``frequencies`` is a file of a word and its count per line, else words
    of the text are counted. Returns the encoder, and what is kept of the fit in
    ``contrasent.json``.
    """
    if not smoothing > 0 or not 0 <= components < encoder.width:
        raise ConfigError(
            f"a is {smoothing} and must be above 0; {components} components must be 0 to "
            f"{encoder.width - 1}"
        )
    if encoder.weights is not None:
        raise ConfigError(f"{encoder.name} is fitted already; fit on the file of word vectors")
    counts: Mapping[str, float]
    if frequencies is None:
        counts = Counter(word for sentence in text for word in sentence.split())
    else:
        counts = read_frequencies(frequencies)
    weights = word_weights(encoder.store, counts, smoothing)
    weighted = WordEncoder(encoder.store, encoder.name, weights)
    directions, unknown = _common(weighted, text, components)
    source = "its words" if frequencies is None else frequencies.name
    described = (
        f"SIF with a {smoothing:g}, {components} component{'s' * (components != 1)} taken out, "
        f"frequencies of {source}, fitted on {text.described}"
    )
    info = {
        "name": "sif",
        "described": described,
        "a": smoothing,
        "components": components,
        "frequencies": None if frequencies is None else frequencies.name,
        "frequencies_sha256": None if frequencies is None else sha256_of(frequencies),
        "sentences": len(text),
        "sentences_without_a_known_word": unknown,
        "text": text.provenance,
        "target": text.is_target,
        "words": {"source": encoder.store.source, "sha256": encoder.store.sha256},
    }
    fitted = WordEncoder(encoder.store, encoder.name, weights, directions, described)
    return fitted, {"transform": info}


def word_weights(store: WordStore, counts: Mapping[str, float], smoothing: float) -> Vectors:
    """``(W,)``: ``a / (a + p(w))``; 1 for a word that was not counted.

    Counts of words that are looked up under the same vector, as in lower case, are added.
    """
    total = sum(counts.values())
    counted = np.zeros(store.words)
    for word, row in store.rows(counts).items():
        counted[row] += counts[word]
    return (smoothing / (smoothing + counted / total)).astype(np.float32)


def read_frequencies(path: Path) -> dict[str, float]:
    """A word and its count per line, between white space; another line is refused by its number."""
    counts: dict[str, float] = {}
    for number, line in lines(path):
        cells = line.split()
        if not cells:
            continue
        count = as_number(cells[-1])
        if len(cells) != 2 or count is None or count < 0:
            raise DataError(f"{path}:{number}: a line must be a word and its count, not {line!r}")
        counts[cells[0]] = counts.get(cells[0], 0.0) + count
    if not sum(counts.values()):
        raise DataError(f"{path} counts no word")
    return counts


def _common(encoder: WordEncoder, text: FittingText, components: int) -> tuple[Vectors, int]:
    """``(C, D)`` first right singular vectors of the embeddings, and sentences of unknown words."""
    moments, unknown = Moments(encoder.width), 0
    rest = iter(text)
    while block := list(islice(rest, _AT_ONCE)):
        rows, known = encoder.means(block)
        unknown += int((known == 0).sum())
        moments.add(rows)
    if unknown == len(text):
        raise DataError(f"{encoder.name} has none of the words of {text.described}")
    _, directions = np.linalg.eigh(moments.second)
    first = directions[:, ::-1][:, :components].T
    return np.ascontiguousarray(first, np.float32), unknown
