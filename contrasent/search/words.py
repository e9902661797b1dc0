"""Words: BM25, which ranks texts by the words that they share with a query, and its fusion.

A segment of an index has a table of its words, each with its rows and how often it is in them.
What BM25 needs of all texts is counted when one searches, so that tables are never written again
for what other segments gain or lose.

Shapes: Q queries, N texts, D dimensions of a vector.
"""

import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contrasent.data.clean import CHARACTERS
from contrasent.search.nearest import Live

Scores = NDArray[np.float32]
Rows = NDArray[np.int64]

K1, B, RANKS = 1.5, 0.75, 60
_SAMPLE = 4_096

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


def word_table(texts: Iterable[str]) -> Any:
    """A row for each word of texts, in their order: the rows that have it, and how often."""
    import pyarrow as pa

    numbers, ids, lengths = dict[str, int](), array("i"), array("i")
    for text in texts:
        known = words(text)
        ids.extend([numbers.setdefault(word, len(numbers)) for word in known])
        lengths.append(len(known))
    sorted_words, count = sorted(numbers), max(1, len(lengths))
    place = np.empty(len(numbers), np.int64)
    place[[numbers[word] for word in sorted_words]] = np.arange(len(numbers))
    of_text = np.repeat(np.arange(len(lengths)), lengths)
    pairs, often = np.unique(place[np.asarray(ids)] * count + of_text, return_counts=True)
    starts = np.searchsorted(pairs, count * np.arange(len(numbers) + 1)).astype("i4")
    lists = (pa.ListArray.from_arrays(starts, it.astype("i4")) for it in (pairs % count, often))
    return pa.table([pa.array(sorted_words, pa.string()), *lists], ["word", "rows", "counts"])


class WordIndex:
    r"""BM25 as Lucene has it (Robertson and Zaragoza 2009), over N texts.

    With f how often the word w is in a text d of so many words, and n texts that have it:

    .. math:: \sum_{w \in q} \ln(1 + \frac{N - n + 0.5}{n + 0.5})
        \frac{f}{f + k_1 (1 - b + b |d| / \overline{|d|})}, \quad k_1 = 1.5, b = 0.75

    Rows that are not ``live`` count as if they were not there, and have the score 0.
    """

    def __init__(self, tables: Sequence[Any], lengths: Sequence[int], live: Live = None) -> None:
        self._live = np.ones(sum(lengths), bool) if live is None else live
        self._parts, counted = list[Any](), list[Any]()
        for first, table, count in zip(accumulate([0, *lengths]), tables, lengths, strict=False):
            word, *lists = (table[it].combine_chunks() for it in ("word", "rows", "counts"))
            rows, often = (it.values.to_numpy() for it in lists)
            self._parts.append((first, word, lists[0].offsets.to_numpy(), rows, often))
            counted.append(np.bincount(rows, often, count))
        size = np.maximum(np.concatenate(counted), 1)  # a text without words counts as one
        mean = size[self._live].mean() if self._live.any() else 1.0
        self._added = (K1 * (1 - B + B * size / mean)).astype(np.float32)

    @classmethod
    def of(cls, texts: Sequence[str]) -> "WordIndex":
        """That of texts."""
        return cls([word_table(texts)], [len(texts)])

    def scores(self, queries: Sequence[str]) -> Scores:
        """Scores ``(Q, N)``; 0 where no word is shared."""
        return np.stack([self.scores_of(query) for query in queries])

    def scores_of(self, query: str) -> Scores:
        """Scores ``(N,)`` of one query."""
        scores, texts = np.zeros(len(self._live), np.float32), int(self._live.sum())
        for word, times in Counter(words(query)).items():
            found = [*self._having(word)]
            having = sum(int(self._live[rows].sum()) for rows, _ in found)
            weight = times * np.log(1 + (texts - having + 0.5) / (having + 0.5))
            for rows, often in found:
                scores[rows] += np.float32(weight) * (often / (often + self._added[rows]))
        scores[~self._live] = 0
        return scores

    def _having(self, word: str) -> Iterator[tuple[Rows, Scores]]:
        for first, known, starts, rows, often in self._parts:
            place = bisect_left(known, word, key=lambda it: it.as_py())
            if place < len(known) and known[place].as_py() == word:
                own = slice(starts[place], starts[place + 1])
                yield first + rows[own], often[own].astype(np.float32)


