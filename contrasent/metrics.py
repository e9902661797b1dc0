"""Numbers read off matrices of embeddings and columns of scores; numpy in, floats out.

Shapes: N rows, D embedding width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from contrasent.errors import DataError

_ROWS = 1024
"""Of a matrix of all pairs, computed at once."""

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

CONSTANT = 1e-12
"""A column whose range is below this share of its largest number holds rounding noise only."""


def pair_cosines(first: ArrayLike, second: ArrayLike, *, zeros: bool = False) -> Vector:
    """Cosine of each row of ``first (N, D)`` with the same row of ``second (N, D)``, as ``(N,)``.

    SentEval's formula, in float64: equal rows are at 1 within rounding, not at exactly 1. Its
    figures rest on that: rounding orders the pairs of identical sentences of STS12 (one in seven of
    SMTeuroparl), and exact ties would raise the mean over the subsets by about 0.01 points.
    With ``zeros`` the cosine of a row of zeros is 0, as SentEval has it. DataError if a number is
    not finite, or, without ``zeros``, a row is zero, which has no direction.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    lengths = np.sqrt((a * a).sum(axis=1)) * np.sqrt((b * b).sum(axis=1))
    if zeros:
        lengths[lengths == 0] = 1
    _require_lengths(lengths)
    cosines: Vector = (a * b).sum(axis=1) / lengths
    return cosines


def pair_similarities(
    name: str, first: ArrayLike, second: ArrayLike, *, zeros: bool = False
) -> Vector:
    """How alike each row of ``first (N, D)`` is to the same row of ``second (N, D)``, as ``(N,)``.

    ``name`` is an encoder's ``similarity_fn_name``: cosine (as :func:`pair_cosines`, with its
    ``zeros`` and errors), dot, euclidean or manhattan. Larger is nearer, so distances are negative.
    """
    if name == "cosine":
        return pair_cosines(first, second, zeros=zeros)
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if name == "dot":
        products: Vector = (a * b).sum(axis=1)
        return products
    distances: Vector = np.linalg.norm(a - b, ord=2 if name == "euclidean" else 1, axis=1)
    return np.negative(distances)


