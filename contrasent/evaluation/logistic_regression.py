"""Logistic regressions of SentEval's three procedures, trained as one batched problem; a regressor.

The random streams are numpy's legacy ones, as scikit-learn's and SentEval's are.

SentEval trains one after the other. Here folds of equal size take their steps together; the L2
penalties of a fold see the same sentences in the same order, so they share one product. A fold that
has ended makes room for the next.

Shapes: F folds at work, P penalties of each, C classes, D features with a column of ones for the
bias, R = P * C rows of weights, N sentences, b sentences in a batch; K folds of a task.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contrasent.errors import CheckpointError, DataError
from contrasent.evaluation.protocols import PENALTIES, SEED, Preset
from contrasent.metrics import Vector, pearson

Rows = NDArray[np.int64]

HELD_OUT = 0.05
"""Share of the training rows that stops the training where there is no other dev part."""

_ALIGNMENT = 16
"""Features are padded with zeros to a multiple of this; their weights start and stay at 0."""

_LARGEST = 1e15
"""Products of more than this, squared by the optimiser and summed, would overflow."""

_CPU_BATCH_BYTES = 1 << 21
"""Batches of all folds at work on a CPU, which should stay in its cache."""

_BATCH_BYTES = 1 << 28
"""The same elsewhere; and of held-out rows that are judged at once."""

_ADAM: dict[str, Any] = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0, "eps": 1e-8}
"""Torch's usual settings."""

_FEW_ROWS = 8
"""Weights of more rows are laid out anew for their product: MKL is slow with such a transposed
matrix of features."""


@dataclass(frozen=True, slots=True)
class Fold:
    """Rows to train on and rows to be judged by.

    Those of ``train (n,)`` are in the order that the permutations number them; ``held_out (h,)``
    stop the training. ``drawn`` rows were permuted to choose them, from the same random stream.
    """

    train: Rows
    held_out: Rows
    drawn: int = 0


def stratified_folds(labels: Rows, folds: int, seed: int) -> list[tuple[Rows, Rows]]:
    """Train and test rows of each of K folds, as scikit-learn's shuffled ``StratifiedKFold``."""
    _, first_seen, codes = np.unique(labels, return_index=True, return_inverse=True)
    codes = np.argsort(np.argsort(first_seen))[codes]
    counts = np.bincount(codes)
    if counts.min() < folds:
        few = f"a class has {counts.min()} sentences, fewer than the {folds} folds"
        raise DataError(f"{few}; give more data, or a preset with fewer folds")
    ordered = np.sort(codes)
    shares = [np.bincount(ordered[k::folds], minlength=len(counts)) for k in range(folds)]
    draw = np.random.RandomState(seed)
    fold_of = np.empty(len(codes), dtype=np.int64)
    for code in range(len(counts)):
        of_class = np.arange(folds).repeat([share[code] for share in shares])
        draw.shuffle(of_class)
        fold_of[codes == code] = of_class
    return [(np.flatnonzero(fold_of != k), np.flatnonzero(fold_of == k)) for k in range(folds)]


def judged_folds(rows: Rows, labels: Rows, folds: int, seed: int) -> list[Fold]:
    """K folds of ``rows (n,)``, each trained on the others' rows and stopped by its own."""
    chosen = stratified_folds(labels[rows], folds, seed)
    return [Fold(rows[train], rows[test]) for train, test in chosen]


def with_held_out(rows: Rows, seed: int) -> Fold:
    """Hold out 5 % of ``rows``, drawn by a permutation, to stop the training."""
    count = int(HELD_OUT * len(rows))
    if not count:
        raise DataError(f"{len(rows)} training sentences are too few to hold out 5 %; give 20")
    order = np.random.RandomState(seed).permutation(len(rows))
    return Fold(rows[order[count:]], rows[order[:count]], drawn=len(rows))


class FittedClassifiers(NamedTuple):
    """The best classifier of each fold and penalty."""

    weights: Tensor  # ``(folds, P, C, D)``
    accuracy: Tensor  # ``(folds, P)`` float64 on the CPU, of the rows that stopped the training


