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

    from contrasent.evaluation.logistic_regression import FittedClassifiers

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

    With ``all``, nested cross-validation; with ``train`` and ``test``, cross-validation on train,
    then training on it again with 5 % held out; with ``dev`` besides, training stopped by dev.
    DataError if there are too few sentences, or too few of a class, for the folds; CheckpointError
    if numbers are too large to learn from; MissingExtraError if scikit-learn is asked for and not
    installed.
    """
    if protocol.classifier == "sklearn":
        return _by_sklearn(parts, protocol)
    validator = _CrossValidator(list(parts.values()), classes, protocol, device)
    if "all" in parts:
        return validator.nested()
    if "dev" in parts:
        return validator.by_dev_part()
    return validator.by_folds()


def _by_sklearn(parts: Mapping[str, LabelledFeatures], protocol: TransferProtocol) -> Accuracy:
    """With C = 1. Dev rows are a fold of the training rows where there is no dev part."""
    count, seed = protocol.settings.folds, protocol.seed
    if "all" not in parts:
        train, test = parts["train"], parts["test"]
        model = _fit(train.features, train.labels, seed)
        predicted: Rows = model.predict(test.features)
        if "dev" in parts:
            right = [model.predict(parts["dev"].features) == parts["dev"].labels]
            dev_rows = _mean_over_folds([np.arange(len(right[0]))], right)
        else:
            folds = stratified_folds(train.labels, count, seed)
            right = [_judge(train, rows, judged, seed) for rows, judged in folds]
            dev_rows = _mean_over_folds([judged for _, judged in folds], right)
        return Accuracy(dev_rows, _share(predicted, test.labels), predicted)
    features, labels = parts["all"].features, parts["all"].labels
    dev_rows_of, right, test_scores = [], [], []
    predicted, fold_of = (np.empty_like(labels) for _ in range(2))
    for fold, (rows, judged) in enumerate(stratified_folds(labels, count, seed)):
        inner, held_out = stratified_folds(labels[rows], count, seed)[0]
        dev_rows_of.append(rows[held_out])
        right.append(_judge(parts["all"], rows[inner], rows[held_out], seed))
        predicted[judged] = _fit(features[rows], labels[rows], seed).predict(features[judged])
        fold_of[judged] = fold
        test_scores.append(_share(predicted[judged], labels[judged]))
    dev_rows = _mean_over_folds(dev_rows_of, right)
    return Accuracy(dev_rows, float(np.mean(test_scores)), predicted, fold_of)


def logistic_regression() -> Any:
    """Scikit-learn's class, or a MissingExtraError."""
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise MissingExtraError(
            f"--classifier sklearn needs scikit-learn; {install_command('sklearn')}"
        ) from error
    return LogisticRegression


def _fit(features: NDArray[np.float32], labels: Rows, seed: int) -> Any:
    model = logistic_regression()(C=_PENALTY, random_state=seed, max_iter=_MOST_STEPS)
    return model.fit(features, labels)


def _judge(part: LabelledFeatures, train: Rows, judged: Rows, seed: int) -> NDArray[np.bool_]:
    """Which of the rows ``judged`` of a part are right after training on others."""
    model = _fit(part.features[train], part.labels[train], seed)
    right: NDArray[np.bool_] = model.predict(part.features[judged]) == part.labels[judged]
    return right


def _mean_over_folds(judged: Sequence[Rows], right: Sequence[NDArray[np.bool_]]) -> Ratio:
    """The mean of accuracies: a row counts as often as it is judged, and as its fold is small."""
    rows, correct = np.concatenate(judged), np.concatenate(right)
    weights = np.concatenate([np.full(len(fold), 1 / len(fold)) for fold in judged])
    places = np.unique(rows, return_inverse=True)[1]
    sums = (np.bincount(places, it).astype(np.float64) for it in (correct * weights, weights))
    return Ratio(*sums)


def _share(predicted: Rows, labels: Rows) -> float:
    return float((predicted == labels).mean())


