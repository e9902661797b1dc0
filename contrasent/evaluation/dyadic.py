"""Standard errors of correlations over pairs that share sentences (dyadic-robust).

Pairs of STS tasks are not independent: a sentence stands in several of them, and some pairs occur
several times, within a task and across tasks. The variance of an estimate is the sum, over all two
pairs that share a sentence, of the products of their influences (Aronow, Samii and Assenova 2015).

Shapes: N pairs, S distinct sentences, K estimates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import atanh, sqrt, tanh
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from contrasent.metrics import Matrix, Vector
from contrasent.records import Interval

FEWEST_PAIRS = 5
"""With fewer there is no interval."""

Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PairGraph:
    """Which of N pairs share a sentence.

    Attributes:
        first: ``(N,)``, the number of the first sentence, below ``sentences``.
        second: the same of the second sentence.
        same: ``(N,)``, pairs of the same two sentences have one number.
        sentences: S.
    """

    first: Places
    second: Places
    same: Places
    sentences: int

    @classmethod
    def of(cls, first: Iterable[str], second: Iterable[str]) -> PairGraph:
        """The graph of pairs; sentences are the same if their texts are."""
        number: dict[str, int] = {}
        sides = [
            [number.setdefault(text, len(number)) for text in side] for side in (first, second)
        ]
        low, high = np.sort(np.array(sides, dtype=np.int64), axis=0)
        same = np.unique(low * len(number) + high, return_inverse=True)[1].reshape(-1)
        return cls(low, high, same, len(number))

    def covariance(self, influences: Matrix) -> Matrix:
        r"""Covariance ``(K, K)`` of K estimates from the influences ``(K, N)`` of the pairs.

        With f the influences, i and j pairs, and i ~ j if they share a sentence or are the same:

        .. math:: V = \sum_{i \sim j} f_i f_j^\top

        A variance is at least what it is if only pairs of the same two sentences are dependent:
        the sum over i ~ j may be below it, or negative, by chance.
        """
        other = self.first != self.second
        of_sentence = self._sums(influences, self.first, self.sentences)
        of_sentence += self._sums(influences * other, self.second, self.sentences)
        pairs = int(self.same.max()) + 1
        repeated = self._sums(influences, self.same, pairs)
        # Pairs of the same two sentences meet in both of them.
        twice = self._sums(influences * other, self.same, pairs)
        covariance: Matrix = of_sentence @ of_sentence.T - twice @ twice.T
        least = np.square(repeated).sum(axis=1)
        np.fill_diagonal(covariance, np.maximum(np.diagonal(covariance), least))
        return covariance

    def _sums(self, influences: Matrix, places: Places, count: int) -> Matrix:
        """Sums ``(K, count)`` of the influences of the pairs with each number."""
        return np.stack([np.bincount(places, weights=row, minlength=count) for row in influences])

    def error(self, influence: Vector) -> float:
        """The standard error of one estimate."""
        return sqrt(self.covariance(influence[None])[0, 0])


def influence(metric: str, scores: Vector, gold: Vector) -> Vector:
    """How much each pair moves the correlation of two columns ``(N,)``: ``(N,)``, which sum to 0.

    It is the first-order effect of the pair's weight (Huber 1981). For Spearman's correlation,
    which is Pearson's of the ranks, a pair also moves the ranks of the others.
    """
    columns = _Ranks if metric == "spearman" else _Values
    x, y = columns(scores), columns(gold)
    variances = np.square(x.centred).mean(), np.square(y.centred).mean()
    scale = sqrt(variances[0] * variances[1])
    correlation = (x.centred * y.centred).mean() / scale
    effect: Vector = (
        (x.centred * y.centred + x.moved(y.centred) + y.moved(x.centred)) / scale
        - correlation / 2 * (np.square(x.centred) + 2 * x.moved(x.centred)) / variances[0]
        - correlation / 2 * (np.square(y.centred) + 2 * y.moved(y.centred)) / variances[1]
    )
    effect -= effect.mean()
    return effect / len(scores)


class _Values:
    """A column less its mean."""

    def __init__(self, column: Vector) -> None:
        self.centred: Vector = column - column.mean()

    def moved(self, other: Vector) -> Vector:
        """The mean over the other pairs of ``other`` times what a pair's weight adds to them."""
        return np.zeros_like(other)


class _Ranks(_Values):
    """Ranks of a column over N less their mean; equal numbers share their mean rank."""

    def __init__(self, column: Vector) -> None:
        _, self._group, counts = np.unique(column, return_inverse=True, return_counts=True)
        self._groups = len(counts)
        self.centred = ((counts.cumsum() - counts / 2) / len(column) - 0.5)[self._group]

    def moved(self, other: Vector) -> Vector:
        """A pair raises the rank of those above it by 1, of its equals by 1 / 2."""
        sums = np.bincount(self._group, weights=other, minlength=self._groups)
        above = sums[::-1].cumsum()[::-1] - sums / 2
        moved: Vector = (above / len(other))[self._group]
        return moved


def correlation_interval(value: float, error: float, confidence: float) -> Interval:
    """Normal on Fisher's (1921) scale, so that both ends are within [-1, 1]."""
    low = high = value
    if abs(value) < 1:
        reach = _quantile(confidence) * error / (1 - value**2)
        low, high = tanh(atanh(value) - reach), tanh(atanh(value) + reach)
    return Interval(low=low, high=high, error=error, confidence=confidence)


def mean_error(covariance: Matrix) -> float:
    """The standard error of the mean of K estimates, at least that of independent ones."""
    return sqrt(max(covariance.sum(), np.trace(covariance))) / len(covariance)


def normal_interval(value: float, error: float, confidence: float) -> Interval:
    """The value and its error times the normal quantile, to both sides."""
    reach = _quantile(confidence) * error
    return Interval(low=value - reach, high=value + reach, error=error, confidence=confidence)


def normal_p_value(difference: float, error: float) -> float:
    """Two-sided normal p-value of a difference being 0; 1 if it is 0."""
    if not difference:
        return 1.0
    return 2 * NormalDist().cdf(-abs(difference) / error) if error else 0.0


def _quantile(confidence: float) -> float:
    return NormalDist().inv_cdf((1 + confidence) / 2)
