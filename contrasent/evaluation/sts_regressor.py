"""SentEval's regressor for STS-B and SICK-R: scores predicted from embeddings.

Conneau & Kiela 2018, section 3.1, after Tai et al. 2015, section 5.2, as SentEval's code has it:
softmax of one linear layer on ``|u - v|`` and ``u * v``, mean squared error to the score spread
over the two whole numbers around it, Adam, batches of 64, no weight decay. After every 50 epochs
the Pearson correlation on the dev split is looked at: the best state is kept, and the fourth look
that brings nothing better is the last.

Shapes: N pairs, D embedding width, F = 2 * D features, C = 5 classes, the scores 1 to 5. A score
of STS-B below 1 lacks the share of a class 0, as in SentEval.
"""

from __future__ import annotations

from collections.abc import Sequence
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


@dataclass(frozen=True, slots=True)
class Pairs:
    """Embeddings ``(N, D)`` of both sentences, and the scores ``(N,)``."""

    first: Floats
    second: Floats
    gold: Vector

    @property
    def features(self) -> Floats:
        """``(N, F)``: differences without sign, then products."""
        return np.concatenate([np.abs(self.first - self.second), self.first * self.second], axis=1)


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


def fit(train: Pairs, dev: Pairs, seed: int = SEED) -> Regressor:
    """Fit a regressor.

    First weights and order of the pairs are drawn as SentEval draws them under the same seed, if
    ``train`` is in :func:`sentevals_order`; ``dev`` decides when to stop. DataError if no state
    predicts dev scores that differ.
    """
    features, targets = train.features, spread(train.gold)
    dev_features = dev.features
    start = _start(features.shape[1], seed)
    state = _Adam(start)
    # The generator that SentEval seeds; its stream is frozen.
    order = np.random.RandomState(seed)
    best, kept, idle, epochs = -1.0, None, 0, 0
    while idle < LOOKS_WITHOUT_GAIN and epochs <= MOST_EPOCHS:
        for _ in range(EPOCHS_BETWEEN_LOOKS):
            state.epoch(features, targets, order.permutation(len(features)))
        epochs += EPOCHS_BETWEEN_LOOKS
        reached = _pearson_or_nothing(state.model.expected(dev_features), dev.gold)
        if reached > best:
            best, kept = reached, Regressor(state.model.weight.copy(), state.model.bias.copy())
        else:
            idle += 1
    if kept is None:
        raise DataError(
            "SentEval's regressor predicts the same score for every dev pair; its embeddings "
            "hardly differ"
        )
    return kept


def spread(gold: Vector) -> Floats:
    """Scores ``(N,)`` as shares of the two classes around them, ``(N, C)``; 3.2 is .8 of 3.

    DataError if a score is not within 0 to 5.
    """
    outside = (gold < 0) | (gold > CLASSES)
    if outside.any():
        raise DataError(
            f"score {gold[int(np.argmax(outside))]:g} is not within 0 to 5, so SentEval's "
            "regressor cannot be fitted"
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


class _Adam:
    """Adam (Kingma & Ba 2015) on the mean squared error of the shares.

    Torch's autograd and its own Adam take four times as long for steps as small as these.
    """

    def __init__(self, model: Regressor) -> None:
        # Views of one array, so that a step is a few operations on one row of numbers.
        classes, width = model.weight.shape
        self._numbers = np.concatenate([model.weight.ravel(), model.bias])
        self._gradient = np.zeros_like(self._numbers)
        self._first = np.zeros_like(self._numbers)
        self._second = np.zeros_like(self._numbers)
        self._steps = 0
        inner = classes * width
        self.model = Regressor(self._numbers[:inner].reshape(classes, width), self._numbers[inner:])
        self._weight_gradient = self._gradient[:inner].reshape(classes, width)
        self._bias_gradient = self._gradient[inner:]

    def epoch(self, features: Floats, targets: Floats, order: NDArray[np.int64]) -> None:
        """One pass over the pairs in the given order."""
        for place in range(0, len(order), BATCH):
            rows = order[place : place + BATCH]
            self._step(features[rows], targets[rows])

    def _step(self, features: Floats, targets: Floats) -> None:
        shares = self.model.shares(features)
        slope = (shares - targets) * np.float32(2 / targets.size)
        # Of the softmax: each logit moves its own share up and all shares down in proportion.
        slope -= (slope * shares).sum(axis=1, keepdims=True)
        slope *= shares
        np.matmul(slope.T, features, out=self._weight_gradient)
        slope.sum(axis=0, out=self._bias_gradient)
        self._steps += 1
        gradient = self._gradient
        self._first += np.float32(1 - _FIRST) * (gradient - self._first)
        self._second *= np.float32(_SECOND)
        gradient *= gradient
        self._second += np.float32(1 - _SECOND) * gradient
        root = np.sqrt(self._second)
        root /= np.float32(sqrt(1 - _SECOND**self._steps))
        root += np.float32(_SMALL)
        np.divide(self._first, root, out=root)
        root *= np.float32(_STEP / (1 - _FIRST**self._steps))
        self._numbers -= root


def _start(width: int, seed: int) -> Regressor:
    """A linear layer as torch makes it under ``torch.manual_seed(seed)``."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    bound = 1 / sqrt(width)
    weight = torch.empty(CLASSES, width).uniform_(-bound, bound, generator=generator)
    bias = torch.empty(CLASSES).uniform_(-bound, bound, generator=generator)
    return Regressor(weight.numpy(), bias.numpy())


def _pearson_or_nothing(expected: Vector, gold: Vector) -> float:
    """-1, which is never better, where SentEval finds NaN."""
    try:
        return pearson(expected, gold)
    except DataError:
        return -1.0
