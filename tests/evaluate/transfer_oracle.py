"""SentEval's classifier and its three procedures, one problem after the other, in loops.

Built on torch's own layer, loss and optimisers, and scikit-learn's folds; it shares no code with
the package.
"""

from copy import deepcopy

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold
from torch import nn

GRID = [1e-5, 1e-4, 1e-3, 1e-2]


class Classifier:
    def __init__(self, width, classes, decay, preset, seed):
        self.draw = np.random.RandomState(seed)
        torch.manual_seed(seed)
        self.layer = nn.Linear(width, classes)
        self.preset = preset
        kind = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}[preset.optimiser]
        self.optimiser = kind(self.layer.parameters(), weight_decay=decay)

    def fit(self, x, y, dev_x=None, dev_y=None):
        if dev_x is None:
            order = self.draw.permutation(len(x))
            cut = int(0.05 * len(x))
            dev_x, dev_y = x[order[:cut]], y[order[:cut]]
            x, y = x[order[cut:]], y[order[cut:]]
        self.rounds, best, misses, epochs = 0, -1.0, 0, 0
        while epochs <= self.preset.max_epochs:
            for _ in range(self.preset.epoch_size):
                self.epoch(x, y)
            epochs += self.preset.epoch_size
            self.rounds += 1
            right = self.score(dev_x, dev_y)
            if right > best:
                best, kept = right, deepcopy(self.layer)
            else:
                if misses >= self.preset.tenacity:
                    break
                misses += 1
        self.layer = kept
        return best

    def epoch(self, x, y):
        order = self.draw.permutation(len(x))
        for start in range(0, len(x), self.preset.batch):
            rows = order[start : start + self.preset.batch]
            loss = nn.functional.cross_entropy(self.layer(tensor(x[rows])), tensor(y[rows]))
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()

    def predict(self, x):
        with torch.no_grad():
            return self.layer(tensor(x)).argmax(1).numpy()

    def score(self, x, y):
        return float(np.mean(self.predict(x) == y))


def tensor(values):
    return torch.from_numpy(np.ascontiguousarray(values))


def splits(y, folds, seed):
    return StratifiedKFold(folds, shuffle=True, random_state=seed).split(np.zeros(len(y)), y)


def search(x, y, folds, fold_seed, classes, preset, seed):
    """Mean accuracy of each penalty over the folds, and which is the best."""
    means = []
    for decay in GRID:
        scores = []
        for train, held in splits(y, folds, fold_seed):
            classifier = Classifier(x.shape[1], classes, decay, preset, seed)
            scores.append(classifier.fit(x[train], y[train], x[held], y[held]))
        means.append(np.mean(scores))
    best = int(np.argmax([round(100 * mean, 2) for mean in means]))
    return means[best], GRID[best]


def nested(x, y, classes, preset, seed):
    dev, test, predicted = [], [], np.full(len(y), -1)
    for train, held in splits(y, preset.folds, 1111):
        reached, decay = search(x[train], y[train], preset.folds, 1111, classes, preset, seed)
        classifier = Classifier(x.shape[1], classes, decay, preset, seed)
        classifier.fit(x[train], y[train])
        dev.append(reached)
        test.append(classifier.score(x[held], y[held]))
        predicted[held] = classifier.predict(x[held])
    return np.mean(dev), np.mean(test), predicted


def by_folds(train, test, classes, preset, seed):
    (x, y), (test_x, test_y) = train, test
    dev, decay = search(x, y, preset.folds, seed, classes, preset, seed)
    classifier = Classifier(x.shape[1], classes, decay, preset, seed)
    classifier.fit(x, y)
    return dev, classifier.score(test_x, test_y), classifier.predict(test_x)


def by_dev_part(train, dev, test, classes, preset, seed):
    scores = []
    for decay in GRID:
        classifier = Classifier(train[0].shape[1], classes, decay, preset, seed)
        scores.append(round(100 * classifier.fit(*train, *dev), 2))
    classifier = Classifier(train[0].shape[1], classes, GRID[int(np.argmax(scores))], preset, seed)
    reached = classifier.fit(*train, *dev)
    return reached, classifier.score(*test)
