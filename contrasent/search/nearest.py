"""Nearest rows by cosine: exact, in the same order on every machine.

Shapes: Q queries, N rows of a segment, D dimensions of a unit vector.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_QUERIES = 64
_RESCORED = 4_096
_EXTRA = 8


def nearest(
    segments: Sequence[np.ndarray], queries: np.ndarray, top_k: int
) -> list[list[tuple[int, float]]]:
    """For each query the ``top_k`` rows with the largest cosine, each with it, best first.

    faiss finds candidates in float32, where sums depend on the order of adding. All rows that
    rounding could have put among the best are then scored once more in float64, row by row, so
    that equal vectors have equal scores wherever they lie; equal scores are ordered by row.
    ``segments`` are ``(N, D)`` float32 unit vectors each, whose rows are numbered through all of
    them; ``queries`` are ``(Q, D)``.
    """
    hits: list[list[tuple[int, float]]] = []
    for start in range(0, len(queries), _QUERIES):
        block = np.ascontiguousarray(queries[start : start + _QUERIES], dtype=np.float32)
        for query, candidates in zip(block, _candidates(segments, block, top_k), strict=True):
            hits.append(_best(segments, query, candidates, top_k))
    return hits


def _candidates(
    segments: Sequence[np.ndarray], queries: np.ndarray, top_k: int
) -> list[list[np.ndarray]]:
    """For each query and segment, the rows that may be among the ``top_k`` of all segments."""
    scores, rows = zip(*(_search(s, queries, top_k + _EXTRA) for s in segments), strict=True)
    # A float32 sum of D products of unit vectors is off by at most D * 2**-24, whatever the
    # order; the threshold and the row compared with it may both be off.
    margin = 2.0 * queries.shape[1] * 2.0**-24
    together = np.concatenate(scores, axis=1)
    last = min(top_k, together.shape[1]) - 1
    threshold = -np.sort(-together, axis=1)[:, last] - margin
    return [
        [
            _at_least(segment, query, limit, s[q], r[q])
            for segment, s, r in zip(segments, scores, rows, strict=True)
        ]
        for q, (query, limit) in enumerate(zip(queries, threshold, strict=True))
    ]


def _at_least(
    segment: np.ndarray, query: np.ndarray, limit: float, scores: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Rows of a segment with a score of ``limit`` or more, asking for more until one is below."""
    while scores[-1] >= limit and len(rows) < len(segment):
        more_scores, more_rows = _search(segment, query[None], 2 * len(rows))
        scores, rows = more_scores[0], more_rows[0]
    return rows[scores >= limit]


def _search(segment: np.ndarray, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    import faiss

    count = min(count, len(segment))
    scores, rows = faiss.knn(queries, segment, count, faiss.METRIC_INNER_PRODUCT)
    return scores, rows


def _best(
    segments: Sequence[np.ndarray], query: np.ndarray, candidates: list[np.ndarray], top_k: int
) -> list[tuple[int, float]]:
    numbers, cosines, first = [], [], 0
    for segment, rows in zip(segments, candidates, strict=True):
        numbers.append(first + rows)
        cosines.append(_cosines(segment, rows, query))
        first += len(segment)
    row, cosine = np.concatenate(numbers), np.concatenate(cosines)
    order = np.lexsort((row, -cosine))[:top_k]
    return [(int(row[i]), float(np.clip(cosine[i], -1.0, 1.0))) for i in order]


def _cosines(segment: np.ndarray, rows: np.ndarray, query: np.ndarray) -> np.ndarray:
    wide = query.astype(np.float64)
    scores = np.empty(len(rows), np.float64)
    for start in range(0, len(rows), _RESCORED):
        part = segment[rows[start : start + _RESCORED]].astype(np.float64)
        scores[start : start + len(part)] = (part * wide).sum(axis=1)
    return scores
