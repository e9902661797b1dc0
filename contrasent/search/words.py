"""Words: BM25, which ranks texts by the words that they share with a query, and its fusion.

Shapes: Q queries, N texts.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from contrasent.data.clean import CHARACTERS

Scores = NDArray[np.float32]

# Vowel signs, which Python takes for no part of a word: Hebrew, Arabic, scripts of India.
_SIGNS = r"\u0300-\u036f\u0591-\u05c7\u064b-\u0670\u0900-\u0963\u0966-\u0dff"
UNSPACED = re.compile(f"[{CHARACTERS}]")
_WORD = re.compile(f"[{CHARACTERS}]|(?:[^\\W{CHARACTERS}]|[{_SIGNS}])+")


def words(text: str) -> list[str]:
    """The words of a text in lower case; of scripts without spaces the characters."""
    return _WORD.findall(text.lower())


def without_words(text: str, given: Container[str]) -> str:
    """A text without some words, whatever their case."""
    left = _WORD.sub(lambda word: "" if word[0].lower() in given else word[0], text)
    return " ".join(left.split())


class WordIndex:
    r"""BM25 as Lucene has it (Robertson and Zaragoza 2009), over N texts.

    With f how often the word w is in a text d of so many words, and n texts that have it:

    .. math:: \sum_{w \in q} \ln(1 + \frac{N - n + 0.5}{n + 0.5})
        \frac{f}{f + k_1 (1 - b + b |d| / \overline{|d|})}, \quad k_1 = 1.5, b = 0.75
    """

    def __init__(self, texts: Iterable[str]) -> None:
        import bm25s

        self.vocabulary = {"": 0}  # of the texts without a word
        number = self.vocabulary.setdefault
        ids = [[number(word, len(self.vocabulary)) for word in words(it) or [""]] for it in texts]
        self._index = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
        self._index.index((ids, self.vocabulary), create_empty_token=False, show_progress=False)

    def scores(self, queries: Sequence[str]) -> Scores:
        """Scores ``(Q, N)``; 0 where no word is shared."""
        known = [[n for w in words(query) if (n := self.vocabulary.get(w))] for query in queries]
        return np.stack([self._index.get_scores_from_ids(numbers) for numbers in known])

    def nearest(self, queries: Sequence[str], top_k: int) -> list[list[tuple[int, float]]]:
        """For each query the ``top_k`` texts of the largest scores above 0, equal ones by row."""
        hits = []
        for query in queries:
            (scores,) = self.scores([query])
            order = np.lexsort((np.arange(len(scores)), -scores))[:top_k]
            hits.append([(int(row), float(scores[row])) for row in order if scores[row] > 0])
        return hits


def fuse(dense: Scores, by_words: Scores, weight: float) -> Scores:
    """``(1 - w) z(dense) + w z(words)`` of scores ``(Q, N)``, z over the texts of each query.

    What is equal for all texts says nothing: its z is 0.
    """

    def standardised(scores: Scores) -> Scores:
        spread = scores.std(axis=1, keepdims=True, dtype=np.float64)
        centred = scores - scores.mean(axis=1, keepdims=True, dtype=np.float64)
        flat = np.ptp(scores, axis=1, keepdims=True) == 0
        z: Scores = np.where(flat, 0, centred / np.where(flat, 1, spread)).astype(np.float32)
        return z

    fused: Scores = (1 - weight) * standardised(dense) + weight * standardised(by_words)
    return fused
