"""Accuracies of the transfer tasks: each distinct sentence encoded once, then classifiers.

Shapes: N sentences or pairs of a part, D embedding width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from contrasent.errors import CheckpointError, ConfigError, DataError, pick
from contrasent.evaluate.described import PRECISIONS, Embeddings, Encoder, of_encoder
from contrasent.evaluate.read import how_to_get_data
from contrasent.evaluate.sts import Problem, Scores
from contrasent.evaluate.tasks import TaskName
from contrasent.evaluate.transfer_folds import Rows
from contrasent.evaluate.transfer_presets import Protocol
from contrasent.evaluate.transfer_procedure import Labelled, Reached, reach
from contrasent.evaluate.transfer_read import FOLDED, Part, TransferTask
from contrasent.evaluate.transfer_tasks import load_transfers, transfer_names
from contrasent.records import Record


@dataclass(frozen=True, slots=True)
class _Accuracy:
    """A number on its way into a record."""

    split: str
    metric: str
    value: float
    count: int


class TransferTasks:
    """Tasks read once, to be scored as often as one likes."""

    def __init__(
        self,
        tasks: Sequence[TransferTask],
        names: Sequence[TaskName],
        protocol: Protocol | None = None,
    ) -> None:
        """Keep what to score and how.

        Args:
            tasks: what was read.
            names: tasks and splits that are to have records.
            protocol: classifier, preset and seed; SentEval's preset ``test`` by default.
        """
        self.tasks = tuple(tasks)
        self._names = tuple(names)
        self._protocol = protocol or Protocol()

    def records(
        self,
        encoder: Encoder,
        *,
        precision: str = "fp32",
        seed: int | None = None,
        show_progress: bool = False,
    ) -> Scores:
        """Accuracy of every task and split, and F1 of MRPC's test part.

        A task too small for the folds has no record; the problem says so.

        Args:
            encoder: what is measured.
            precision: ``fp32``, ``bf16``, or what the encoder's engine computes in.
            seed: the seed of the training run that made the encoder, for the records.
            show_progress: a progress bar while encoding.

        Raises:
            ConfigError: no such precision.
            CheckpointError: an embedding has a NaN or infinite number, or all are the same.
            MissingExtraError: scikit-learn is asked for and not installed.
        """
        pick("precision", precision, PRECISIONS)
        records: list[Record] = []
        problems: list[Problem] = []
        for task in self.tasks:
            parts = {
                name: _labelled(task, part, encoder, precision, show_progress)
                for name, part in task.parts.items()
            }
            device = getattr(encoder, "device", "cpu")
            try:
                reached = reach(parts, task.classes, self._protocol, device)
            except DataError as error:
                problems.append(Problem(task.name, f"{task.name}: {error}"))
                continue
            records += [
                self._record(encoder, task, found, precision, seed)
                for found in _accuracies(task, reached)
                if TaskName(task.name, found.split) in self._names
            ]
        return Scores(tuple(records), tuple(problems))

    def _record(
        self,
        encoder: Encoder,
        task: TransferTask,
        found: _Accuracy,
        precision: str,
        seed: int | None,
    ) -> Record:
        return Record(
            task=task.name,
            split=found.split,
            metric=found.metric,
            aggregation="mean" if _over_folds(task, found.split) else "all",
            value=found.value,
            pairs=found.count,
            classifier=self._protocol.described(),
            data_sha256=task.sha256,
            **of_encoder(encoder, precision, seed),
        )


def evaluate_transfer(  # noqa: PLR0913 - what the command takes, by name
    encoder: Encoder,
    tasks: Sequence[str] = ("transfer",),
    data_dir: str | Path | None = None,
    *,
    precision: str = "fp32",
    splits: Sequence[str] = ("test",),
    seed: int | None = None,
    protocol: Protocol | None = None,
    show_progress: bool = False,
) -> list[Record]:
    """Score an encoder on SentEval's transfer tasks.

    Args:
        encoder: what is measured; the mode it is in (training or not) stays as it is.
        tasks: as :func:`contrasent.evaluate.transfer_tasks.transfer_names` takes them.
        data_dir: as :func:`contrasent.evaluate.run.evaluate`.
        precision: ``fp32``, ``bf16``, or what the encoder's engine computes in.
        splits: splits of the tasks named without one.
        seed: the seed of the training run that made the encoder, for the records.
        protocol: classifier, preset and seed; SentEval's preset ``test`` by default.
        show_progress: a progress bar while encoding.

    Raises:
        ConfigError: a name is no transfer task, or a precision is unknown.
        DataError: a task's data is missing, damaged or too small.
        CheckpointError: an embedding has a NaN or infinite number, or all are the same.
    """
    names, others = transfer_names(tasks, splits)
    if others or not names:
        raise ConfigError(f"no transfer task: {', '.join(others) or 'an empty list'}")
    loaded = load_transfers(names, data_dir)
    problems = list(loaded.problems)
    if not problems:
        found = TransferTasks(loaded.tasks, names, protocol)
        scores = found.records(encoder, precision=precision, seed=seed, show_progress=show_progress)
        problems = list(scores.problems)
    if problems:
        remedy = [how_to_get_data()] if any(problem.missing for problem in problems) else []
        raise DataError("; ".join([*(problem.message for problem in problems), *remedy]))
    return list(scores.records)


def _labelled(
    task: TransferTask, part: Part, encoder: Encoder, precision: str, show_progress: bool
) -> Labelled:
    embeddings = _embed(task, part, encoder, precision, show_progress)
    if task.of_pairs:
        first, second = np.split(embeddings, 2)
        embeddings = np.concatenate([np.abs(first - second), first * second], axis=1)
    return Labelled(embeddings, part.labels)


def _embed(
    task: TransferTask, part: Part, encoder: Encoder, precision: str, show_progress: bool
) -> Embeddings:
    """``(len(part.texts), D)``.

    Unlike a cosine, a classifier has a use for a zero vector: it is that of a sentence without
    known words.
    """
    places: dict[str, int] = {}
    for text in part.texts:
        places.setdefault(text, len(places))
    found = encoder.encode(list(places), precision=precision, show_progress=show_progress)
    if found.ndim != 2 or len(found) != len(places):
        raise CheckpointError(
            f"{encoder.name} gave a matrix {found.shape} for {len(places)} sentences"
        )
    finite = np.isfinite(found).all(axis=1)
    if not finite.all():
        text = list(places)[int(np.argmin(finite))]
        raise CheckpointError(
            f"{encoder.name} gives {int((~finite).sum())} of {len(finite)} sentences of "
            f"{task.name} an embedding with NaN or infinite numbers, so there is no accuracy; the "
            f"first is {text!r}"
        )
    if len(found) > 1 and (found == found[0]).all():
        raise CheckpointError(
            f"{encoder.name} gives all {len(found)} sentences of {task.name} the same embedding, "
            "so there is nothing to classify them by"
        )
    embeddings: Embeddings = found[[places[text] for text in part.texts]].astype(np.float32)
    return embeddings


def _accuracies(task: TransferTask, reached: Reached) -> list[_Accuracy]:
    dev, test = _judging(task)
    found = [
        _Accuracy("dev", "accuracy", reached.dev, len(dev.labels)),
        _Accuracy("test", "accuracy", reached.test, len(test.labels)),
    ]
    if task.of_pairs and reached.predicted is not None:
        f1 = _f1(reached.predicted, test.labels)
        found.append(_Accuracy("test", "f1", f1, len(test.labels)))
    return found


def _judging(task: TransferTask) -> tuple[Part, Part]:
    """The parts that dev and test accuracies are of."""
    parts = task.parts
    test = parts.get("test", parts.get("all"))
    dev = parts.get("dev", parts.get("train", parts.get("all")))
    if dev is None or test is None:
        raise DataError(f"{task.name} has no part to be judged by")
    return dev, test


def _over_folds(task: TransferTask, split: str) -> bool:
    return task.name in FOLDED or (split == "dev" and "dev" not in task.parts)


def _f1(predicted: Rows, expected: Rows) -> float:
    """Harmonic mean of precision and recall of class 1, of which ``expected`` has some."""
    right = int(((predicted == 1) & (expected == 1)).sum())
    return 2 * right / int((predicted == 1).sum() + (expected == 1).sum())
