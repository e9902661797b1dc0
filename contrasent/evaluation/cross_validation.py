"""Cross-validation: SentEval's three procedures from features to accuracies, and scikit-learn's.

Shapes: N sentences or pairs of a part, width numbers per feature vector, K folds, P penalties.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from contrasent.errors import MissingExtraError, install_command
from contrasent.evaluation.intervals import Ratio
from contrasent.evaluation.protocols import (
    PENALTIES,
    SEED,
    Fold,
    Rows,
    TransferProtocol,
    judged_folds,
    stratified_folds,
    with_held_out,
)

if TYPE_CHECKING:
    import torch

_PENALTY = 1.0
_MOST_STEPS = 1000


@dataclass(frozen=True, slots=True)
class LabelledFeatures:
    """Feature vectors ``(N, width)`` of one part and their classes ``(N,)``."""

    features: NDArray[np.float32]
    labels: Rows


@dataclass(frozen=True, slots=True)
class Accuracy:
    """What a classifier reached on a task."""

    dev_rows: Ratio  # what the accuracy on the rows that chose the penalty is the mean of
    test: float  # accuracy on the test rows; the mean over the folds where there are folds
    predicted: Rows  # classes ``(N,)`` of the test rows
    # ``(N,)``, the fold that each of them is the test row of; None without folds
    folds: Rows | None = None


def cross_validate(
    parts: Mapping[str, LabelledFeatures],
    classes: int,
    protocol: TransferProtocol,
    device: torch.device | str,
) -> Accuracy:
    """Judge features by a task's parts.

    With ``all``, nested cross-validation: every fold is the test part once, and folds of the others
    choose its penalty. With ``train`` and ``test``, folds of train choose it, and train is learned
    again with 5 % held out. With ``dev`` besides, that part chooses the penalty and when to stop;
    SentEval then trains with that penalty again, which is the same classifier from the same seed.
    DataError if there is too little for the folds; CheckpointError if numbers are too large.
    """
    if protocol.classifier == "sklearn":
        return _by_sklearn(parts, protocol)
    import torch

    from contrasent.evaluation.logistic_regression import FittedClassifiers, Problems

    labels = np.concatenate([part.labels for part in parts.values()])
    rows = np.split(
        np.arange(len(labels)), np.cumsum([len(part.labels) for part in parts.values()])[:-1]
    )
    features = torch.from_numpy(np.concatenate([part.features for part in parts.values()]))
    problems = Problems(features.to(device, torch.float32), torch.from_numpy(labels), classes)
    preset, seed = protocol.settings, protocol.seed

    def search(folds: Sequence[Fold]) -> FittedClassifiers:
        return problems.fit(folds, [PENALTIES] * len(folds), preset, seed)

    def predict(weights: torch.Tensor, judged: Rows) -> Rows:
        predicted: Rows = problems.predict(weights, torch.from_numpy(judged)).cpu().numpy()
        return predicted

    def dev_rows(folds: Sequence[Fold], fitted: FittedClassifiers, chosen: Iterable[int]) -> Ratio:
        """The sums that the accuracies of the folds with their penalties are means of."""
        judged = [fold.held_out for fold in folds]
        right = [
            predict(weights[best], rows) == labels[rows]
            for rows, weights, best in zip(judged, fitted.weights, chosen, strict=True)
        ]
        return _mean_over_folds(judged, right)

    if "all" in parts:
        count = preset.folds
        outer = stratified_folds(labels, count, SEED)
        inner = [fold for some, _ in outer for fold in judged_folds(some, labels, count, SEED)]
        searched = search(inner)
        chosen = [_best(it) for it in searched.accuracy.numpy().reshape(count, count, -1)]
        fitted = problems.fit(
            [with_held_out(train, seed) for train, _ in outer],
            [[PENALTIES[best]] for best in chosen],
            preset,
            seed,
        )
        predictions = [
            predict(weights[0], judged)
            for weights, (_, judged) in zip(fitted.weights, outer, strict=True)
        ]
        dev = dev_rows(inner, searched, np.repeat(chosen, count))
        return _over_folds(dev, labels, [judged for _, judged in outer], predictions)
    train, *stopping, test = rows
    folds = [Fold(train, it) for it in stopping]
    folds = folds or judged_folds(train, labels, preset.folds, seed)
    fitted = search(folds)
    best = _best(fitted.accuracy.numpy())
    weights = fitted.weights[0, best]
    if not stopping:
        last = [with_held_out(train, seed)]
        weights = problems.fit(last, [[PENALTIES[best]]], preset, seed).weights[0, 0]
    predicted = predict(weights, test)
    right = float((predicted == labels[test]).mean())
    return Accuracy(dev_rows(folds, fitted, [best] * len(folds)), right, predicted)


def _by_sklearn(parts: Mapping[str, LabelledFeatures], protocol: TransferProtocol) -> Accuracy:
    """With C = 1. Dev rows are a fold of the training rows where there is no dev part."""
    count, seed = protocol.settings.folds, protocol.seed

    def fit(part: LabelledFeatures, rows: Rows) -> Any:
        model = logistic_regression()(C=_PENALTY, random_state=seed, max_iter=_MOST_STEPS)
        return model.fit(part.features[rows], part.labels[rows])

    def dev_rows(part: LabelledFeatures, folds: Sequence[tuple[Rows, Rows]]) -> Ratio:
        right = [
            fit(part, rows).predict(part.features[judged]) == part.labels[judged]
            for rows, judged in folds
        ]
        return _mean_over_folds([judged for _, judged in folds], right)

    if "all" in parts:
        whole = parts["all"]
        outer, inner = stratified_folds(whole.labels, count, seed), []
        for rows, _ in outer:
            some, held_out = stratified_folds(whole.labels[rows], count, seed)[0]
            inner.append((rows[some], rows[held_out]))
        predictions = [fit(whole, rows).predict(whole.features[judged]) for rows, judged in outer]
        judged = [judged for _, judged in outer]
        return _over_folds(dev_rows(whole, inner), whole.labels, judged, predictions)
    train, test = parts["train"], parts["test"]
    model = fit(train, np.arange(len(train.labels)))
    predicted: Rows = model.predict(test.features)
    if "dev" in parts:
        right = model.predict(parts["dev"].features) == parts["dev"].labels
        dev = _mean_over_folds([np.arange(len(right))], [right])
    else:
        dev = dev_rows(train, stratified_folds(train.labels, count, seed))
    return Accuracy(dev, float((predicted == test.labels).mean()), predicted)


def logistic_regression() -> Any:
    """Scikit-learn's class, or a MissingExtraError."""
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise MissingExtraError(
            f"--classifier sklearn needs scikit-learn; {install_command('sklearn')}"
        ) from error
    return LogisticRegression


