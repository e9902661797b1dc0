"""SentEval's classifier and its three procedures, one problem after the other, in loops.

Built on torch's own layer, loss and optimisers, and scikit-learn's folds; it shares no code with
the package. The steps are as many and as quick as in SentEval's code.

Shapes: N sentences or pairs of a part, width numbers per feature vector. A preset has SentEval's
settings: folds, optimiser, batch, tenacity, epoch_size, max_epochs.
"""

from copy import deepcopy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold
from torch import nn

GRID = [1e-5, 1e-4, 1e-3, 1e-2]
SEED = 1111

Part = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Features ``(N, width)`` and labels ``(N,)``."""


class Classifier:
    """A logistic regression."""

    def __init__(self, width: int, classes: int, decay: float, preset: Any, seed: int) -> None:
        self.draw = np.random.RandomState(seed)
        torch.manual_seed(seed)
        self.layer, self.loss = nn.Linear(width, classes), nn.CrossEntropyLoss()
        self.preset, self.rounds = preset, 0
        kind: Any = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}[preset.optimiser]
        self.optimiser = kind(self.layer.parameters(), weight_decay=decay)

    def fit(self, train: Part, dev: Part | None = None) -> float:
        """Train until the accuracy on ``dev``, or on 5 % held out, is better no more."""
        x, y = train
        if dev is None:
            order, cut = self.draw.permutation(len(x)), int(0.05 * len(x))
            dev = x[order[:cut]], y[order[:cut]]
            x, y = x[order[cut:]], y[order[cut:]]
        features, labels = torch.from_numpy(x), torch.from_numpy(y)
        best, misses, epochs = -1.0, 0, 0
        while epochs <= self.preset.max_epochs:
            for _ in range(self.preset.epoch_size):
                order = torch.from_numpy(self.draw.permutation(len(x)))
                for rows in order.split(self.preset.batch):
                    scores = self.layer(features.index_select(0, rows))
                    loss = self.loss(scores, labels.index_select(0, rows))
                    self.optimiser.zero_grad()
                    loss.backward()
                    self.optimiser.step()
            epochs += self.preset.epoch_size
            self.rounds += 1
            right = self.score(dev)
            if right > best:
                best, kept = right, deepcopy(self.layer)
            elif misses >= self.preset.tenacity:
                break
            else:
                misses += 1
        self.layer = kept
        return best

    def predict(self, x: NDArray[np.float32]) -> NDArray[np.int64]:
        """The class of each row."""
        with torch.no_grad():
            return self.layer(torch.from_numpy(x)).argmax(1).numpy()

    def score(self, part: Part) -> float:
        """The share of rows that are right."""
        return float(np.mean(self.predict(part[0]) == part[1]))


def splits(part: Part, folds: int, seed: int) -> list[tuple[Part, Part, NDArray[np.int64]]]:
    """Parts to train on and to be judged by, and the rows of the latter."""
    x, y = part
    drawn = StratifiedKFold(folds, shuffle=True, random_state=seed).split(x, y)
    return [((x[rows], y[rows]), (x[held], y[held]), held) for rows, held in drawn]


def procedure(parts: list[Part], classes: int, preset: Any, seed: int) -> Any:
    """Dev and test accuracy, and the class predicted for each test row.

    Of one part, means over folds with a search inside of each; of two, train and test, a search
    by folds of train; of three, by the dev part between them.
    """
    whole, held, width = len(parts) == 1, parts[1:-1], parts[0][0].shape[1]
    predicted = np.full(len(parts[-1][1]), -1)
    outer: Any = [(parts[0], parts[-1], slice(None))]
    dev, right = [], []
    for train, test, rows in splits(parts[0], preset.folds, SEED) if whole else outer:
        folds: Any = [(train, *held, None)]
        if not held:
            folds = splits(train, preset.folds, SEED if whole else seed)
        means = [
            np.mean([Classifier(width, classes, it, preset, seed).fit(*fold[:2]) for fold in folds])
            for it in GRID
        ]
        best = int(np.argmax([round(100 * mean, 2) for mean in means]))
        chosen = Classifier(width, classes, GRID[best], preset, seed)
        chosen.fit(train, *held)
        dev.append(means[best])
        right.append(chosen.score(test))
        predicted[rows] = chosen.predict(test[0])
    return np.mean(dev), np.mean(right), predicted
