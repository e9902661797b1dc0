"""BERT-whitening: embeddings with mean 0 and the identity as covariance.

Su, Cao, Liu and Ou 2021, "Whitening Sentence Representations for Better Semantics and Faster
Retrieval"; the kernel is that of the authors' code.

Shapes: N rows in all, n rows of a part, D width, K kept dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from contrasent.errors import ConfigError, DataError
from contrasent.model.transforms.base import DenseMap


class Moments:
    """The moments of ``count`` rows so far, merged by Chan, Golub and LeVeque's update (1979)."""

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


_NOISE = 1e-5
"""Of the length of an embedding, what float32 and an encoder's sums leave of it as noise."""

_CONSTANT = 0.02
"""Share of the dimensions that may be missing unasked: a LayerNorm takes one away, as its outputs
have a fixed weighted sum, and some of its components may be constant."""


class Whitening(DenseMap):
    """``x W - mu W``."""

    name = "whitening"


@dataclass(frozen=True, slots=True)
class Whitened:
    """A fitted whitening, the rank of the covariance, and the share of variance that is kept."""

    transform: Whitening
    rank: int
    variance_kept: float


def require_enough(sentences: int, kept: int | None, width: int) -> None:
    """Raise ConfigError for too many dimensions, DataError for too few sentences of that rank."""
    if kept is not None and not 1 <= kept <= width:
        raise ConfigError(f"--dimensions {kept}: the encoder has {width}; keep 1 to {width}")
    wanted = kept or width
    if sentences <= wanted:
        fewer = f", or keep fewer: --dimensions {sentences - 1}" if sentences > 1 else ""
        raise DataError(
            f"{sentences} sentences have a covariance of rank {max(sentences - 1, 0)} at most, too "
            f"few to whiten {wanted} dimensions; give more than {wanted} sentences{fewer}"
        )


def fit(moments: Moments, kept: int | None = None) -> Whitened:
    """The whitening of embeddings with these moments; errors as :func:`require_enough`.

    ``W = U diag(1 / sqrt(S))`` of the covariance ``U diag(S) U'``, the ``kept`` columns with the
    largest variances; None keeps every direction that is more than noise, if they lack but a few.
    Each column has its largest component above 0: the mathematics leaves the signs open.
    """
    require_enough(moments.count, kept, len(moments.mean))
    variances, directions = np.linalg.eigh(moments.covariance)
    variances, directions = variances[::-1], directions[:, ::-1]
    rank = int((variances > moments.mean_square_length * _NOISE**2).sum())
    if kept is None and rank >= len(variances) - max(1, round(_CONSTANT * len(variances))):
        kept = rank
    kept = kept or len(variances)
    if rank < kept or not kept:
        remedy = f", or keep fewer: --dimensions {rank}" if rank else ""
        raise DataError(
            f"the covariance of {moments.count} embeddings is singular: its rank is {rank} of "
            f"{len(variances)}, which is less than the {kept} dimensions to keep; give sentences "
            f"that differ more{remedy}"
        )
    chosen = directions[:, :kept]
    chosen = chosen * np.sign(chosen[np.abs(chosen).argmax(axis=0), range(kept)])
    weight = (chosen / np.sqrt(variances[:kept])).T.astype(np.float32)
    bias: NDArray[np.float64] = -(weight.astype(np.float64) @ moments.mean)
    transform = Whitening(len(variances), kept)
    transform.weight.copy_(torch.from_numpy(np.ascontiguousarray(weight)))
    transform.bias.copy_(torch.from_numpy(bias.astype(np.float32)))
    kept_share = float(variances[:kept].sum() / variances.clip(0).sum())
    return Whitened(transform, rank, kept_share)
