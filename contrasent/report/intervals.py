"""How sure the numbers of a table are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import NormalDist

from contrasent.records import Interval, Record

CORRELATION = {"spearman": "Spearman", "pearson": "Pearson"}


def with_interval(value: str, found: Interval | None) -> str:
    """A printed value, with its interval x 100 behind it if it has one."""
    return f"{value} [{100 * found.low:.2f}, {100 * found.high:.2f}]" if found else value


def averaged_interval(average: float, parts: Sequence[Interval | None]) -> Interval | None:
    """The interval of a mean over tasks, whose pairs are drawn independently of one another.

    It is the normal interval about the mean, its error the root of the sum of the tasks' squared
    errors over their number. None if a task has no interval.
    """
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    error = sqrt(sum(part.error**2 for part in known)) / len(known)
    confidence, resamples, seed = known[0].confidence, known[0].resamples, known[0].seed
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * error
    return Interval(
        low=average - reach,
        high=average + reach,
        error=error,
        confidence=confidence,
        resamples=resamples,
        seed=seed,
    )


OF_PAIRS = (
    "the pairs",
    ", drawn within each subset for mean and wmean; of the average, normal with the tasks "
    "independent",
)
"""What is drawn again for a correlation, and what else is to be said of its interval."""


def said_of_intervals(shown: Iterable[Record], of: tuple[str, str] = OF_PAIRS) -> list[str]:
    """What the brackets are; nothing if there are none.

    Args:
        shown: records that are printed.
        of: what is drawn again, and what else is to be said.
    """
    found = next((record.interval for record in shown if record.interval), None)
    if found is None:
        return []
    drawn, more = of
    return [
        f"In brackets the {100 * found.confidence:g} % bootstrap interval: percentiles over "
        f"{found.resamples} resamples of {drawn} (seed {found.seed}){more}."
    ]
