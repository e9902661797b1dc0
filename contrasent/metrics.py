"""Numbers read off matrices of embeddings and columns of scores; numpy in, floats out.

Shapes: N rows, D embedding width.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from contrasent.errors import DataError

Vector = NDArray[np.float64]

CONSTANT = 1e-12
"""A column whose range is below this share of its largest number holds rounding noise only."""


def pair_cosines(first: ArrayLike, second: ArrayLike) -> Vector:
    """Cosine of each row of ``first (N, D)`` with the same row of ``second (N, D)``, as ``(N,)``.

    SentEval's formula, in float64: equal rows are at 1 within rounding, not at exactly 1. Its
    figures rest on that: rounding orders the pairs of identical sentences of STS12 (one in seven
    of SMTeuroparl), and exact ties would raise the mean over the subsets by about 0.01 points.

    Raises:
        DataError: the shapes differ or are not ``(N, D)``, a number is not finite, or a row is
            zero, which has no direction.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.ndim != 2 or a.shape != b.shape:
        raise DataError(f"cosines need two (N, D) matrices of one shape, not {a.shape}, {b.shape}")
    lengths = np.sqrt((a * a).sum(axis=1)) * np.sqrt((b * b).sum(axis=1))
    finite = np.isfinite(lengths)
    if not finite.all():
        row = int(np.argmin(finite))
        raise DataError(f"row {row} has a NaN or infinite number, so it has no cosine")
    if not lengths.all():
        raise DataError(f"row {int(np.argmin(lengths))} is a zero vector, so it has no cosine")
    cosines: Vector = (a * b).sum(axis=1) / lengths
    return cosines


def spearman(scores: ArrayLike, gold: ArrayLike) -> float:
    """Spearman's rank correlation of two columns ``(N,)``; equal numbers share their mean rank.

    Raises:
        DataError: fewer than two rows, unequal lengths, a NaN or infinite number, or a column in
            which all numbers are the same.
    """
    a, b = _columns(scores, gold)
    from scipy.stats import spearmanr

    return float(spearmanr(a, b).statistic)


def pearson(scores: ArrayLike, gold: ArrayLike) -> float:
    """Pearson's correlation of two columns ``(N,)``.

    Raises:
        DataError: as :func:`spearman`.
    """
    a, b = _columns(scores, gold)
    from scipy.stats import pearsonr

    return float(pearsonr(a, b).statistic)


METRICS = {"spearman": spearman, "pearson": pearson}
"""Correlations by the name that a record carries."""


def _columns(scores: ArrayLike, gold: ArrayLike) -> tuple[Vector, Vector]:
    a, b = np.asarray(scores, dtype=np.float64), np.asarray(gold, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise DataError(
            f"a correlation needs two columns of one length, not {a.shape} scores, {b.shape} gold"
        )
    if len(a) < 2:
        raise DataError(f"a correlation needs at least 2 pairs, not {len(a)}")
    for name, column in (("score", a), ("gold", b)):
        finite = np.isfinite(column)
        if not finite.all():
            row = int(np.argmin(finite))
            raise DataError(f"{name} {row} is {column[row]}, so there is no correlation")
        if np.ptp(column) <= CONSTANT * np.abs(column).max():
            raise DataError(f"every {name} is {column[0]:g}, so there is no correlation")
    return a, b
