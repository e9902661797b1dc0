"""Intervals: the bootstrap for means and F1, standard errors for correlations over pairs.

Pairs of STS tasks are not independent: a sentence stands in several of them, and some pairs occur
several times, within a task and across tasks. The variance of an estimate is the sum, over all two
pairs that share a sentence, of the products of their influences (dyadic-robust, Aronow, Samii and
Assenova 2015).

Shapes: N pairs, sentences or queries; R resamples; K estimates of the same N; S distinct sentences.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import atanh, sqrt, tanh
from statistics import NormalDist
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from contrasent.metrics import Matrix, Vector
from contrasent.records import Interval

# What stays in a core's cache is twice as fast as a large block.
_AT_ONCE = 1 << 16
_DEGENERATE = 0.05


@dataclass(frozen=True, slots=True)
class Ratio:
    """A score that is one sum over N things drawn divided by another: a mean, or F1.

    With C columns it is the mean of their quotients that exist, as macro-F1 is of the classes' F1.
    """

    top: Matrix  # ``(N,)`` or ``(N, C)``, what each adds to the upper sum
    bottom: Matrix  # the same of the lower one; ones for a mean

    @property
    def value(self) -> float:
        """The score."""
        sums = np.column_stack([self.top, self.bottom]).sum(axis=0, keepdims=True)
        return float(_mean_quotient(sums)[0])

    @property
    def influence(self) -> Vector:
        """How much each thing moves a score of one column, ``(N,)``; not that of several."""
        total = self.bottom.sum()
        return np.asarray((self.top - self.bottom * (self.top.sum() / total)) / total)


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """How sure intervals are, and how R resamples are drawn, the same ones for every encoder."""

    confidence: float = 0.95
    resamples: int = 5000
    seed: int = 1111


def ratio_draws(ratios: Sequence[Ratio], bootstrap: Bootstrap, stream: str) -> Matrix:
    """``(K, R)`` ratios of the same N things in the same R resamples; NaN where the lower sum is 0.

    What is drawn for the things that ``stream`` names is independent of others.
    """
    columns = [np.column_stack([ratio.top, ratio.bottom]) for ratio in ratios]
    generator = np.random.default_rng([bootstrap.seed, crc32(stream.encode())])
    things, left, blocks = len(columns[0]), bootstrap.resamples, []
    while left:
        rows = min(left, max(1, _AT_ONCE // things))
        left -= rows
        places = generator.integers(things, size=(rows, things), dtype=np.int32)
        places += np.arange(0, rows * things, things, dtype=np.int32)[:, None]
        counts = np.bincount(places.ravel(), minlength=rows * things).reshape(rows, things)
        weights = counts.astype(np.float64)
        # One product each: equal columns are to give equal bits.
        blocks.append(np.stack([_mean_quotient(weights @ column) for column in columns]))
    return np.concatenate(blocks, axis=1)


def interval(draws: Vector, bootstrap: Bootstrap) -> Interval | None:
    """The percentile interval of R values (Efron 1979); None if a twentieth do not exist."""
    finite = draws[np.isfinite(draws)]
    if len(finite) < (1 - _DEGENERATE) * len(draws):
        return None
    tail = (1 - bootstrap.confidence) / 2
    low, high = np.quantile(finite, [tail, 1 - tail]).tolist()
    return Interval(low=low, high=high, error=float(finite.std(ddof=1)), **asdict(bootstrap))


def intervals(
    ratios: Mapping[str, Ratio], bootstrap: Bootstrap | None, stream: str
) -> dict[str, Interval | None]:
    """Of each of a task's ratios by its metric; nothing without a bootstrap."""
    if bootstrap is None or not ratios:
        return {}
    draws = ratio_draws(list(ratios.values()), bootstrap, stream)
    return {metric: interval(row, bootstrap) for metric, row in zip(ratios, draws, strict=True)}


