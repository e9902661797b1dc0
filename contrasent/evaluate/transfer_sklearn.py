"""Accuracies by scikit-learn's logistic regression: one fit where SentEval searches.

Shapes: N sentences or pairs of a part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contrasent.errors import MissingExtraError
from contrasent.evaluate.transfer_folds import Rows, stratified_folds
from contrasent.evaluate.transfer_presets import SEED, Protocol

Part = tuple[NDArray[np.float32], Rows]
"""Feature vectors ``(N, width)`` and classes ``(N,)``."""

_PENALTY = 1.0
_MOST_STEPS = 1000


Found = tuple[float, float, Rows, Rows | None]
"""As the attributes of :class:`contrasent.evaluate.transfer_procedure.Reached`."""


def reach_by_sklearn(parts: Mapping[str, Part], protocol: Protocol) -> Found:
    """Accuracy on dev and test rows, the classes found for these, and their folds.

    C is 1. Without a test part, every fold is one once, and dev rows are a fold of the others;
    without a dev part, the folds of the training part are.

    Args:
        parts: as in :func:`contrasent.evaluate.transfer_procedure.reach`.
        protocol: folds and seed.

    Raises:
        DataError: too few sentences of a class for the folds.
        MissingExtraError: scikit-learn is not installed.
    """
    folds, seed = protocol.settings.folds, protocol.seed
    if "all" in parts:
        return _over_folds(parts["all"], folds, seed)
    train, test = parts["train"], parts["test"]
    predicted = _predicted(train, test[0], seed)
    if "dev" in parts:
        features, labels = parts["dev"]
        dev = _share(_predicted(train, features, seed), labels)
    else:
        dev = float(
            np.mean(
                [
                    _judged(train, rows, judged, seed)
                    for rows, judged in stratified_folds(train[1], folds, seed)
                ]
            )
        )
    return dev, _share(predicted, test[1]), predicted, None


def logistic_regression() -> Any:
    """Scikit-learn's class.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise MissingExtraError(
            "--classifier sklearn needs scikit-learn; pip install 'contrasent[sklearn]'"
        ) from error
    return LogisticRegression


def _over_folds(part: Part, folds: int, seed: int) -> Found:
    features, labels = part
    dev, test = [], []
    predicted, fold_of = (np.empty_like(labels) for _ in range(2))
    for fold, (train, judged) in enumerate(stratified_folds(labels, folds, SEED)):
        inner, held_out = stratified_folds(labels[train], folds, SEED)[0]
        dev.append(_judged(part, train[inner], train[held_out], seed))
        found = _predicted((features[train], labels[train]), features[judged], seed)
        predicted[judged], fold_of[judged] = found, fold
        test.append(_share(found, labels[judged]))
    return float(np.mean(dev)), float(np.mean(test)), predicted, fold_of


def _judged(part: Part, train: Rows, judged: Rows, seed: int) -> float:
    features, labels = part
    found = _predicted((features[train], labels[train]), features[judged], seed)
    return _share(found, labels[judged])


def _predicted(train: Part, features: NDArray[np.float32], seed: int) -> Rows:
    model = logistic_regression()(C=_PENALTY, random_state=seed, max_iter=_MOST_STEPS)
    found: Rows = model.fit(*train).predict(features)
    return found


def _share(found: Rows, labels: Rows) -> float:
    return float((found == labels).mean())
