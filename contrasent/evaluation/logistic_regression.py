"""Logistic regressions of many folds and penalties, trained as one batched problem.

SentEval trains one after the other. Here the folds of equal size form a stack and take their steps
together; the L2 penalties of a fold see the same sentences in the same order, so they share one
product. A fold that has ended makes room for the next.

Shapes: F folds at work, P penalties of each, C classes, D features with a column of ones for the
bias, R = P * C rows of weights, N sentences, b sentences in a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from contrasent.errors import CheckpointError
from contrasent.evaluation.protocols import Fold, Preset, Shuffles

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