def best_by_words(scores: Scores, top_k: int) -> Rows:
    """The rows of the ``top_k`` largest scores ``(N,)`` above 0, equal ones by row."""
    rows = np.flatnonzero(scores > 0)
    if len(rows) > top_k:
        rows = rows[scores[rows] >= np.partition(scores[rows], -top_k)[-top_k]]
    return rows[np.lexsort((rows, -scores[rows]))[:top_k]]


def _standardised(scores: Any, known: Any) -> Any:
    """Z of scores, by mean and spread of ``known`` ones; 0 where these are all equal."""
    spread = np.ptp(known, axis=-1, keepdims=True)
    centred = scores - known.mean(axis=-1, keepdims=True, dtype=np.float64)
    deviation = known.std(axis=-1, keepdims=True, dtype=np.float64)
    return np.where(spread == 0, 0, centred / np.where(spread == 0, 1, deviation))


def fuse(dense: Scores, by_words: Scores, weight: float) -> Scores:
    """``(1 - w) z(dense) + w z(words)`` of scores ``(Q, N)``, z over the texts of each query.

    What is equal for all texts says nothing: its z is 0.
    """
    z = (_standardised(scores, scores).astype(np.float32) for scores in (dense, by_words))
    return np.asarray((1 - weight) * next(z) + weight * next(z), np.float32)


Found = tuple[int, float, float | None, int | None, float | None, int | None]
"""A row, the score that ranks it, its similarity and rank by that, its BM25 and rank by that."""


def nearest_by_words(scores: Scores, top_k: int) -> list[Found]:
    """The rows of the ``top_k`` largest scores ``(N,)`` of BM25, of those that share a word."""
    best = [(row, float(scores[row])) for row in best_by_words(scores, top_k).tolist()]
    return [(row, it, None, None, it, rank) for rank, (row, it) in enumerate(best, 1)]


def nearest_by_both(
    near: Sequence[int],
    exact: Callable[[Rows], list[tuple[int, float]]],
    by_words: Scores,
    rows: Rows,
    top_k: int,
    weight: float | None,
    least: float,
) -> list[Found]:
    """The ``top_k`` rows of the largest score of `fuse`, of the candidates of both sides.

    ``near`` are those by similarity, which ``exact`` gives of some rows, and whose mean and spread
    are those of up to 4,096 of the ``rows`` that are searched; ``by_words (N,)`` is BM25. Without a
    weight the score is the sum of :math:`1 / (60 + r)` over ranks r (Cormack et al. 2009).
    """
    sides = near, best_by_words(by_words, len(near)).tolist()
    ranks = [{row: rank for rank, row in enumerate(side, 1)} for side in sides]
    found = np.unique(np.concatenate(sides).astype(int))
    similar = dict(exact(found))
    scores = np.array([similar[row] for row in found.tolist()]), by_words[found]
    if weight is None:
        fused = np.array([sum(1 / (RANKS + of[r]) for of in ranks if r in of) for r in found])
    else:
        some = rows[np.linspace(0, len(rows) - 1, min(len(rows), _SAMPLE)).astype(int)]
        known = np.array([score for _, score in exact(some)]), by_words[rows]
        dense, spoken = map(_standardised, scores, known)
        fused = (1 - weight) * dense + weight * spoken
    order = np.lexsort((found, -fused))
    best = order[scores[0][order] >= least][:top_k]
    return [
        (row, score, dense, ranks[0].get(row), spoken, ranks[1].get(row))
        for row, score, dense, spoken in zip(
            *(it[best].tolist() for it in (found, fused, *scores)), strict=True
        )
    ]