class _CrossValidator:
    """The rows of all parts behind one another, with what fits classifiers to them."""

    def __init__(
        self,
        parts: Sequence[LabelledFeatures],
        classes: int,
        protocol: TransferProtocol,
        device: torch.device | str,
    ) -> None:
        import torch

        from contrasent.evaluation.logistic_regression import Problems

        features = np.concatenate([part.features for part in parts])
        self._labels = np.concatenate([part.labels for part in parts])
        ends = np.cumsum([len(part.labels) for part in parts])
        self._rows = [
            np.arange(end - len(part.labels), end) for part, end in zip(parts, ends, strict=True)
        ]
        self._problems = Problems(
            torch.from_numpy(features).to(device, torch.float32),
            torch.from_numpy(self._labels),
            classes,
        )
        self._preset, self._seed = protocol.settings, protocol.seed

    def nested(self) -> Accuracy:
        """Every fold is the test part once; folds of the others choose its penalty."""
        count = self._preset.folds
        outer = stratified_folds(self._labels, count, SEED)
        inner = [
            fold for rows, _ in outer for fold in judged_folds(rows, self._labels, count, SEED)
        ]
        searched = self._search(inner)
        accuracy = searched.accuracy.numpy().reshape(count, count, len(PENALTIES))
        chosen = [_best(scores) for scores in accuracy]
        fitted = self._problems.fit(
            [with_held_out(train, self._seed) for train, _ in outer],
            [[PENALTIES[best]] for best in chosen],
            self._preset,
            self._seed,
        )
        predicted, fold_of = (np.empty_like(self._labels) for _ in range(2))
        test = []
        for fold, (_, rows) in enumerate(outer):
            predicted[rows] = self._predict(fitted.weights[fold, 0], rows)
            fold_of[rows] = fold
            test.append(_share(predicted[rows], self._labels[rows]))
        dev_rows = self._dev_rows(inner, searched, np.repeat(chosen, count))
        return Accuracy(dev_rows, float(np.mean(test)), predicted, fold_of)

    def by_folds(self) -> Accuracy:
        """Folds of the training part choose the penalty."""
        train, test = self._rows
        folds = judged_folds(train, self._labels, self._preset.folds, self._seed)
        searched = self._search(folds)
        best = _best(searched.accuracy.numpy())
        last = [with_held_out(train, self._seed)]
        fitted = self._problems.fit(last, [[PENALTIES[best]]], self._preset, self._seed)
        predicted = self._predict(fitted.weights[0, 0], test)
        right = _share(predicted, self._labels[test])
        dev_rows = self._dev_rows(folds, searched, [best] * len(folds))
        return Accuracy(dev_rows, right, predicted)

    def by_dev_part(self) -> Accuracy:
        """The dev part chooses the penalty, and when to stop.

        SentEval then trains with that penalty again; from the same seed that is the same
        classifier.
        """
        train, dev, test = self._rows
        folds = [Fold(train, dev)]
        fitted = self._search(folds)
        best = _best(fitted.accuracy.numpy())
        predicted = self._predict(fitted.weights[0, best], test)
        right = _share(predicted, self._labels[test])
        dev_rows = self._dev_rows(folds, fitted, [best])
        return Accuracy(dev_rows, right, predicted)

    def _search(self, folds: Sequence[Fold]) -> FittedClassifiers:
        """Classifiers of each fold and penalty."""
        return self._problems.fit(folds, [PENALTIES] * len(folds), self._preset, self._seed)

    def _dev_rows(
        self, folds: Sequence[Fold], fitted: FittedClassifiers, chosen: Iterable[int]
    ) -> Ratio:
        """What the accuracies of the folds, with the penalty chosen for each, are means of."""
        judged = [fold.held_out for fold in folds]
        right = [
            self._predict(weights[best], rows) == self._labels[rows]
            for rows, weights, best in zip(judged, fitted.weights, chosen, strict=True)
        ]
        return _mean_over_folds(judged, right)

    def _predict(self, weights: torch.Tensor, rows: Rows) -> Rows:
        import torch

        predicted: Rows = self._problems.predict(weights, torch.from_numpy(rows)).cpu().numpy()
        return predicted


def _best(accuracy: NDArray[np.float64]) -> int:
    """Which penalty: the first of the best, of means rounded to 0.01 points as SentEval's are."""
    return int(np.argmax([round(100 * mean, 2) for mean in accuracy.mean(axis=0)]))
