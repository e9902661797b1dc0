"""Batches of several sources, each of one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from contrasent.data.batch import Batch
from contrasent.data.loader import IndexArray, Loader
from contrasent.errors import ConfigError


def batches_of_each(sizes: Sequence[int], weights: Sequence[float | None]) -> IndexArray:
    """``(K,)`` int64, batches of each source in an epoch, which has as many as all ``sizes``.

    A weight is a share of them, or, if all have one, a part of the sum of weights; sources without
    share the rest by size, so that without any weight each gives as many as it has.
    """
    given = np.array([weight or 0.0 for weight in weights])
    free = np.array([size * (it is None) for size, it in zip(sizes, weights, strict=True)])
    if not free.any():
        given = given / given.sum()
    shares = given + (1 - given.sum()) * free / max(1, free.sum())
    ends = np.rint(np.cumsum(shares) * sum(sizes))
    counts: IndexArray = np.diff(ends, prepend=0).astype(np.int64)
    return counts


class Mixture(Loader):
    """Batches of several loaders, by the names of their sources.

    Those of each source are spread evenly over an epoch, so that sources of the same weight take
    turns. Each goes through its own epochs, in its own order. ConfigError if one gives no batch.
    """

    def __init__(self, loaders: Mapping[str, Loader], weights: Sequence[float | None]) -> None:
        sizes = [loader.steps_per_epoch for loader in loaders.values()]
        counts = batches_of_each(sizes, weights).tolist()
        self._loaders, self.steps_per_epoch = list(loaders.items()), sum(sizes)
        self.counts = dict(zip(loaders, counts, strict=True))
        for name, count in self.counts.items():
            if count < 1:
                raise ConfigError(
                    f"{name}: the weights leave it none of the {self.steps_per_epoch} batches of "
                    "an epoch; give it more, or the others less"
                )
        times = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
        sources = np.repeat(np.arange(len(counts)), counts)
        self._turns = sources[np.argsort(times, kind="stable")]

    def batch(self, step: int) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch)
        name, loader = self._loaders[int(self._turns[place])]
        before = np.count_nonzero(self._turns[:place] == self._turns[place])
        batch = loader.batch(epoch * self.counts[name] + int(before))
        return replace(batch, origin=name if len(self._loaders) > 1 else "")
