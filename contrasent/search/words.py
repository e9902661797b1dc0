"""BM25, which ranks texts by the words that they share with a query, and its fusion.

A segment of an index has a table of its words, each with its rows and how often it is in them;
what BM25 needs of all texts is counted when one searches. Libraries such as bm25s keep scores,
which depend on all texts: every `add` would compute those of a million others again.

Shapes: Q queries, N texts.
"""

import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from math import inf
from typing import Any, Literal, NamedTuple
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from contrasent.data.readers import CHARACTERS
from contrasent.options import SearchOptions
from contrasent.search.nearest import Live

Scores = NDArray[np.float32]
Rows = NDArray[np.int64]

K1, B, RANKS, _SAMPLE = 1.5, 0.75, 60, 4_096
TABLE = ("word", "rows", "counts")  # columns of a table of words

# Vowel signs, which Python takes for no part of a word: Hebrew, Arabic, scripts of India.
_SIGNS = r"\u0300-\u036f\u0591-\u05c7\u064b-\u0670\u0900-\u0963\u0966-\u0dff"
_WORD = re.compile(f"[{CHARACTERS}]|(?:[^\\W{CHARACTERS}]|[{_SIGNS}])+")


def words(text: str) -> list[str]:
    """The words of a text in lower case, by NFKC; of scripts without spaces the characters."""
    return _WORD.findall(normalize("NFKC", text).lower())


def without_words(text: str, excluded: Set[str]) -> str:
    """A text without some words, whatever their case."""
    kept = _WORD.sub(lambda word: word[0] if excluded.isdisjoint(words(word[0])) else "", text)
    return " ".join(kept.split())


def word_table(texts: Iterable[str]) -> Any:
    """A row for each word of texts, in their order: the rows that have it, and how often."""
    import pyarrow as pa
    from scipy.sparse import csr_array

    numbers, ids, ends = dict[str, int](), array("i"), array("i", [0])
    for text in texts:
        ids.extend([numbers.setdefault(word, len(numbers)) for word in words(text)])
        ends.append(len(ids))
    known = sorted(numbers)
    columns = np.array([numbers[word] for word in known], int)
    counts = csr_array((np.ones(len(ids), "i4"), ids, ends), (len(ends) - 1, len(known)))
    counts = counts.tocsc()[:, columns]
    counts.sum_duplicates()
    starts, rows = (cells.astype("i4") for cells in (counts.indptr, counts.indices))
    lists = (pa.ListArray.from_arrays(starts, cells) for cells in (rows, counts.data))
    return pa.table([pa.array(known, pa.string()), *lists], TABLE)


class WordIndex:
    r"""BM25 as Lucene has it (Robertson and Zaragoza 2009), over N texts.

    With f how often the word w is in a text d of so many words, and n texts that have it:

    .. math:: \sum_{w \in q} \ln(1 + \frac{N - n + 0.5}{n + 0.5})
        \frac{f}{f + k_1 (1 - b + b |d| / \overline{|d|})}, \quad k_1 = 1.5, b = 0.75

    Rows that are not ``live`` count as if they were not there, and have the score 0.
    """

    def __init__(self, tables: Sequence[Any], lengths: Sequence[int], live: Live = None) -> None:
        self._live = np.ones(sum(lengths), bool) if live is None else live
        self._texts, self._tables, sizes = int(self._live.sum()), list[Any](), list[Any]()
        for first, table, count in zip(accumulate([0, *lengths]), tables, lengths, strict=False):
            known, *lists = (table[name].combine_chunks() for name in TABLE)
            rows, counts = (column.values.to_numpy() for column in lists)
            self._tables.append((first, known, lists[0].offsets.to_numpy(), rows, counts))
            sizes.append(np.bincount(rows, counts, count))
        size = np.maximum(np.concatenate(sizes), 1)  # a text without words counts as one
        mean = size[self._live].mean() if self._texts else 1.0
        self._norms = (K1 * (1 - B + B * size / mean)).astype(np.float32)

    @classmethod
    def of(cls, texts: Sequence[str]) -> "WordIndex":
        """That of texts."""
        return cls([word_table(texts)], [len(texts)])

    def scores(self, queries: Sequence[str]) -> Scores:
        """Scores ``(Q, N)``; 0 where no word is shared."""
        return np.stack([self.scores_of(query) for query in queries])

    def scores_of(self, query: str) -> Scores:
        """Scores ``(N,)`` of one query."""
        scores = np.zeros(len(self._live), np.float32)
        for word, times in Counter(words(query)).items():
            parts = [*self._postings(word)]
            texts = sum(int(self._live[rows].sum()) for rows, _ in parts)
            weight = np.float32(times * np.log(1 + (self._texts - texts + 0.5) / (texts + 0.5)))
            for rows, counts in parts:
                scores[rows] += weight * (counts / (counts + self._norms[rows]))
        scores[~self._live] = 0
        return scores

    def _postings(self, word: str) -> Iterator[tuple[Rows, Scores]]:
        """Rows that have a word, and how often, of each segment."""
        for first, known, starts, rows, counts in self._tables:
            place = bisect_left(known, word, key=lambda scalar: scalar.as_py())
            if place < len(known) and known[place].as_py() == word:
                cells = slice(starts[place], starts[place + 1])
                yield first + rows[cells], counts[cells].astype(np.float32)


