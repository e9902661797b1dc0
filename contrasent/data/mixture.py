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
    rest = (1 - given.sum()) * free / free.sum() if free.any() else 0.0
    shares = given / (1.0 if free.any() else given.sum()) + rest
    ends = np.rint(np.cumsum(shares) * sum(sizes))
    counts: IndexArray = np.diff(ends, prepend=0).astype(np.int64)
    return counts


class Mixture(Loader):
    """Batches of several loaders, by the names of their sources; a function of seed and step alone.

    Every source goes through its own epochs, in its own order. In an epoch of all, each gives the
    same number of batches as in the others, in an order that the seed draws anew, or ``in_turn``.
    ConfigError if a weight is less than a batch.
    """

    def __init__(
        self,
        loaders: Mapping[str, Loader],
        weights: Sequence[float | None],
        *,
        seed: int,
        in_turn: bool = False,
    ) -> None:
        sizes = [loader.steps_per_epoch for loader in loaders.values()]
        self.steps_per_epoch = sum(sizes)
        order = np.arange(self.steps_per_epoch) % len(sizes)
        if not in_turn:
            order = np.repeat(np.arange(len(sizes)), batches_of_each(sizes, weights))
        counts = np.bincount(order, minlength=len(sizes)).tolist()
        self.counts = dict(zip(loaders, counts, strict=True))
        if 0 in counts:
            raise ConfigError(
                f"{list(loaders)[counts.index(0)]}: its weight is less than one of the "
                f"{self.steps_per_epoch} batches of an epoch; give it more"
            )
        self._loaders, self._turns = list(loaders.items()), order
        self._seed, self._in_turn = seed, in_turn
        self._drawn: tuple[int, IndexArray] | None = None

    def batch(self, step: int) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch)
        turns = self._order(epoch)
        name, loader = self._loaders[int(turns[place])]
        before = np.count_nonzero(turns[:place] == turns[place])
        batch = loader.batch(epoch * self.counts[name] + int(before))
        return replace(batch, origin=name if len(self._loaders) > 1 else "")

    def _order(self, epoch: int) -> IndexArray:
        """``(steps_per_epoch,)``, the number of the source of each batch of an epoch."""
        if self._drawn is None or self._drawn[0] != epoch:
            random = np.random.default_rng([self._seed, epoch, 1])
            self._drawn = epoch, self._turns if self._in_turn else random.permutation(self._turns)
        return self._drawn[1]
