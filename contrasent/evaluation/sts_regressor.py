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
from copy import deepcopy
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from contrasent.errors import DataError
from contrasent.metrics import Vector, pearson

if TYPE_CHECKING:
    from torch import Tensor

CLASSES = 5
BATCH = 64
EPOCHS_BETWEEN_LOOKS = 50
MOST_EPOCHS = 1000
LOOKS_WITHOUT_GAIN = 4
SEED = 1111
"""SentEval's."""

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


@dataclass(frozen=True, slots=True)
class Regressor:
    """Softmax of one linear layer with ``weight (C, F)`` and ``bias (C,)``."""

    weight: Tensor
    bias: Tensor

    def shares(self, features: Tensor) -> Tensor:
        """Probabilities of the classes ``(N, C)``."""
        return (features @ self.weight.T + self.bias).softmax(dim=1)

    def predict(self, pairs: Pairs) -> Vector:
        """Expected scores ``(N,)``, from 1 to 5."""
        import torch

        with torch.no_grad():
            shares = self.shares(torch.from_numpy(pairs.features)).double().numpy()
        expected: Vector = shares @ np.arange(1, CLASSES + 1)
        return expected


def fit(train: Pairs, dev: Pairs, seed: int = SEED) -> Regressor:
    """Fit a regressor.

    First weights and order of the pairs are drawn as SentEval draws them under the same seed, if
    ``train`` is in :func:`sentevals_order`; ``dev`` decides when to stop.

    Raises:
        DataError: no state predicts dev scores that differ.
    """
    import torch

    features, targets = torch.from_numpy(train.features), torch.from_numpy(spread(train.gold))
    model = _start(features.shape[1], seed)
    optimiser = torch.optim.Adam([model.weight, model.bias])
    # The generator that SentEval seeds; its stream is frozen.
    order = np.random.RandomState(seed)
    best, kept, idle, epochs = -1.0, None, 0, 0
    while idle < LOOKS_WITHOUT_GAIN and epochs <= MOST_EPOCHS:
        for _ in range(EPOCHS_BETWEEN_LOOKS):
            shuffled = torch.from_numpy(order.permutation(len(features)))
            for rows in torch.split(shuffled, BATCH):
                with torch.enable_grad():
                    shares = model.shares(features[rows])
                    loss = torch.nn.functional.mse_loss(shares, targets[rows])
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        epochs += EPOCHS_BETWEEN_LOOKS
        reached = _pearson_or_nothing(model.predict(dev), dev.gold)
        if reached > best:
            best, kept = reached, deepcopy(model)
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

    A score that is not within 0 to 5 is a DataError.
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


def _start(width: int, seed: int) -> Regressor:
    """A linear layer as torch makes it under ``torch.manual_seed(seed)``."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    bound = 1 / sqrt(width)
    weight, bias = (
        torch.empty(shape).uniform_(-bound, bound, generator=generator).requires_grad_()
        for shape in ((CLASSES, width), (CLASSES,))
    )
    return Regressor(weight, bias)


def _pearson_or_nothing(expected: Vector, gold: Vector) -> float:
    """-1, which is never better, where SentEval finds NaN."""
    try:
        return pearson(expected, gold)
    except DataError:
        return -1.0