class Problems:
    """Features and labels, ready to be fitted on a device."""

    def __init__(self, features: Tensor, labels: Tensor, classes: int) -> None:
        """Append the column of ones to ``features (N, width)``, on the device that computes."""
        rows, width = features.shape
        if (largest := features.abs().max().item()) > _LARGEST:
            what = f"numbers up to {largest:g}, too large for a classifier to learn from in 32 bits"
            raise CheckpointError(f"the embeddings have {what}; scale them")
        self.features = features.new_zeros(rows, -(-(width + 1) // _ALIGNMENT) * _ALIGNMENT)
        self.features[:, :width] = features
        self.features[:, width] = 1
        self.labels = labels.to(features.device)
        self.width, self.classes = width, classes
        self.targets = torch.nn.functional.one_hot(self.labels, classes).t().float().contiguous()

    def start(self, seed: int) -> Tensor:
        """``(C, D)``: the weights and the bias that ``torch.nn.Linear`` draws after a seed."""
        generator, bound = torch.Generator().manual_seed(seed), self.width**-0.5
        weights = torch.zeros(self.classes, self.features.shape[1])
        drawn, bias = torch.empty(self.classes, self.width), torch.empty(self.classes)
        torch.nn.init.kaiming_uniform_(drawn, a=5**0.5, generator=generator)
        weights[:, : self.width] = drawn
        weights[:, self.width] = bias.uniform_(-bound, bound, generator=generator)
        return weights.to(self.features.device)

    def fit(
        self, folds: Sequence[Fold], penalties: Sequence[Sequence[float]], preset: Preset
    ) -> FittedClassifiers:
        """Train a classifier for every fold and each of its P penalties (weight decay)."""
        decay = torch.tensor([list(row) for row in penalties], device=self.features.device)
        weights = self.features.new_zeros(*decay.shape, self.classes, self.features.shape[1])
        accuracy = torch.zeros(decay.shape, dtype=torch.float64)
        sizes: dict[tuple[int, int], list[int]] = {}
        for number, fold in enumerate(folds):
            sizes.setdefault((len(fold.train), fold.drawn), []).append(number)
        for numbers in sizes.values():
            alike = [folds[number] for number in numbers]
            weights[numbers], accuracy[numbers] = self._fit_alike(alike, decay[numbers], preset)
        return FittedClassifiers(weights, accuracy)

    def _fit_alike(
        self, folds: Sequence[Fold], decay: Tensor, preset: Preset
    ) -> tuple[Tensor, Tensor]:
        """The best weights ``(folds, P, C, D)`` and their accuracy, of folds of one size."""
        device, width = self.features.device, self.features.shape[1]
        start = self.start(preset.seed).repeat(decay.shape[1], 1).repeat(len(folds), 1, 1)
        state = {
            "weights": start,
            **{name: torch.zeros_like(start) for name in ("first", "second", "best")},
            "steps": torch.zeros(len(folds), 1, 1, device=device),
            "accuracy": torch.full(decay.shape, -1.0, dtype=torch.float64, device=device),
            "misses": torch.zeros(decay.shape, dtype=torch.int64, device=device),
            "ended": torch.zeros(decay.shape, dtype=torch.bool, device=device),
        }
        rows = torch.stack([torch.from_numpy(fold.train) for fold in folds]).to(device)
        judged = [torch.from_numpy(fold.held_out) for fold in folds]
        # No label is -1, so padding is never right.
        held_out = torch.nn.utils.rnn.pad_sequence(judged, True, -1).to(device)
        decay = decay.repeat_interleave(self.classes, dim=1).unsqueeze(-1)
        allowed = _CPU_BATCH_BYTES if device.type == "cpu" else _BATCH_BYTES
        places = max(1, allowed // (preset.batch * width * 4))
        # Each classifier starts numpy's stream anew: all see the same permutations.
        draw, orders = np.random.RandomState(preset.seed), list[Tensor]()
        if folds[0].drawn:
            draw.permutation(folds[0].drawn)
        waiting, epochs = list(range(len(folds))), np.zeros(len(folds), dtype=np.int64)
        while waiting:
            work = waiting[:places]
            part = {name: held[work] for name, held in state.items()}
            for _ in range(preset.epoch_size):
                while len(orders) <= epochs[work].max():
                    drawn = draw.permutation(rows.shape[1]).astype(np.int32)
                    orders.append(torch.from_numpy(drawn))
                permuted = torch.stack([orders[epoch] for epoch in epochs[work]]).to(device).long()
                self._epoch(part, rows[work].gather(1, permuted), decay[work], preset)
                epochs[work] += 1
            self._judge(part, held_out[work], preset.tenacity)
            for name, held in part.items():
                state[name][work] = held
            over = state["ended"].all(dim=1).cpu().numpy() | (epochs > preset.max_epochs)
            waiting = [number for number in waiting if not over[number]]
        return state["best"].view(len(folds), -1, self.classes, width), state["accuracy"].cpu()

    def _epoch(
        self, state: dict[str, Tensor], order: Tensor, decay: Tensor, preset: Preset
    ) -> None:
        """One pass of every fold over its rows ``order (F, n)``, by torch's usual optimisers."""
        folds, batch, weights = len(order), preset.batch, state["weights"]
        gradient = torch.empty_like(weights)
        buffer = self.features.new_empty(folds * batch, self.features.shape[1])
        second, steps = state["second"], state["steps"].unbind()
        of_adam = weights.unbind(), gradient.unbind(), state["first"].unbind(), second.unbind()
        for numbers in torch.split(order, batch, dim=1):
            chosen, size = numbers.reshape(-1), numbers.shape[1]
            targets = self.targets[:, numbers].transpose(0, 1).unsqueeze(1)
            rows = torch.index_select(self.features, 0, chosen, out=buffer[: len(chosen)])
            rows = rows.view(folds, size, -1)
            shares = _scores(weights, rows).view(folds, -1, self.classes, size).softmax(dim=2)
            error = self.slopes(shares, targets).view(folds, -1, size)
            torch.bmm(error, rows, out=gradient).addcmul_(weights, decay)
            if preset.optimiser == "rmsprop":
                second.mul_(0.99).addcmul_(gradient, gradient, value=1 - 0.99)
                weights.addcdiv_(gradient, second.sqrt().add_(1e-8), value=-1e-2)
                continue
            state["steps"] += 1
            # Torch's kernel of Adam reads and writes everything once; elementwise operations took
            # four times as long, and torch.optim.adam.adam(fused=True) has the same bits in 123 us
            # for 46.
            torch._fused_adam_(*of_adam, [], steps, **_ADAM, amsgrad=False, maximize=False)

    def slopes(self, shares: Tensor, targets: Tensor) -> Tensor:
        """The gradient of the mean loss of b sentences by their scores, ``(F, P, C, b)``."""
        return shares.sub_(targets).div_(shares.shape[-1])

    def reached(self, weights: Tensor, judged: Tensor) -> Tensor:
        """``(F, P)`` float64, the accuracy of ``(F, P * C, D)`` on rows ``(F, h)``; -1 is none."""
        at_once = _BATCH_BYTES // (4 * len(judged) * self.features.shape[1])
        right = torch.zeros((), dtype=torch.float64, device=judged.device)
        for part in torch.split(judged, max(1, at_once), dim=1):
            scores = _scores(weights, self.features[part])
            predicted = scores.view(*part.shape[:1], -1, self.classes, part.shape[1]).argmax(2)
            expected = self.labels[part].masked_fill(part < 0, -1)
            right = right + (predicted == expected.unsqueeze(1)).sum(dim=2)
        return right / (judged >= 0).sum(dim=1, keepdim=True)

    def _judge(self, state: dict[str, Tensor], judged: Tensor, tenacity: int) -> None:
        """Keep the best weights so far; end what has missed too often in all, as in SentEval."""
        accuracy = self.reached(state["weights"], judged)
        better = (accuracy > state["accuracy"]) & ~state["ended"]
        missed = ~better & ~state["ended"]
        state["ended"] |= missed & (state["misses"] >= tenacity)
        state["misses"] += missed
        state["accuracy"] = torch.where(better, accuracy, state["accuracy"])
        chosen = better.repeat_interleave(self.classes, dim=1).unsqueeze(-1)
        state["best"] = torch.where(chosen, state["weights"], state["best"])

    def predict(self, weights: Tensor, rows: Rows) -> Rows:
        """Classes ``(n,)`` of ``rows (n,)`` by a classifier ``(C, D)``."""
        features = self.features[torch.from_numpy(rows).to(self.features.device)]
        return (features @ weights.T).argmax(dim=1).cpu().numpy()


SCORES = np.arange(1, 6)
"""Classes of the relatedness of two sentences."""


class Relatedness(Problems):
    """SentEval's regressor for STS-B and SICK-R: scores predicted from embeddings of pairs.

    Conneau & Kiela 2018, section 3.1, after Tai et al. 2015, section 5.2, as SentEval's code has
    it: softmax of one linear layer on ``|u - v|`` and ``u * v``, mean squared error to the score
    spread over the two whole numbers around it, no weight decay; the Pearson correlation ends it.
    """

    def __init__(self, features: Tensor, gold: Vector) -> None:
        """A score of STS-B below 1 lacks the share of a class 0, as in SentEval."""
        super().__init__(features, torch.zeros(len(gold), dtype=torch.int64), len(SCORES))
        if gold.min() < 0 or gold.max() > SCORES[-1]:
            what = f"scores from {gold.min():g} to {gold.max():g} are not within 0 to 5"
            raise DataError(f"{what}, so SentEval's regressor cannot be fitted")
        shares = np.maximum(0, 1 - np.abs(gold - SCORES[:, None]))  # 3.2 is .8 of 3
        self.gold, self.targets = gold, torch.from_numpy(shares.astype(np.float32))

    def slopes(self, shares: Tensor, targets: Tensor) -> Tensor:
        slopes = (shares - targets) * (2 / shares[0, 0].numel())
        # Each score moves its own share up and all shares down in proportion.
        return slopes.sub_((slopes * shares).sum(2, keepdim=True)).mul_(shares)

    def reached(self, weights: Tensor, judged: Tensor) -> Tensor:
        reached = -1.0  # never better, where SentEval finds NaN
        with suppress(DataError):
            scores = expected_scores(self.features[judged[0]] @ weights[0].T)
            reached = pearson(scores, self.gold[judged[0].numpy()])
        return torch.tensor([[reached]], dtype=torch.float64)


def expected_scores(logits: Tensor) -> Vector:
    """``(N,)``, from 1 to 5, of what a regressor says of the :data:`SCORES`, ``(N, 5)``."""
    return logits.softmax(1).double().numpy() @ SCORES


def _scores(weights: Tensor, rows: Tensor) -> Tensor:
    """``(F, P * C, b)``, what the classifiers ``(F, P * C, D)`` say of ``rows (F, b, D)``."""
    if weights.shape[1] > _FEW_ROWS:
        return torch.bmm(rows, weights.transpose(1, 2).contiguous()).transpose(1, 2).contiguous()
    return torch.bmm(weights, rows.transpose(1, 2))


@dataclass(frozen=True, slots=True)
class LabelledFeatures:
    """Feature vectors ``(N, width)`` of one part and their classes ``(N,)``."""

    features: NDArray[np.float32]
    labels: Rows


@dataclass(frozen=True, slots=True)
class Accuracy:
    """What a classifier reached on a task."""

    dev: float  # accuracy on the rows that chose the penalty; the mean over the folds
    test: float  # accuracy on the test rows; the mean over the folds where there are folds
    predicted: Rows  # classes ``(N,)`` of the test rows
    # ``(N,)``, the fold that each of them is the test row of; None without folds
    folds: Rows | None = None


def cross_validate(
    parts: Mapping[str, LabelledFeatures], classes: int, preset: Preset, device: torch.device | str
) -> Accuracy:
    """Judge features by a task's parts.

    ``all``: nested cross-validation. ``train`` and ``test``: folds of train choose the penalty, and
    train is learned again with 5 % held out. With ``dev`` besides, that part chooses penalty and
    end; SentEval then trains again, which is the same classifier from the same seed.
    """
    labels = np.concatenate([part.labels for part in parts.values()])
    features = torch.from_numpy(np.concatenate([part.features for part in parts.values()]))
    problems = Problems(features.to(device, torch.float32), torch.from_numpy(labels), classes)

    if "all" in parts:
        count = preset.folds
        outer = stratified_folds(labels, count, SEED)
        inner = [fold for some, _ in outer for fold in judged_folds(some, labels, count, SEED)]
        searched = problems.fit(inner, [PENALTIES] * len(inner), preset)
        chosen = [_best(it) for it in searched.accuracy.numpy().reshape(count, count, -1)]
        last = [with_held_out(train, preset.seed) for train, _ in outer]
        fitted = problems.fit(last, [[PENALTIES[best]] for best in chosen], preset)
        predicted, fold_of, right = np.empty_like(labels), np.empty_like(labels), []
        for fold, (weights, (_, judged)) in enumerate(zip(fitted.weights, outer, strict=True)):
            predicted[judged], fold_of[judged] = problems.predict(weights[0], judged), fold
            right.append(float((predicted[judged] == labels[judged]).mean()))
        dev = searched.accuracy.numpy()[np.arange(len(inner)), np.repeat(chosen, count)]
        return Accuracy(float(dev.mean()), float(np.mean(right)), predicted, fold_of)
    ends = np.cumsum([len(part.labels) for part in parts.values()])
    train, *stopping, test = np.split(np.arange(len(labels)), ends[:-1])
    folds = [Fold(train, it) for it in stopping]
    folds = folds or judged_folds(train, labels, preset.folds, preset.seed)
    fitted = problems.fit(folds, [PENALTIES] * len(folds), preset)
    best = _best(fitted.accuracy.numpy())
    weights = fitted.weights[0, best]
    if not stopping:
        last = [with_held_out(train, preset.seed)]
        weights = problems.fit(last, [[PENALTIES[best]]], preset).weights[0, 0]
    predicted = problems.predict(weights, test)
    reached = float((predicted == labels[test]).mean())
    return Accuracy(float(fitted.accuracy[:, best].mean()), reached, predicted)


def _best(accuracy: NDArray[np.float64]) -> int:
    """Which penalty: the first of the best, of means rounded to 0.01 points as SentEval's are."""
    return int(np.argmax([round(100 * mean, 2) for mean in accuracy.mean(axis=0)]))
