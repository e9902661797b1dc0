"""SentEval's regressor for STS-B and SICK-R: scores predicted from embeddings.

Conneau & Kiela 2018, section 3.1, after Tai et al. 2015, section 5.2, as SentEval's code has it:
softmax of one linear layer on ``|u - v|`` and ``u * v``, mean squared error to the score spread
over the two whole numbers around it, Adam (Kingma & Ba 2015), batches of 64, no weight decay. After
every 50 epochs the Pearson correlation on the dev split is looked at: the best state is kept, and
the fourth look that brings nothing better is the last.

Shapes: N pairs, D embedding width, F = 2 * D features, C = 5 classes, the scores 1 to 5. A score
of STS-B below 1 lacks the share of a class 0, as in SentEval.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from contrasent.errors import DataError
from contrasent.metrics import Vector, pearson

CLASSES = 5
BATCH = 64
EPOCHS_BETWEEN_LOOKS = 50
MOST_EPOCHS = 1000
LOOKS_WITHOUT_GAIN = 4
SEED = 1111
"""SentEval's."""

_STEP, _FIRST, _SECOND, _SMALL = 1e-3, 0.9, 0.999, 1e-8

Floats = NDArray[np.float32]


def pair_features(first: Floats, second: Floats) -> Floats:
    """``(N, F)`` of embeddings ``(N, D)``: differences without sign, then products."""
    return np.concatenate([np.abs(first - second), first * second], axis=1)


@dataclass(slots=True)
class Regressor:
    """Softmax of one linear layer with ``weight (C, F)`` and ``bias (C,)``."""

    weight: Floats
    bias: Floats

    def shares(self, features: Floats) -> Floats:
        """Probabilities of the classes ``(N, C)``."""
        logits = features @ self.weight.T + self.bias
        logits -= logits.max(axis=1, keepdims=True)
        np.exp(logits, out=logits)
        logits /= logits.sum(axis=1, keepdims=True)
        return logits

    def expected(self, features: Floats) -> Vector:
        """Expected scores ``(N,)``, from 1 to 5."""
        expected: Vector = self.shares(features).astype(np.float64) @ np.arange(1, CLASSES + 1)
        return expected


def fit(train: tuple[Floats, Vector], dev: tuple[Floats, Vector], seed: int = SEED) -> Regressor:
    """Fit a regressor to features ``(N, F)`` and scores ``(N,)``; those of ``dev`` say when to end.

    First weights and order of the pairs are drawn as SentEval draws them under the same seed, if
    ``train`` is in :func:`sentevals_order`.
    """
    import torch

    (features, gold), (dev_features, dev_gold) = train, dev
    targets, width = spread(gold), features.shape[1]
    generator, bound = torch.Generator().manual_seed(seed), 1 / sqrt(width)
    sizes = ((CLASSES, width), (CLASSES,))
    drawn = [torch.empty(it).uniform_(-bound, bound, generator=generator).numpy() for it in sizes]
    # One array, so that a step is a few operations on one row of numbers: torch's autograd and its
    # own Adam take four times as long.
    numbers = np.concatenate([it.ravel() for it in drawn])
    gradient, first, second = (np.zeros_like(numbers) for _ in range(3))
    model, slopes = (
        Regressor(it[: CLASSES * width].reshape(CLASSES, width), it[CLASSES * width :])
        for it in (numbers, gradient)
    )
    # The generator that SentEval seeds; its stream is frozen.
    order = np.random.RandomState(seed)
    best, kept, idle, epochs, step = -1.0, None, 0, 0, 0
    while idle < LOOKS_WITHOUT_GAIN and epochs <= MOST_EPOCHS:
        for _ in range(EPOCHS_BETWEEN_LOOKS):
            permuted = order.permutation(len(features))
            for place in range(0, len(permuted), BATCH):
                rows = permuted[place : place + BATCH]
                step += 1
                _gradient(model, slopes, features[rows], targets[rows])
                first += np.float32(1 - _FIRST) * (gradient - first)
                second *= np.float32(_SECOND)
                gradient *= gradient
                second += np.float32(1 - _SECOND) * gradient
                root = np.sqrt(second)
                root /= np.float32(sqrt(1 - _SECOND**step))
                root += np.float32(_SMALL)
                np.divide(first, root, out=root)
                root *= np.float32(_STEP / (1 - _FIRST**step))
                numbers -= root
        epochs += EPOCHS_BETWEEN_LOOKS
        reached = -1.0  # never better, where SentEval finds NaN
        with suppress(DataError):
            reached = pearson(model.expected(dev_features), dev_gold)
        if reached > best:
            best, kept = reached, Regressor(model.weight.copy(), model.bias.copy())
        else:
            idle += 1
    if kept is None:
        raise DataError(
            "SentEval's regressor predicts the same score for every dev pair; its embeddings "
            "hardly differ"
        )
    return kept


def _gradient(model: Regressor, slopes: Regressor, features: Floats, targets: Floats) -> None:
    """Write into ``slopes`` how the mean squared error of the shares changes with the model."""
    shares = model.shares(features)
    slope = (shares - targets) * np.float32(2 / targets.size)
    # Of the softmax: each logit moves its own share up and all shares down in proportion.
    slope -= (slope * shares).sum(axis=1, keepdims=True)
    slope *= shares
    np.matmul(slope.T, features, out=slopes.weight)
    slope.sum(axis=0, out=slopes.bias)


def spread(gold: Vector) -> Floats:
    """Scores ``(N,)`` as shares of the two classes around them, ``(N, C)``; 3.2 is .8 of 3."""
    outside = gold[(gold < 0) | (gold > CLASSES)]
    if len(outside):
        raise DataError(
            f"score {outside[0]:g} is not within 0 to 5, so SentEval's regressor cannot be fitted"
        )
    classes = np.arange(1, CLASSES + 1)
    shares: Floats = np.maximum(0, 1 - np.abs(gold[:, None] - classes)).astype(np.float32)
    return shares


def sentevals_order(first: Sequence[str], second: Sequence[str], gold: Vector) -> list[int]:
    """Pairs by the words of both sentences, then by score: where SentEval's epochs start from."""
    return sorted(
        range(len(gold)),
        key=lambda n: (len(first[n].split()), len(second[n].split()), float(gold[n])),
    )
