"""Numbers read off matrices of embeddings and columns of scores; numpy in, floats out.

Shapes: N rows, D embedding width.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from contrasent.errors import DataError

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

CONSTANT = 1e-12
"""A column whose range is below this share of its largest number holds rounding noise only."""


def pair_cosines(first: ArrayLike, second: ArrayLike, *, zeros: bool = False) -> Vector:
    """Cosine of each row of ``first (N, D)`` with the same row of ``second (N, D)``, as ``(N,)``.

    SentEval's formula, in float64: equal rows are at 1 within rounding, not at exactly 1. Its
    figures rest on that: rounding orders the pairs of identical sentences of STS12, and exact ties
    would raise the mean over the subsets by 0.01 points. With ``zeros`` a row of zeros is at 0.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    lengths = np.sqrt((a * a).sum(axis=1)) * np.sqrt((b * b).sum(axis=1))
    if zeros:
        lengths[lengths == 0] = 1
    _require_lengths(lengths)
    return np.asarray((a * b).sum(axis=1) / lengths)


def pair_similarities(
    name: str, first: ArrayLike, second: ArrayLike, *, zeros: bool = False
) -> Vector:
    """How alike each row of ``first (N, D)`` is to the same row of ``second (N, D)``, as ``(N,)``.

    ``name`` is cosine, dot, euclidean or manhattan. Larger is nearer, so distances are negative.
    """
    if name == "cosine":
        return pair_cosines(first, second, zeros=zeros)
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if name == "dot":
        return np.asarray((a * b).sum(axis=1))
    distances: Vector = np.linalg.norm(a - b, ord=2 if name == "euclidean" else 1, axis=1)
    return np.negative(distances)


def all_similarities(name: str, first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """How alike all rows of ``first (Q, D)`` and ``second (N, D)`` are, as ``(Q, N)``."""
    if name in ("cosine", "dot"):
        return np.asarray(first @ second.T)
    from scipy.spatial.distance import cdist

    distances: Matrix = cdist(first, second, "euclidean" if name == "euclidean" else "cityblock")
    return np.negative(distances)


def spearman(scores: ArrayLike, gold: ArrayLike) -> float:
    """Spearman's rank correlation of two columns ``(N,)``; equal numbers share their mean rank."""
    from scipy.stats import spearmanr

    return float(spearmanr(*_columns(scores, gold)).statistic)


def pearson(scores: ArrayLike, gold: ArrayLike) -> float:
    """Pearson's correlation of two columns ``(N,)``, with the errors of :func:`spearman`."""
    from scipy.stats import pearsonr

    return float(pearsonr(*_columns(scores, gold)).statistic)


def spectrum(embeddings: ArrayLike) -> Vector:
    """Singular values of unit rows ``(N, D)``, not centred, the largest at 1 (SimCSE, F.1)."""
    unit = directions(embeddings)
    squares = np.linalg.eigvalsh(unit.T @ unit)[::-1][: min(unit.shape)]
    return np.asarray(np.sqrt(np.maximum(squares, 0) / squares[0]))


def mean_cosine(embeddings: ArrayLike) -> float:
    """Mean cosine of all pairs of rows of ``(N, D)``: anisotropy (Ethayarajh 2019, section 4.1)."""
    unit = directions(embeddings)
    count = len(unit)
    return float((np.square(unit.sum(axis=0)).sum() - count) / (count * (count - 1)))


def partition_ratio(embeddings: ArrayLike) -> float:
    r"""How even the partition function of unit rows v of ``(N, D)`` is: in [0, 1], 1 if isotropic.

    .. math:: \min_c Z(c) / \max_c Z(c), \quad Z(c) = \sum_v e^{c \cdot v}

    with c the eigenvectors of the D x D matrix of products of the columns (Mu and Viswanath 2018,
    section 2.2). The sign of an eigenvector is arbitrary, so both signs of each are taken. Their
    vectors keep their lengths; unit rows make encoders of different scale comparable. DataError as
    :func:`directions`.
    """
    unit = directions(embeddings)
    projected = unit @ np.linalg.eigh(unit.T @ unit).eigenvectors
    sums = [np.exp(sign * projected).sum(axis=0) for sign in (1, -1)]
    return float(np.min(sums) / np.max(sums))


def directions(embeddings: ArrayLike) -> Matrix:
    """The rows of ``(N, D)``, each divided by its length, in float64."""
    rows = np.asarray(embeddings, dtype=np.float64)
    lengths = np.sqrt(np.square(rows).sum(axis=1))
    _require_lengths(lengths)
    return np.asarray(rows / lengths[:, None])


def _require_lengths(lengths: Vector) -> None:
    usable = np.isfinite(lengths) & (lengths > 0)
    if not usable.all():
        row = int(np.argmin(usable))
        raise DataError(f"row {row} is zero or has a NaN or infinite number: it has no direction")


def relevant_ranks(
    scores: ArrayLike, relevant: ArrayLike, grades: ArrayLike, left_out: int | None = None
) -> tuple[Vector, Vector]:
    """Places ``(R,)``, from 1, of one query's relevant documents in its ranking, and their grades.

    The ``scores (N,)`` are of all documents, ``relevant (R,)`` rows of them; ``left_out`` is not
    ranked. Equal scores count against an encoder: the less relevant is first.
    """
    values, rows = np.asarray(scores, dtype=np.float64), np.asarray(relevant, dtype=np.int64)
    of_rows, grade = values[rows], np.asarray(grades, dtype=np.float64)
    order = np.lexsort((grade, -of_rows))
    of_rows, grade = of_rows[order], grade[order]
    others = np.ones(len(values), dtype=bool)
    others[rows] = False
    if left_out is not None:
        others[left_out] = False
    ascending = np.sort(values[others & (values >= of_rows.min())])
    before = len(ascending) - np.searchsorted(ascending, of_rows, side="left")
    return (1 + before + np.arange(len(rows))).astype(np.float64), grade


def retrieval_score(metric: str, ranks: ArrayLike, grades: ArrayLike) -> float:
    r"""Score of one query by the places ``(R,)`` of its relevant documents and their grades.

    ``recall@k`` is the share of them in the first k documents, ``mrr@k`` one over the place of the
    first, 0 behind k, ``ndcg@k`` the normalised discounted cumulative gain

    .. math:: \sum_{r \le k} \frac{g_r}{\log_2 (r + 1)}

    over that of the best ranking; the grade g is the gain, as in trec_eval and BEIR.
    """
    kind, _, depth = metric.partition("@")
    places, gains, k = np.asarray(ranks), np.asarray(grades, dtype=np.float64), int(depth)
    seen = places <= k
    if kind == "recall":
        return float(seen.mean())
    if kind == "mrr":
        return float(1 / places.min()) if seen.any() else 0.0
    best = np.sort(gains)[::-1][:k]
    reached = (gains[seen] / np.log2(places[seen] + 1)).sum()
    return float(reached / (best / np.log2(np.arange(2, len(best) + 2))).sum())


METRICS = {"spearman": spearman, "pearson": pearson}
"""Correlations by the name that a record carries."""


def _columns(scores: ArrayLike, gold: ArrayLike) -> tuple[Vector, Vector]:
    a, b = np.asarray(scores, dtype=np.float64), np.asarray(gold, dtype=np.float64)
    for name, column in (("score", a), ("gold", b)):
        wrong = column[~np.isfinite(column)]
        if len(wrong) or np.ptp(column) <= CONSTANT * np.abs(column).max():
            shown = f"a {name} is {wrong[0]}" if len(wrong) else f"every {name} is {column[0]:g}"
            raise DataError(f"{shown}, so there is no correlation")
    return a, b
