"""Logistic regressions of many folds and penalties, trained as one batched problem.

SentEval trains one after the other. Here the folds of equal size form a stack and take their steps
together; the L2 penalties of a fold see the same sentences in the same order, so they share one
product. A fold that has ended makes room for the next.

Shapes: F folds at work, P penalties of each, C classes, D features with a column of ones for the
bias, R = P * C rows of weights, N sentences, b sentences in a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from contrasent.errors import CheckpointError
from contrasent.evaluation.protocols import Fold, Preset, Shuffles

State = dict[str, Tensor]
"""By name: ``weights``, ``gradient``, its moments ``first`` and ``second``, each ``(F, R, D)``, and
``steps (F, 1, 1)``, how many were taken, this one included."""

ByFold = dict[str, tuple[Tensor, ...]]
"""Views of the same tensors, one per fold."""


def _adam(_state: State, by_fold: ByFold) -> None:
    """A step of Adam (torch's settings: 1e-3, 0.9, 0.999, 1e-8), each fold at its own step.

    Torch's kernel reads and writes everything once; elementwise operations took four times as long.
    """
    # torch.optim.adam.adam(fused=True) has the same bits, in 123 us for the 46 of its own kernel.
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


def _rmsprop(state: State, _by_fold: ByFold) -> None:
    """A step of RMSprop (torch's settings: 1e-2, 0.99, 1e-8)."""
    second, gradient = state["second"], state["gradient"]
    second.mul_(0.99).addcmul_(gradient, gradient, value=1 - 0.99)
    state["weights"].addcdiv_(gradient, second.sqrt().add_(1e-8), value=-1e-2)


OPTIMISERS: dict[str, Callable[[State, ByFold], None]] = {"adam": _adam, "rmsprop": _rmsprop}


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
        """Append the column of ones to ``features (N, width)``, on the device that computes.

        CheckpointError if a number is so large that its square is infinite.
        """
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
        shape = (*decay.shape, self.classes, self.features.shape[1])
        weights = self.features.new_zeros(shape)
        accuracy = torch.zeros(decay.shape, dtype=torch.float64)
        sizes = dict.fromkeys((len(fold.train), fold.drawn) for fold in folds)
        for size in sizes:
            waiting = deque(
                (number, fold)
                for number, fold in enumerate(folds)
                if (len(fold.train), fold.drawn) == size
            )
            for ended in _Stack(self, decay, Shuffles(*size, seed), preset, seed).run(waiting):
                weights[ended.fold], accuracy[ended.fold] = ended.weights, ended.accuracy
        return FittedClassifiers(weights, accuracy)

    def predict(self, weights: Tensor, rows: Tensor) -> Tensor:
        """Classes ``(n,)`` of ``rows (n,)`` by a classifier ``(C, D)``."""
        return (self.features[rows.to(self.features.device)] @ weights.T).argmax(dim=1)


@dataclass(frozen=True, slots=True)
class _EndedFold:
    fold: int
    weights: Tensor
    accuracy: Tensor


class _Stack:
    """Folds of one size at work; each may be in another epoch."""

    def __init__(
        self, problems: Problems, decay: Tensor, shuffles: Shuffles, preset: Preset, seed: int
    ) -> None:
        self._problems, self._decay, self._shuffles = problems, decay, shuffles
        self._preset = preset
        self._start = problems.start(seed).repeat(decay.shape[1], 1)
        self._numbers: list[int] = []
        self._folds: list[Fold] = []
        self._epochs: list[int] = []
        device, penalties = problems.features.device, decay.shape[1]
        empty = self._start.new_zeros(0, *self._start.shape)
        self._state = {
            **dict.fromkeys(("weights", "gradient", "first", "second", "best"), empty),
            "steps": torch.zeros(0, 1, 1, device=device),
            "accuracy": torch.zeros(0, penalties, dtype=torch.float64, device=device),
            "misses": torch.zeros(0, penalties, dtype=torch.int64, device=device),
            "ended": torch.zeros(0, penalties, dtype=torch.bool, device=device),
        }
        row = preset.batch * problems.features.shape[1] * 4
        allowed = _CPU_BATCH_BYTES if device.type == "cpu" else _BATCH_BYTES
        self._places = max(1, allowed // row)
        self._step = OPTIMISERS[preset.optimiser]

    def run(self, waiting: deque[tuple[int, Fold]]) -> list[_EndedFold]:
        """Train all that wait; returns them in the order in which they ended."""
        ended: list[_EndedFold] = []
        while waiting or self._numbers:
            self._admit(waiting)
            for _ in range(self._preset.epoch_size):
                self._epoch()
            self._judge()
            ended += self._retire()
        return ended

    def _admit(self, waiting: deque[tuple[int, Fold]]) -> None:
        count = min(len(waiting), self._places - len(self._numbers))
        if count <= 0:
            return
        for number, fold in [waiting.popleft() for _ in range(count)]:
            self._numbers.append(number)
            self._folds.append(fold)
            self._epochs.append(0)
        fresh = {name: held.new_zeros(count, *held.shape[1:]) for name, held in self._state.items()}
        fresh["weights"] += self._start
        fresh["accuracy"] -= 1
        self._state = {name: torch.cat([held, fresh[name]]) for name, held in self._state.items()}
        device = self._problems.features.device
        trained = [torch.from_numpy(fold.train) for fold in self._folds]
        self._rows = torch.stack(trained).to(device)
        judged = [torch.from_numpy(fold.held_out) for fold in self._folds]
        # No label is -1, so padding is never right.
        self._judged = torch.nn.utils.rnn.pad_sequence(judged, True, -1).to(device)
        self._of_stack()

    def _of_stack(self) -> None:
        """What depends on which folds are at work."""
        folds, classes = len(self._numbers), self._problems.classes
        decay = self._decay[self._numbers].repeat_interleave(classes, dim=1)
        self._weight_decay = decay.unsqueeze(-1)
        self._buffer = self._start.new_empty(folds * self._preset.batch, self._start.shape[1])
        self._by_fold = {name: held.unbind() for name, held in self._state.items()}

    def _epoch(self) -> None:
        """One pass of every fold over its rows, in the order of its own epoch."""
        state, problems = self._state, self._problems
        permuted = torch.from_numpy(self._shuffles.epochs(self._epochs)).to(self._rows.device)
        order = self._rows.gather(1, permuted.long())
        folds, count = order.shape
        batch, weights = self._preset.batch, state["weights"]
        penalties = self._decay.shape[1]
        for start in range(0, count, batch):
            numbers = order[:, start : start + batch]
            chosen, size = numbers.reshape(-1), numbers.shape[1]
            targets = problems.targets[:, numbers].transpose(0, 1).unsqueeze(1)
            rows = torch.index_select(problems.features, 0, chosen, out=self._buffer[: len(chosen)])
            rows = rows.view(folds, size, -1)
            scores = _scores(weights, rows)
            error = scores.view(folds, penalties, problems.classes, size).softmax(dim=2)
            error.sub_(targets).div_(size)
            gradient = torch.bmm(error.view(folds, -1, size), rows, out=state["gradient"])
            gradient.addcmul_(weights, self._weight_decay)
            state["steps"] += 1
            self._step(state, self._by_fold)
        self._epochs = [number + 1 for number in self._epochs]

    def _judge(self) -> None:
        """Keep the weights that are the best so far; end what has missed too often.

        As in SentEval, misses are never forgotten: what counts is how many there were in all.
        """
        state = self._state
        at_once = _BATCH_BYTES // (4 * len(self._folds) * self._start.shape[1])
        parts = torch.split(self._judged, max(1, at_once), dim=1)
        right = torch.stack([self._right(part) for part in parts]).sum(dim=0)
        accuracy = right / (self._judged >= 0).sum(dim=1, keepdim=True)
        better = (accuracy > state["accuracy"]) & ~state["ended"]
        missed = ~better & ~state["ended"]
        state["ended"] |= missed & (state["misses"] >= self._preset.tenacity)
        state["misses"] += missed
        state["accuracy"] = torch.where(better, accuracy, state["accuracy"])
        chosen = better.repeat_interleave(self._problems.classes, dim=1).unsqueeze(-1)
        state["best"] = torch.where(chosen, state["weights"], state["best"])

    def _right(self, judged: Tensor) -> Tensor:
        """``(F, P)`` float64: of how many rows ``judged (F, n)`` each classifier says the class."""
        problems = self._problems
        scores = _scores(self._state["weights"], problems.features[judged])
        predicted = scores.view(len(judged), -1, problems.classes, judged.shape[1]).argmax(dim=2)
        expected = problems.labels[judged].masked_fill(judged < 0, -1)
        return (predicted == expected.unsqueeze(1)).sum(dim=2).double()

    def _retire(self) -> list[_EndedFold]:
        """Take out the folds all of whose penalties have ended."""
        spent = torch.tensor([number > self._preset.max_epochs for number in self._epochs])
        over = spent | self._state["ended"].all(dim=1).cpu()
        if not over.any():
            return []
        accuracy = self._state["accuracy"].cpu()
        shape = len(over), -1, self._problems.classes, self._start.shape[1]
        best = self._state["best"].view(shape)
        retired = [
            _EndedFold(self._numbers[place], best[place].clone(), accuracy[place])
            for place in over.nonzero().flatten().tolist()
        ]
        left = (~over).nonzero().flatten().tolist()
        self._numbers = [self._numbers[place] for place in left]
        self._folds = [self._folds[place] for place in left]
        self._epochs = [self._epochs[place] for place in left]
        self._state = {name: held[left] for name, held in self._state.items()}
        self._rows, self._judged = self._rows[left], self._judged[left]
        self._of_stack()
        return retired


def _scores(weights: Tensor, rows: Tensor) -> Tensor:
    """``(F, P * C, b)``, what the classifiers ``(F, P * C, D)`` say of ``rows (F, b, D)``."""
    if weights.shape[1] > _FEW_ROWS:
        by_row = torch.bmm(rows, weights.transpose(1, 2).contiguous())
        return by_row.transpose(1, 2).contiguous()
    return torch.bmm(weights, rows.transpose(1, 2))