def _over_folds(
    dev_rows: Ratio, labels: Rows, judged: Sequence[Rows], predictions: Sequence[Rows]
) -> Accuracy:
    predicted, fold_of = (np.empty_like(labels) for _ in range(2))
    right = []
    for fold, (rows, of_fold) in enumerate(zip(judged, predictions, strict=True)):
        predicted[rows], fold_of[rows] = of_fold, fold
        right.append(float((of_fold == labels[rows]).mean()))
    return Accuracy(dev_rows, float(np.mean(right)), predicted, fold_of)


def _mean_over_folds(judged: Sequence[Rows], right: Sequence[NDArray[np.bool_]]) -> Ratio:
    """The mean of accuracies: a row counts as often as it is judged, and as its fold is small."""
    rows, correct = np.concatenate(judged), np.concatenate(right)
    weights = np.concatenate([np.full(len(fold), 1 / len(fold)) for fold in judged])
    places = np.unique(rows, return_inverse=True)[1]
    sums = (np.bincount(places, it).astype(np.float64) for it in (correct * weights, weights))
    return Ratio(*sums)


def _best(accuracy: NDArray[np.float64]) -> int:
    """Which penalty: the first of the best, of means rounded to 0.01 points as SentEval's are."""
    return int(np.argmax([round(100 * mean, 2) for mean in accuracy.mean(axis=0)]))
