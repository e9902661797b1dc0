"""Bootstrap intervals of means and F1, and of differences of two.

Shapes: N pairs, sentences or queries; R resamples; K columns of scores of the same N.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from contrasent.errors import ConfigError
from contrasent.metrics import Vector
from contrasent.records import Interval

# What stays in a core's cache is twice as fast as a large block.
_AT_ONCE = 1 << 16
_DEGENERATE = 0.05

Matrix = NDArray[np.float64]
Counts = NDArray[np.int64]
"""``(R, N)``: how often each pair is in a resample; every row adds up to N."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A score that is one sum over N things drawn divided by another: a mean, or F1.

    With C columns it is the mean of their quotients, as macro-F1 is of the classes' F1; one whose
    lower sum is 0 is left out.

    Attributes:
        top: ``(N,)`` or ``(N, C)``, what each adds to the upper sum.
        bottom: the same of the lower one; ones for a mean.
    """

    top: Matrix
    bottom: Matrix

    @property
    def value(self) -> float:
        """The score."""
        sums = np.column_stack([self.top, self.bottom]).sum(axis=0, keepdims=True)
        return float(_mean_quotient(sums)[0])


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """How sure intervals are, and how R resamples are drawn, the same ones for every encoder.

    ``confidence`` is the share of samples whose interval is to hold the true value. Correlations
    need no resamples: :mod:`contrasent.evaluation.dyadic`.
    """

    confidence: float = 0.95
    resamples: int = 5000
    seed: int = 1111

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise ConfigError(
                f"confidence must be between 0 and 1, such as 0.95, not {self.confidence:g}"
            )
        if self.resamples < 2:
            raise ConfigError(f"resamples must be at least 2, not {self.resamples}")


def ratio_draws(ratios: Sequence[Ratio], bootstrap: Bootstrap, stream: str) -> Matrix:
    """K ratios of the same N things in the same R resamples.

    ``stream`` names the things, such as ``mr``: what is drawn for one is independent of what is
    drawn for another.

    Returns:
        ``(K, R)``; NaN where the lower sum is 0.
    """
    columns = [np.column_stack([ratio.top, ratio.bottom]) for ratio in ratios]
    blocks = []
    for counts in _resample(len(columns[0]), bootstrap, stream):
        weights = counts.astype(np.float64)
        # One product each: equal columns are to give equal bits.
        blocks.append(np.stack([_mean_quotient(weights @ column) for column in columns]))
    return np.concatenate(blocks, axis=1)


def interval(draws: Vector, bootstrap: Bootstrap) -> Interval | None:
    """The percentile interval of R values of one score (Efron 1979).

    None if the score does not exist in more than a twentieth of the resamples, as with a handful
    of pairs.
    """
    finite = draws[np.isfinite(draws)]
    if len(finite) < (1 - _DEGENERATE) * len(draws):
        return None
    tail = (1 - bootstrap.confidence) / 2
    low, high = np.quantile(finite, [tail, 1 - tail])
    return Interval(
        low=float(low),
        high=float(high),
        error=float(finite.std(ddof=1)),
        confidence=bootstrap.confidence,
        resamples=bootstrap.resamples,
        seed=bootstrap.seed,
    )


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

    Twice the smaller share of resamples on one side of 0, those at 0 being on both; one resample
    is added to each side, so that it is never 0 (Davison & Hinkley 1997, section 4.4).
    """
    finite = draws[np.isfinite(draws)]
    smaller = min((finite <= 0).sum(), (finite >= 0).sum())
    return float(min(1.0, 2 * (smaller + 1) / (len(finite) + 1)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) adjusted p-values: the chance of any false claim stays below each of them."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def _resample(pairs: int, bootstrap: Bootstrap, stream: str) -> Iterator[Counts]:
    """Counts of all resamples, a bounded number at once."""
    generator = np.random.default_rng([bootstrap.seed, crc32(stream.encode())])
    left, most = bootstrap.resamples, max(1, _AT_ONCE // pairs)
    while left:
        rows = min(left, most)
        places = generator.integers(pairs, size=(rows, pairs), dtype=np.int32)
        places += np.arange(0, rows * pairs, pairs, dtype=np.int32)[:, None]
        yield np.bincount(places.ravel(), minlength=rows * pairs).reshape(rows, pairs)
        left -= rows


def _mean_quotient(sums: Matrix) -> Vector:
    """Upper sums ``(R, C)`` beside the lower ones over these, ``(R,)``; NaN where all are 0."""
    top, bottom = np.split(sums, 2, axis=1)
    defined = bottom > 0
    quotients = np.divide(top, bottom, out=np.zeros_like(top), where=defined)
    return _quotient(quotients.sum(axis=1), defined.sum(axis=1))


def _quotient(top: Vector, bottom: Vector) -> Vector:
    """Element by element; NaN where the divisor is 0."""
    quotient: Vector = np.divide(top, bottom, out=np.full_like(top, np.nan), where=bottom > 0)
    return quotient