def p_value(draws: Vector) -> float:
    """Two-sided p-value of a difference being 0, from R values of it in paired resamples.

    One resample is added to each side of 0 (Davison & Hinkley 1997, section 4.4).
    """
    finite = draws[np.isfinite(draws)]
    smaller = min((finite <= 0).sum(), (finite >= 0).sum())
    return float(min(1.0, 2 * (smaller + 1) / (len(finite) + 1)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) adjusted p-values: the chance of any false claim stays below each of them."""
    order, adjusted = np.argsort(p_values, kind="stable"), np.array(p_values, np.float64)
    larger = np.arange(len(order), 0, -1) * adjusted[order]
    adjusted[order] = np.minimum(1, np.maximum.accumulate(larger))
    return [float(it) for it in adjusted]


def _mean_quotient(sums: Matrix) -> Vector:
    """Upper sums ``(R, C)`` beside the lower ones over these, ``(R,)``; NaN where all are 0."""
    top, bottom = np.split(sums, 2, axis=1)
    defined = bottom > 0
    quotients = np.divide(top, bottom, out=np.zeros_like(top), where=defined)
    total, count = quotients.sum(axis=1), defined.sum(axis=1)
    return np.asarray(np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0))


FEWEST_PAIRS = 5
"""With fewer there is no interval."""

LEAST_ERROR = 1e-12
"""As a share of the value; a smaller one is rounding, as where no pair moves a correlation of 1."""


def pair_covariance(first: Iterable[str], second: Iterable[str], influences: Matrix) -> Matrix:
    r"""Covariance ``(K, K)`` of K estimates from the influences ``(K, N)`` of N pairs of sentences.

    With f the influences, i and j pairs, and i ~ j if they share a sentence or are the same:

    .. math:: V = \sum_{i \sim j} f_i f_j^\top

    A variance is at least what it is if only pairs of the same two sentences are dependent: the sum
    over i ~ j may be below it, or negative, by chance.
    """
    number: dict[str, int] = {}
    sides = [[number.setdefault(text, len(number)) for text in side] for side in (first, second)]
    low, high = np.sort(np.array(sides, dtype=np.int64), axis=0)
    same = np.unique(low * len(number) + high, return_inverse=True)[1].reshape(-1)

    def sums(rows: Matrix, places: NDArray[np.int64], count: int) -> Matrix:
        return np.stack([np.bincount(places, weights=row, minlength=count) for row in rows])

    pairs, others = int(same.max()) + 1, influences * (low != high)
    of_sentence = sums(influences, low, len(number)) + sums(others, high, len(number))
    # Pairs of the same two sentences meet in both of them.
    twice = sums(others, same, pairs)
    covariance: Matrix = of_sentence @ of_sentence.T - twice @ twice.T
    least = np.square(sums(influences, same, pairs)).sum(axis=1)
    np.fill_diagonal(covariance, np.maximum(np.diagonal(covariance), least))
    return covariance


def influence(metric: str, scores: Vector, gold: Vector) -> Vector:
    """How much each pair moves the correlation of two columns ``(N,)``: ``(N,)``, which sum to 0.

    The first-order effect of its weight (Huber 1981); it moves the ranks of other pairs too.
    """
    (x, x_moved), (y, y_moved) = (_centred(metric, column) for column in (scores, gold))
    variances = np.square(x).mean(), np.square(y).mean()
    scale = sqrt(variances[0] * variances[1])
    correlation = (x * y).mean() / scale
    effect: Vector = (
        (x * y + x_moved(y) + y_moved(x)) / scale
        - correlation / 2 * (np.square(x) + 2 * x_moved(x)) / variances[0]
        - correlation / 2 * (np.square(y) + 2 * y_moved(y)) / variances[1]
    )
    effect -= effect.mean()
    return effect / len(scores)


def _centred(metric: str, column: Vector) -> tuple[Vector, Callable[[Vector], Vector]]:
    """A column, or its ranks over N, less the mean; and what a weight at each pair adds to it."""
    if metric != "spearman":
        return column - column.mean(), np.zeros_like
    _, group, counts = np.unique(column, return_inverse=True, return_counts=True)

    def moved(other: Vector) -> Vector:
        sums = np.bincount(group, weights=other, minlength=len(counts))
        return ((sums[::-1].cumsum()[::-1] - sums / 2) / len(other))[group]

    return ((counts.cumsum() - counts / 2) / len(column) - 0.5)[group], moved


def correlation_interval(value: float, error: float, confidence: float) -> Interval:
    """Normal on Fisher's (1921) scale, so that both ends are within [-1, 1]."""
    low = high = value
    if abs(value) < 1:
        reach = NormalDist().inv_cdf((1 + confidence) / 2) * error / (1 - value**2)
        low, high = tanh(atanh(value) - reach), tanh(atanh(value) + reach)
    return Interval(low=low, high=high, error=error, confidence=confidence)


def mean_error(covariance: Matrix) -> float:
    """The standard error of the mean of K estimates, at least that of independent ones."""
    return sqrt(max(covariance.sum(), np.trace(covariance))) / len(covariance)


def normal_interval(value: float, error: float, confidence: float) -> Interval:
    """The value and its error times the normal quantile, to both sides."""
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * error
    return Interval(low=value - reach, high=value + reach, error=error, confidence=confidence)


def normal_p_value(difference: float, error: float) -> float:
    """Two-sided normal p-value of a difference being 0; 1 without an error."""
    return 2 * NormalDist().cdf(-abs(difference) / error) if error else 1.0