def best_by_words(scores: Scores, top_k: int) -> Rows:
    """The rows of the ``top_k`` largest scores ``(N,)`` above 0, equal ones by row."""
    rows = np.flatnonzero(scores > 0)
    if len(rows) > top_k:
        rows = rows[scores[rows] >= np.partition(scores[rows], -top_k)[-top_k]]
    return rows[np.lexsort((rows, -scores[rows]))[:top_k]]


def _standardised(scores: Any, known: Any) -> Any:
    """Z of scores, by mean and spread of ``known`` ones; 0 where these are all equal."""
    mean = known.mean(axis=-1, keepdims=True, dtype=np.float64)
    deviation = known.std(axis=-1, keepdims=True, dtype=np.float64)
    return (scores - mean) / np.where(np.ptp(known, axis=-1, keepdims=True), deviation, np.inf)


def fuse(dense: Scores, by_words: Scores, weight: float) -> Scores:
    """``(1 - w) z(dense) + w z(words)`` of scores ``(Q, N)``, z over the texts of each query.

    What is equal for all texts says nothing: its z is 0.
    """
    z = (_standardised(scores, scores).astype(np.float32) for scores in (dense, by_words))
    return np.asarray((1 - weight) * next(z) + weight * next(z), np.float32)


class Ranked(NamedTuple):
    """A row, the score that ranks it, and its similarity and BM25 with its rank by either."""

    row: int
    score: float
    dense: float | None = None
    dense_rank: int | None = None
    words: float | None = None
    words_rank: int | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """An indexed text that was found."""

    id: str  # the id it was given, or its number
    text: str
    score: float  # its similarity with the query as the encoder states it, BM25, or their fusion
    dense: float | None = None  # in a hybrid search, its similarity
    dense_rank: int | None = None  # by it, from 1; None if too many texts are nearer
    words: float | None = None  # of a search by words, its BM25
    words_rank: int | None = None
    metadata: dict[str, Any] | None = field(default=None, hash=False)  # None if it has none

    @property
    def known(self) -> dict[str, Any]:
        """What there is of it, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def nearest_by_words(scores: Scores, top_k: int) -> list[Ranked]:
    """The rows of the ``top_k`` largest scores ``(N,)`` of BM25, of those that share a word."""
    best = ((row, float(scores[row])) for row in best_by_words(scores, top_k).tolist())
    return [Ranked(row, it, words=it, words_rank=rank) for rank, (row, it) in enumerate(best, 1)]


@dataclass(frozen=True, slots=True)
class WordsInfo:
    """How BM25 is fused with the similarity, and if that was measured to be better."""

    weight: float = 0.1  # of BM25
    chosen_by: Literal["default", "text", "queries", "weight"] = "default"
    hybrid: bool = False  # whether the mode ``auto`` fuses
    queries: int = 0  # that it was measured with
    gain: float = 0.0  # mean nDCG@10 of the fusion less that of the similarity alone
    low: float = 0.0  # the ends of its interval
    high: float = 0.0


def nearest_by_both(
    near: Sequence[tuple[int, float]],
    similarities: Callable[[Rows], NDArray[np.float64]],
    by_words: Scores,
    searched: Rows,
    how: SearchOptions,
) -> list[Ranked]:
    """The rows of the largest score of `fuse`, of the candidates of both sides.

    ``near`` are those by similarity, whose mean and spread are those of up to 4,096 of the rows
    that are ``searched``; ``by_words (N,)`` is BM25. By ranks r the score is the sum of
    :math:`1 / (60 + r)` (Cormack et al. 2009). A row whose similarity is NaN is left out.
    """
    sides = [row for row, _ in near], best_by_words(by_words, len(near)).tolist()
    ranks = [{row: rank for rank, row in enumerate(side, 1)} for side in sides]
    rows = np.unique(np.concatenate(sides).astype(int))
    scores = similarities(rows), by_words[rows]
    if how.fusion == "ranks":
        fused = np.array([sum(1 / (RANKS + of[r]) for of in ranks if r in of) for r in rows])
    else:
        places = np.linspace(0, len(searched) - 1, min(len(searched), _SAMPLE)).astype(int)
        sampled = similarities(searched[places])
        known = sampled[~np.isnan(sampled)], by_words[searched]
        by_vectors, of_words = map(_standardised, scores, known)
        weight = how.weight or 0.0
        fused = (1 - weight) * by_vectors + weight * of_words
    order = np.lexsort((rows, -fused))
    least = -inf if how.threshold is None else how.threshold
    best = order[scores[0][order] >= least][: how.top_k]
    columns = (cells[best].tolist() for cells in (rows, fused, *scores))
    return [
        Ranked(row, score, dense, ranks[0].get(row), words, ranks[1].get(row))
        for row, score, dense, words in zip(*columns, strict=True)
    ]
