"""Logistic regressions of SentEval's three procedures, trained as one batched problem.

SentEval trains one after the other. Here the folds of equal size form a stack and take their steps
together; the L2 penalties of a fold see the same sentences in the same order, so they share one
product. A fold that has ended makes room for the next.

Shapes: F folds at work, P penalties of each, C classes, D features with a column of ones for the
bias, R = P * C rows of weights, N sentences, b sentences in a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contrasent.errors import CheckpointError, MissingExtraError, install_command
from contrasent.evaluation.intervals import Ratio
from contrasent.evaluation.protocols import (
    PENALTIES,
    SEED,
    Fold,
    Preset,
    Rows,
    Shuffles,
    TransferProtocol,
    judged_folds,
    stratified_folds,
    with_held_out,
)

_ALIGNMENT = 16
"""Features are padded with zeros to a multiple of this; their weights start and stay at 0."""

_LARGEST = 1e15
"""Products of more than this, squared by the optimiser and summed, would overflow."""

_CPU_BATCH_BYTES = 1 << 21
"""Batches of all folds at work on a CPU, which should stay in its cache."""

_BATCH_BYTES = 1 << 28
"""The same elsewhere; and of held-out rows that are judged at once."""

_FEW_ROWS = 8
"""Weights of more rows are laid out anew for their product: MKL is slow with such a transposed
matrix of features."""


@dataclass(frozen=True, slots=True)
class FittedClassifiers:
    """The best classifier of each fold and penalty."""

    weights: Tensor  # ``(folds, P, C, D)``
    accuracy: Tensor  # ``(folds, P)`` float64 on the CPU, of the rows that stopped the training


class Problems:
    """Features and labels, ready to be fitted on a device."""

    def __init__(self, features: Tensor, labels: Tensor, classes: int) -> None:
        """Append the column of ones to ``features (N, width)``, on the device that computes."""
        rows, width = features.shape
        largest = features.abs().max().item()
        if largest > _LARGEST:
            raise CheckpointError(
                f"the embeddings have numbers up to {largest:g}, too large for a classifier to "
                "learn from in 32 bits; scale them"
            )
        padded = -(-(width + 1) // _ALIGNMENT) * _ALIGNMENT
        self.features = features.new_zeros(rows, padded)
        self.features[:, :width] = features
        self.features[:, width] = 1
        self.labels = labels.to(features.device)
        self.width, self.classes = width, classes
        hot = torch.nn.functional.one_hot(self.labels, classes)
        self.targets = hot.t().float().contiguous()

    def start(self, seed: int) -> Tensor:
        """``(C, D)``: the weights and the bias that ``torch.nn.Linear`` draws after a seed."""
        generator = torch.Generator().manual_seed(seed)
        weights = torch.zeros(self.classes, self.features.shape[1])
        drawn, bound = torch.empty(self.classes, self.width), self.width**-0.5
        torch.nn.init.kaiming_uniform_(drawn, a=5**0.5, generator=generator)
        weights[:, : self.width] = drawn
        weights[:, self.width] = torch.empty(self.classes).uniform_(
            -bound, bound, generator=generator
        )
        return weights.to(self.features.device)

    def fit(
        self, folds: Sequence[Fold], penalties: Sequence[Sequence[float]], preset: Preset, seed: int
    ) -> FittedClassifiers:
        """Train a classifier for every fold and each of its P penalties.

        A penalty is the weight decay, of the bias too; the seed is that of the starting weights and
        of the permutations.
        """
        decay = torch.tensor([list(row) for row in penalties], device=self.features.device)
        weights = self.features.new_zeros(*decay.shape, self.classes, self.features.shape[1])
        accuracy = torch.zeros(decay.shape, dtype=torch.float64)
        sizes: dict[tuple[int, int], deque[tuple[int, Fold]]] = {}
        for number, fold in enumerate(folds):
            sizes.setdefault((len(fold.train), fold.drawn), deque()).append((number, fold))
        for size, waiting in sizes.items():
            stack = _Stack(self, decay, Shuffles(*size, seed), preset, self.start(seed))
            while waiting or stack.numbers:
                stack.admit(waiting)
                for _ in range(preset.epoch_size):
                    stack.epoch()
                stack.judge()
                for number, best, reached in stack.retire():
                    weights[number], accuracy[number] = best, reached
        return FittedClassifiers(weights, accuracy)

    def predict(self, weights: Tensor, rows: Tensor) -> Tensor:
        """Classes ``(n,)`` of ``rows (n,)`` by a classifier ``(C, D)``."""
        return (self.features[rows.to(self.features.device)] @ weights.T).argmax(dim=1)


class _Stack:
    """Folds of one size at work, each of which may be in another epoch.

    ``state`` has ``weights``, ``gradient``, its moments ``first`` and ``second``, and the ``best``
    weights, each ``(F, R, D)``; ``steps (F, 1, 1)``, how many were taken; and ``(F, P)`` the best
    ``accuracy``, the ``misses`` of it, and which have ``ended``.
    """

    def __init__(
        self, problems: Problems, decay: Tensor, shuffles: Shuffles, preset: Preset, start: Tensor
    ) -> None:
        self.numbers: list[int] = []
        self._problems, self._decay, self._shuffles = problems, decay, shuffles
        self._preset, self._start = preset, start.repeat(decay.shape[1], 1)
        self._folds: list[Fold] = []
        self._epochs: list[int] = []
        empty, of_penalty = self._start.new_zeros(0, *self._start.shape), (0, decay.shape[1])
        device = problems.features.device
        self._state = {
            **dict.fromkeys(("weights", "gradient", "first", "second", "best"), empty),
            "steps": torch.zeros(0, 1, 1, device=device),
            "accuracy": torch.zeros(of_penalty, dtype=torch.float64, device=device),
            "misses": torch.zeros(of_penalty, dtype=torch.int64, device=device),
            "ended": torch.zeros(of_penalty, dtype=torch.bool, device=device),
        }
        allowed = _CPU_BATCH_BYTES if device.type == "cpu" else _BATCH_BYTES
        self._places = max(1, allowed // (preset.batch * problems.features.shape[1] * 4))

    def admit(self, waiting: deque[tuple[int, Fold]]) -> None:
        """Take in as many of the folds that wait as there is room for."""
        count = min(len(waiting), self._places - len(self.numbers))
        if count <= 0:
            return
        for number, fold in [waiting.popleft() for _ in range(count)]:
            self.numbers.append(number)
            self._folds.append(fold)
            self._epochs.append(0)
        fresh = {name: held.new_zeros(count, *held.shape[1:]) for name, held in self._state.items()}
        fresh["weights"] += self._start
        fresh["accuracy"] -= 1
        self._state = {name: torch.cat([held, fresh[name]]) for name, held in self._state.items()}
        device = self._problems.features.device
        self._rows = torch.stack([torch.from_numpy(it.train) for it in self._folds]).to(device)
        judged = [torch.from_numpy(fold.held_out) for fold in self._folds]
        # No label is -1, so padding is never right.
        self._judged = torch.nn.utils.rnn.pad_sequence(judged, True, -1).to(device)
        self._look_at_folds()

    def _look_at_folds(self) -> None:
        """Make anew what depends on which folds are at work."""
        decay = self._decay[self.numbers].repeat_interleave(self._problems.classes, dim=1)
        self._weight_decay = decay.unsqueeze(-1)
        shape = len(self.numbers) * self._preset.batch, self._start.shape[1]
        self._buffer = self._start.new_empty(shape)
        self._by_fold = {name: held.unbind() for name, held in self._state.items()}

    def epoch(self) -> None:
        """One pass of every fold over its rows, in the order of its own epoch."""
        state, problems = self._state, self._problems
        permuted = torch.from_numpy(self._shuffles.epochs(self._epochs)).to(self._rows.device)
        order = self._rows.gather(1, permuted.long())
        folds, count = order.shape
        batch, weights = self._preset.batch, state["weights"]
        for start in range(0, count, batch):
            numbers = order[:, start : start + batch]
            chosen, size = numbers.reshape(-1), numbers.shape[1]
            targets = problems.targets[:, numbers].transpose(0, 1).unsqueeze(1)
            rows = torch.index_select(problems.features, 0, chosen, out=self._buffer[: len(chosen)])
            rows = rows.view(folds, size, -1)
            scores = _scores(weights, rows)
            error = scores.view(folds, -1, problems.classes, size).softmax(dim=2)
            error.sub_(targets).div_(size)
            gradient = torch.bmm(error.view(folds, -1, size), rows, out=state["gradient"])
            gradient.addcmul_(weights, self._weight_decay)
            state["steps"] += 1
            self._step()
        self._epochs = [number + 1 for number in self._epochs]

    def _step(self) -> None:
        """A step of the optimiser, each fold at its own, with torch's usual settings."""
        state, by_fold = self._state, self._by_fold
        if self._preset.optimiser == "rmsprop":
            second, gradient = state["second"], state["gradient"]
            second.mul_(0.99).addcmul_(gradient, gradient, value=1 - 0.99)
            state["weights"].addcdiv_(gradient, second.sqrt().add_(1e-8), value=-1e-2)
            return
        # Torch's kernel of Adam reads and writes everything once; elementwise operations took four
        # times as long, and torch.optim.adam.adam(fused=True) has the same bits in 123 us for 46.
        torch._fused_adam_(
            by_fold["weights"],
            by_fold["gradient"],
            by_fold["first"],
            by_fold["second"],
            [],
            by_fold["steps"],
            lr=1e-3,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    def judge(self) -> None:
        """Keep the weights that are the best so far; end what has missed too often.

        As in SentEval, misses are never forgotten: what counts is how many there were in all.
        """
        state, problems = self._state, self._problems
        at_once = _BATCH_BYTES // (4 * len(self._folds) * self._start.shape[1])
        right = torch.zeros_like(state["accuracy"])
        for part in torch.split(self._judged, max(1, at_once), dim=1):
            scores = _scores(state["weights"], problems.features[part])
            predicted = scores.view(*part.shape[:1], -1, problems.classes, part.shape[1]).argmax(2)
            expected = problems.labels[part].masked_fill(part < 0, -1)
            right += (predicted == expected.unsqueeze(1)).sum(dim=2)
        accuracy = right / (self._judged >= 0).sum(dim=1, keepdim=True)
        better = (accuracy > state["accuracy"]) & ~state["ended"]
        missed = ~better & ~state["ended"]
        state["ended"] |= missed & (state["misses"] >= self._preset.tenacity)
        state["misses"] += missed
        state["accuracy"] = torch.where(better, accuracy, state["accuracy"])
        chosen = better.repeat_interleave(problems.classes, dim=1).unsqueeze(-1)
        state["best"] = torch.where(chosen, state["weights"], state["best"])

    def retire(self) -> list[tuple[int, Tensor, Tensor]]:
        """Take out the folds all of whose penalties have ended: number, weights and accuracy."""
        spent = torch.tensor([number > self._preset.max_epochs for number in self._epochs])
        over = spent | self._state["ended"].all(dim=1).cpu()
        if not over.any():
            return []
        accuracy = self._state["accuracy"].cpu()
        shape = len(over), -1, self._problems.classes, self._start.shape[1]
        best = self._state["best"].view(shape)
        places = over.nonzero().flatten().tolist()
        retired = [(self.numbers[it], best[it].clone(), accuracy[it]) for it in places]
        left = (~over).nonzero().flatten().tolist()
        self.numbers = [self.numbers[place] for place in left]
        self._folds = [self._folds[place] for place in left]
        self._epochs = [self._epochs[place] for place in left]
        self._state = {name: held[left] for name, held in self._state.items()}
        self._rows, self._judged = self._rows[left], self._judged[left]
        self._look_at_folds()
        return retired


def _scores(weights: Tensor, rows: Tensor) -> Tensor:
    """``(F, P * C, b)``, what the classifiers ``(F, P * C, D)`` say of ``rows (F, b, D)``."""
    if weights.shape[1] > _FEW_ROWS:
        by_row = torch.bmm(rows, weights.transpose(1, 2).contiguous())
        return by_row.transpose(1, 2).contiguous()
    return torch.bmm(weights, rows.transpose(1, 2))


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
