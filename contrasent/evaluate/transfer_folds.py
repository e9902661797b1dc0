"""Which sentences a classifier is trained on and which it is judged by.

The random streams are numpy's legacy ones, as scikit-learn's and SentEval's are.

Shapes: N sentences in SentEval's order, K folds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from contrasent.errors import DataError

Rows = NDArray[np.int64]

HELD_OUT = 0.05
"""Share of the training rows that stops the training where there is no other dev part."""


@dataclass(frozen=True, slots=True)
class Fold:
    """Rows to train on and rows to be judged by.

    Attributes:
        train: ``(n,)`` rows of the features, in the order that the permutations number them.
        held_out: ``(h,)`` rows that stop the training.
        drawn: how many rows were permuted to choose ``held_out``; 0 if none were. The
            permutations of the training follow in the same random stream.
    """

    train: Rows
    held_out: Rows
    drawn: int = 0


def stratified_folds(labels: Rows, folds: int, seed: int) -> list[tuple[Rows, Rows]]:
    """Train and test rows of each fold, as scikit-learn's shuffled ``StratifiedKFold`` has them.

    Args:
        labels: ``(N,)``, a class each.
        folds: K.
        seed: of the shuffles, as ``random_state``.

    Raises:
        DataError: a class has fewer than K rows.
    """
    _, first_seen, codes = np.unique(labels, return_index=True, return_inverse=True)
    codes = np.argsort(np.argsort(first_seen))[codes]
    counts = np.bincount(codes)
    if counts.min() < folds:
        raise DataError(
            f"a class has {counts.min()} sentences, fewer than the {folds} folds; "
            "give more data, or a preset with fewer folds"
        )
    ordered = np.sort(codes)
    shares = [np.bincount(ordered[k::folds], minlength=len(counts)) for k in range(folds)]
    draw = np.random.RandomState(seed)
    fold_of = np.empty(len(codes), dtype=np.int64)
    for code in range(len(counts)):
        of_class = np.arange(folds).repeat([share[code] for share in shares])
        draw.shuffle(of_class)
        fold_of[codes == code] = of_class
    return [(np.flatnonzero(fold_of != k), np.flatnonzero(fold_of == k)) for k in range(folds)]


def judged_folds(rows: Rows, labels: Rows, folds: int, seed: int) -> list[Fold]:
    """K folds of ``rows``, each trained on the others' rows and stopped by its own.

    Args:
        rows: ``(n,)``, of the features.
        labels: ``(N,)``, of all features.
        folds: K.
        seed: of the shuffles.
    """
    return [
        Fold(rows[train], rows[test]) for train, test in stratified_folds(labels[rows], folds, seed)
    ]


def with_held_out(rows: Rows, seed: int) -> Fold:
    """Hold out 5 % of ``rows``, drawn by a permutation, to stop the training.

    Raises:
        DataError: that would be no row.
    """
    count = int(HELD_OUT * len(rows))
    if not count:
        raise DataError(f"{len(rows)} training sentences are too few to hold out 5 %; give 20")
    order = np.random.RandomState(seed).permutation(len(rows))
    return Fold(rows[order[count:]], rows[order[:count]], drawn=len(rows))


class Shuffles:
    """The order of the rows in each epoch, as SentEval's classifier draws it.

    Each of its classifiers starts numpy's stream anew from one seed, so classifiers on equally
    many rows see the same permutations.
    """

    def __init__(self, count: int, drawn: int, seed: int) -> None:
        """Permutations of ``count`` rows, after one of ``drawn`` rows if that is above 0."""
        self._count = count
        self._draw = np.random.RandomState(seed)
        if drawn:
            self._draw.permutation(drawn)
        self._epochs: list[NDArray[np.int32]] = []

    def epochs(self, numbers: Sequence[int]) -> NDArray[np.int32]:
        """``(len(numbers), count)``, the permutations of these epochs, counted from 0."""
        while len(self._epochs) <= max(numbers):
            self._epochs.append(self._draw.permutation(self._count).astype(np.int32))
        return np.stack([self._epochs[number] for number in numbers])