def all_similarities(name: str, first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """How alike all rows of ``first (Q, D)`` and ``second (N, D)`` are, as ``(Q, N)``."""
    if name in ("cosine", "dot"):
        products: NDArray[Any] = first @ second.T
        return products
    from scipy.spatial.distance import cdist

    distances: Matrix = cdist(first, second, "euclidean" if name == "euclidean" else "cityblock")
    return np.negative(distances)


def spearman(scores: ArrayLike, gold: ArrayLike) -> float:
    """Spearman's rank correlation of two columns ``(N,)``; equal numbers share their mean rank.

    DataError if there are fewer than two rows, a NaN or infinite number, or a constant column.
    """
    a, b = _columns(scores, gold)
    from scipy.stats import spearmanr

    return float(spearmanr(a, b).statistic)


def pearson(scores: ArrayLike, gold: ArrayLike) -> float:
    """Pearson's correlation of two columns ``(N,)``, with the errors of :func:`spearman`."""
    a, b = _columns(scores, gold)
    from scipy.stats import pearsonr

    return float(pearsonr(a, b).statistic)


def pareto_front(places: ArrayLike) -> NDArray[np.bool_]:
    """Which of N places ``(N, 2)`` no other is better than, ``(N,)``; lower is better."""
    rows = np.asarray(places, dtype=np.float64)
    as_low: NDArray[np.bool_] = np.all(rows[None] <= rows[:, None], axis=2)
    lower: NDArray[np.bool_] = np.any(rows[None] < rows[:, None], axis=2)
    worse: NDArray[np.bool_] = np.any(as_low & lower, axis=1)
    return ~worse


def spectrum(embeddings: ArrayLike) -> Vector:
    """Singular values of unit rows ``(N, D)``, the largest first and scaled to 1: ``(min(N, D),)``.

    The rows are not centred (SimCSE, Figure F.1 and section 5). A flat spectrum is an even one.
    """
    unit = unit_rows(embeddings)
    squares = np.linalg.eigvalsh(unit.T @ unit)[::-1][: min(unit.shape)]
    values: Vector = np.sqrt(np.maximum(squares, 0) / squares[0])
    return values


@dataclass(frozen=True, slots=True)
class ContrastBound:
    """Both sides of equation 7 of Gao et al. 2021, and the eigenvalue that the right one bounds."""

    spread: float  # left: the second term of the contrastive loss, with infinitely many negatives
    bound: float  # right: Sum(WW^T) / (tau m^2), never above the left one
    # the largest eigenvalue of WW^T over its trace m: from 1 / min(m, D) for a flat spectrum to 1.
    # Never below Sum(WW^T) / m^2; if no cosine is negative, never above Sum(WW^T) / m.
    top_eigenvalue: float
    negative: float  # share of the cosines of WW^T below 0


def contrast_bound(embeddings: ArrayLike, temperature: float = 0.05) -> ContrastBound:
    r"""How contrast flattens the spectrum (Gao et al. 2021, section 5), of rows ``(m, D)``.

    With h the unit rows and W the matrix of them,

    .. math:: \frac1m \sum_i \log \frac1m \sum_j e^{h_i \cdot h_j / \tau}
              \geq \frac{1}{\tau m^2} \sum_{ij} h_i \cdot h_j

    by Jensen's inequality, and the top eigenvalue of W times its transpose is at most that sum
    where all cosines are positive (Merikoski 1984). DataError as :func:`unit_rows`.
    """
    unit = unit_rows(embeddings)
    count, left, below = len(unit), 0.0, 0
    for start in range(0, count, _ROWS):
        cosines = unit[start : start + _ROWS] @ unit.T
        left += float(np.log(np.exp((cosines - 1) / temperature).mean(axis=1)).sum())
        below += int((cosines < 0).sum())
    return ContrastBound(
        spread=left / count + 1 / temperature,
        bound=float(np.square(unit.sum(axis=0)).sum()) / (temperature * count**2),
        top_eigenvalue=float(np.linalg.eigvalsh(unit.T @ unit)[-1]) / count,
        negative=below / count**2,
    )


def mean_cosine(embeddings: ArrayLike) -> float:
    """Mean cosine of all pairs of two of the N rows of ``(N, D)``, in [-1, 1]; 0 if isotropic.

    The anisotropy of Ethayarajh 2019 (section 4.1), over every pair in place of a random draw.
    """
    unit = unit_rows(embeddings)
    count = len(unit)
    return float((np.square(unit.sum(axis=0)).sum() - count) / (count * (count - 1)))


def partition_ratio(embeddings: ArrayLike) -> float:
    r"""How even the partition function of unit rows v of ``(N, D)`` is: in [0, 1], 1 if isotropic.

    .. math:: \min_c Z(c) / \max_c Z(c), \quad Z(c) = \sum_v e^{c \cdot v}

    with c the eigenvectors of the D x D matrix of products of the columns (Mu and Viswanath 2018,
    section 2.2). The sign of an eigenvector is arbitrary, so both signs of each are taken. Their
    vectors keep their lengths; unit rows make encoders of different scale comparable. DataError as
    :func:`unit_rows`.
    """
    unit = unit_rows(embeddings)
    projected = unit @ np.linalg.eigh(unit.T @ unit).eigenvectors
    sums = [np.exp(sign * projected).sum(axis=0) for sign in (1, -1)]
    return float(np.min(sums) / np.max(sums))


def unit_rows(embeddings: ArrayLike) -> Matrix:
    """The rows of ``(N, D)``, each divided by its length, in float64."""
    rows = np.asarray(embeddings, dtype=np.float64)
    lengths = np.sqrt(np.square(rows).sum(axis=1))
    _require_lengths(lengths)
    unit: Matrix = rows / lengths[:, None]
    return unit


def _require_lengths(lengths: Vector) -> None:
    usable = np.isfinite(lengths) & (lengths > 0)
    if not usable.all():
        row = int(np.argmin(usable))
        raise DataError(f"row {row} is zero or has a NaN or infinite number: it has no direction")


def relevant_ranks(
    scores: ArrayLike, relevant: ArrayLike, grades: ArrayLike, left_out: int | None = None
) -> tuple[Vector, Vector]:
    """At which places, from 1, the relevant documents of one query stand in its ranking.

    Equal scores count against an encoder: a document stands behind all that are less relevant and
    have the same score. The ``scores (N,)`` are of all documents, ``relevant (R,)`` holds different
    rows of them with their ``grades (R,)``; the row ``left_out``, such as that of the query itself,
    is not ranked. Returned are ``(R,)`` places, the smallest first, and grades in that order.
    DataError if a score is NaN.
    """
    values, rows = np.asarray(scores, dtype=np.float64), np.asarray(relevant, dtype=np.int64)
    if np.isnan(values).any():
        raise DataError(f"score {int(np.argmax(np.isnan(values)))} is NaN, so there is no ranking")
    of_rows, grade = values[rows], np.asarray(grades, dtype=np.float64)
    order = np.lexsort((grade, -of_rows))
    of_rows, grade = of_rows[order], grade[order]
    others = np.ones(len(values), dtype=bool)
    others[rows] = False
    if left_out is not None:
        others[left_out] = False
    ascending = np.sort(values[others])
    before = len(ascending) - np.searchsorted(ascending, of_rows, side="left")
    places = (1 + before + np.arange(len(rows))).astype(np.float64)
    return places, grade


def recall_at_k(ranks: Sequence[ArrayLike], k: int) -> float:
    """Share of a query's relevant documents that are among its first ``k``, mean over queries.

    ``ranks`` are the places ``(R,)`` of a query's relevant documents, from 1; one at least.
    """
    return float(np.mean([(np.asarray(places) <= k).mean() for places in ranks]))


def mrr_at_k(ranks: Sequence[ArrayLike], k: int) -> float:
    """One over the place of a query's first relevant document, 0 behind ``k``, mean over queries.

    Arguments as those of :func:`recall_at_k`.
    """
    first = [np.min(places) for places in ranks]
    return float(np.mean([1 / place if place <= k else 0 for place in first]))


def ndcg_at_k(ranks: Sequence[ArrayLike], grades: Sequence[ArrayLike], k: int) -> float:
    r"""Normalised discounted cumulative gain of the first ``k`` documents, mean over queries.

    .. math:: \sum_{r \le k} \frac{g_r}{\log_2 (r + 1)}

    over that of the best ranking, with the grade itself as gain, as in trec_eval and BEIR (and not
    :math:`2^g - 1`). ``grades`` tell how relevant the documents of ``ranks`` are, above 0; the rest
    is as of :func:`recall_at_k`.
    """
    shares = []
    for of_documents, of_query in zip(ranks, grades, strict=True):
        places, gains = np.asarray(of_documents), np.asarray(of_query, dtype=np.float64)
        best = np.sort(gains)[::-1][:k]
        seen = places <= k
        reached = (gains[seen] / np.log2(places[seen] + 1)).sum()
        shares.append(reached / (best / np.log2(np.arange(2, len(best) + 2))).sum())
    return float(np.mean(shares))


METRICS = {"spearman": spearman, "pearson": pearson}
"""Correlations by the name that a record carries."""


def _columns(scores: ArrayLike, gold: ArrayLike) -> tuple[Vector, Vector]:
    a, b = np.asarray(scores, dtype=np.float64), np.asarray(gold, dtype=np.float64)
    if a.shape != b.shape or len(a) < 2:
        raise DataError(
            f"a correlation needs two columns of 2 pairs or more, not {a.shape}, {b.shape}"
        )
    for name, column in (("score", a), ("gold", b)):
        finite = np.isfinite(column)
        if not finite.all():
            row = int(np.argmin(finite))
            raise DataError(f"{name} {row} is {column[row]}, so there is no correlation")
        if np.ptp(column) <= CONSTANT * np.abs(column).max():
            raise DataError(f"every {name} is {column[0]:g}, so there is no correlation")
    return a, b
