"""Mean and covariance of any number of rows, in bounded memory and fp64.

Shapes: N rows in all, n rows of a part, D width.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Moments:
    """Of the rows given so far; parts are merged by Chan, Golub and LeVeque's update (1979).

    Attributes:
        count: N.
        mean: ``(D,)``.
    """

    def __init__(self, width: int) -> None:
        self.count = 0
        self.mean: NDArray[np.float64] = np.zeros(width)
        self._scatter: NDArray[np.float64] = np.zeros((width, width))

    def add(self, rows: NDArray[np.float32] | NDArray[np.float64]) -> None:
        """Take in ``(n, D)`` more rows."""
        if not len(rows):
            return
        part = rows.astype(np.float64)
        mean = part.mean(axis=0)
        part -= mean
        shift, total = mean - self.mean, self.count + len(rows)
        self._scatter += part.T @ part
        self._scatter += np.outer(shift, shift) * (self.count * len(rows) / total)
        self.mean = self.mean + shift * (len(rows) / total)
        self.count = total

    @property
    def covariance(self) -> NDArray[np.float64]:
        """``(D, D)``, divided by N - 1."""
        return self._scatter / (self.count - 1)

    @property
    def mean_square_length(self) -> float:
        """Mean squared length of a row."""
        scatter = float(np.trace(self._scatter))
        return scatter / self.count + float(self.mean @ self.mean)

    @property
    def second(self) -> NDArray[np.float64]:
        """``(D, D)`` sum of the products of every row with itself, not centred."""
        return self._scatter + self.count * np.outer(self.mean, self.mean)
