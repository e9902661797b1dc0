"""SentEval's classifier and its three procedures, one problem after the other, in loops.

Built on torch's own layer, loss and optimisers, and scikit-learn's folds; it shares no code with
the package. The steps are as many and as quick as in SentEval's code.

Shapes: N sentences or pairs of a part, width numbers per feature vector.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold
from torch import Tensor, nn

GRID = [1e-5, 1e-4, 1e-3, 1e-2]

Features = NDArray[np.float32]
Labels = NDArray[np.int64]
Part = tuple[Features, Labels]
"""``(N, width)`` and ``(N,)``."""


class Preset(Protocol):
    """How classifiers are trained and judged."""

    folds: int
    optimiser: str
    batch: int
    tenacity: int
    epoch_size: int
    max_epochs: int


class Classifier:
    """A logistic regression."""

    def __init__(self, width: int, classes: int, decay: float, preset: Preset, seed: int) -> None:
        self.draw = np.random.RandomState(seed)
        torch.manual_seed(seed)
        self.layer = nn.Linear(width, classes)
        self.loss = nn.CrossEntropyLoss()
        self.preset = preset
        kind = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}[preset.optimiser]
        self.optimiser: Any = kind(self.layer.parameters(), weight_decay=decay)
        self.rounds = 0

    def fit(self, x: Features, y: Labels, dev: Part | None = None) -> float:
        """Train until the accuracy on ``dev``, or on 5 % held out, is better no more."""
        if dev is None:
            order = self.draw.permutation(len(x))
            cut = int(0.05 * len(x))
            dev = x[order[:cut]], y[order[:cut]]
            x, y = x[order[cut:]], y[order[cut:]]
        train = tensor(x), tensor(y)
        best, misses, epochs = -1.0, 0, 0
        while epochs <= self.preset.max_epochs:
            for _ in range(self.preset.epoch_size):
                self.epoch(*train)
            epochs += self.preset.epoch_size
            self.rounds += 1
            right = self.score(*dev)
            if right > best:
                best, kept = right, deepcopy(self.layer)
            else:
                if misses >= self.preset.tenacity:
                    break
                misses += 1
        self.layer = kept
        return best

    def epoch(self, x: Tensor, y: Tensor) -> None:
        """A pass over the training part."""
        order = self.draw.permutation(len(x))
        for start in range(0, len(x), self.preset.batch):
            rows = tensor(order[start : start + self.preset.batch])
            loss = self.loss(self.layer(x.index_select(0, rows)), y.index_select(0, rows))
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()

    def predict(self, x: Features) -> Labels:
        """The class of each row."""
        with torch.no_grad():
            found: Labels = self.layer(tensor(x)).argmax(1).numpy()
        return found

    def score(self, x: Features, y: Labels) -> float:
        """The share of rows that are right."""
        return float(np.mean(self.predict(x) == y))


def tensor(values: NDArray[Any]) -> Tensor:
    """The same numbers."""
    return torch.from_numpy(np.ascontiguousarray(values))


def splits(y: Labels, folds: int, seed: int) -> Iterator[tuple[Labels, Labels]]:
    """Rows to train on and rows to be judged by."""
    found: Iterator[tuple[Labels, Labels]] = StratifiedKFold(
        folds, shuffle=True, random_state=seed
    ).split(np.zeros(len(y)), y)
    return found


def search(
    part: Part, fold_seed: int, classes: int, preset: Preset, seed: int
) -> tuple[float, float]:
    """The best mean accuracy over the folds, and the penalty that reaches it."""
    x, y = part
    means = []
    for decay in GRID:
        scores = []
        for train, held in splits(y, preset.folds, fold_seed):
            classifier = Classifier(x.shape[1], classes, decay, preset, seed)
            scores.append(classifier.fit(x[train], y[train], (x[held], y[held])))
        means.append(float(np.mean(scores)))
    best = int(np.argmax([round(100 * mean, 2) for mean in means]))
    return means[best], GRID[best]


def nested(x: Features, y: Labels, classes: int, preset: Preset, seed: int) -> Any:
    """Dev and test accuracy, means over the folds, and the class found for each row."""
    dev, test, predicted = [], [], np.full(len(y), -1)
    for train, held in splits(y, preset.folds, 1111):
        reached, decay = search((x[train], y[train]), 1111, classes, preset, seed)
        classifier = Classifier(x.shape[1], classes, decay, preset, seed)
        classifier.fit(x[train], y[train])
        dev.append(reached)
        test.append(classifier.score(x[held], y[held]))
        predicted[held] = classifier.predict(x[held])
    return np.mean(dev), np.mean(test), predicted


def by_folds(train: Part, test: Part, classes: int, preset: Preset, seed: int) -> Any:
    """The same where a test part is given."""
    dev, decay = search(train, seed, classes, preset, seed)
    classifier = Classifier(train[0].shape[1], classes, decay, preset, seed)
    classifier.fit(*train)
    return dev, classifier.score(*test), classifier.predict(test[0])


def by_dev_part(
    train: Part,
    dev: Part,
    test: Part,
    classes: int,
    preset: Preset,
    seed: int,
) -> Any:
    """The same where a dev part is given too."""
    scores = []
    for decay in GRID:
        classifier = Classifier(train[0].shape[1], classes, decay, preset, seed)
        scores.append(round(100 * classifier.fit(*train, dev), 2))
    classifier = Classifier(train[0].shape[1], classes, GRID[int(np.argmax(scores))], preset, seed)
    reached = classifier.fit(*train, dev)
    return reached, classifier.score(*test), classifier.predict(test[0])
