"""SentEval's transfer tasks: classifiers on frozen embeddings.

Shapes: N sentences or pairs of a part, D embedding width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from contrasent.errors import CheckpointError, ConfigError, DataError
from contrasent.evaluation.bootstrap import Ratio, intervals
from contrasent.evaluation.cross_validation import (
    Accuracy,
    LabelledFeatures,
    cross_validate,
    logistic_regression,
)
from contrasent.evaluation.embed import (
    DescribedEncoder,
    Embeddings,
    distinct,
    encoded,
    of_encoder,
    require_usable,
)
from contrasent.evaluation.protocols import Rows, TransferProtocol
from contrasent.evaluation.sts import Scores
from contrasent.evaluation.task_names import TaskName, known_tasks
from contrasent.evaluation.task_types import EncoderUse, OneByOne, Options, TaskText
from contrasent.evaluation.transfer_data import TRANSFER_TASKS, Part, TransferData, load_transfer
from contrasent.evaluation.vectors import Given, Side
from contrasent.records import Record


def score_transfer(
    task: TransferData, splits: Sequence[str], use: EncoderUse, options: Options
) -> Scores:
    """Accuracy of a task's splits; of test rows F1 of MRPC, and macro-F1 of a user's own task.

    Args:
        task: what was read.
        splits: which are to have records, of ``dev`` and ``test``.
        use: the encoder.
        options: name the classifier, its preset and seed, and how intervals are computed: of
            scores of test rows, by drawing these again, the classifiers as they are. Rows of a
            dev score chose the penalty, so it has no interval.

    Raises:
        CheckpointError: an embedding has a NaN or infinite number, or all are the same.
        DataError: the task is too small for the folds.
        MissingExtraError: scikit-learn is asked for and not installed.
    """
    parts = {name: labelled(task, part, use) for name, part in task.parts.items()}
    device = getattr(use.encoder, "device", "cpu")
    reached = cross_validate(parts, task.classes, options.learning, device)
    dev, test = _judging(task)
    ratios = ratios_of(task, reached, test.labels) if "test" in splits else {}
    sure = intervals(ratios, options.bootstrap, task.name)
    found = {("dev", "accuracy"): reached.dev, ("test", "accuracy"): reached.test}
    found |= {("test", of): each.value for of, each in ratios.items() if of != "accuracy"}
    records = [
        Record(
            task=task.name,
            split=split,
            metric=metric,
            aggregation="mean" if metric == "accuracy" and task.over_folds(split) else "all",
            value=value,
            pairs=len((dev if split == "dev" else test).labels),
            interval=sure.get(metric) if split == "test" else None,
            classifier=options.learning.described(),
            data_sha256=task.sha256,
            **of_encoder(use.encoder, use.precision, use.seed),
        )
        for (split, metric), value in found.items()
        if split in splits
    ]
    name = TaskName(task.name)
    return Scores(tuple(records), (), ratios={(name, of): ratio for of, ratio in ratios.items()})


def labelled(task: TransferData, part: Part, use: EncoderUse) -> LabelledFeatures:
    """What a classifier sees of a part: embeddings, of pairs |u - v| and u * v as in SentEval.

    Raises:
        CheckpointError: the embeddings cannot be classified.
    """
    embeddings = _embed(part, use)
    if task.of_pairs:
        first, second = np.split(embeddings, 2)
        embeddings = np.concatenate([np.abs(first - second), first * second], axis=1)
    return LabelledFeatures(embeddings, part.labels)


def _embed(part: Part, use: EncoderUse) -> Embeddings:
    """``(len(part.texts), D)``.

    Unlike a cosine, a classifier has a use for a zero vector: it is that of a sentence without
    known words.
    """
    name, (texts, places) = use.encoder.name, distinct(part.texts)
    found = encoded(use.encoder, texts, precision=use.precision, show_progress=use.show_progress)
    require_usable(name, texts, found, zeros=True)
    if len(found) > 1 and (found == found[0]).all():
        raise CheckpointError(
            f"{name} gives all {len(found)} sentences the same embedding, so there is nothing to "
            "classify them by"
        )
    return found[places].astype(np.float32)


def _judging(task: TransferData) -> tuple[Part, Part]:
    """The parts that dev and test accuracies are of."""
    parts = task.parts
    test = parts.get("test", parts.get("all"))
    dev = parts.get("dev", parts.get("train", parts.get("all")))
    if dev is None or test is None:
        raise DataError(f"{task.name} has no part to be judged by")
    return dev, test


def ratios_of(task: TransferData, reached: Accuracy, labels: Rows) -> dict[str, Ratio]:
    """What the scores of the test rows are sums of, by metric."""
    right = (reached.predicted == labels).astype(np.float64)
    weights = np.ones_like(right)
    if reached.folds is not None:
        # The mean over folds: a row counts as much as its fold is small.
        weights = 1 / np.bincount(reached.folds)[reached.folds]
    found = {"accuracy": Ratio(right * weights, weights)}
    if task.own:
        return {**found, "macro_f1": _f1(reached.predicted, labels, np.arange(task.classes))}
    return {**found, "f1": _f1(reached.predicted, labels, [1])} if task.of_pairs else found


def _f1(predicted: Rows, expected: Rows, classes: ArrayLike) -> Ratio:
    """Harmonic mean of precision and recall of a class, or its mean over classes.

    A class may be absent from a fold, so rows of all folds count together (Forman and Scholz 2010).
    """
    found, right = (rows[:, None] == np.asarray(classes) for rows in (predicted, expected))
    return Ratio(2.0 * (found & right), found.astype(np.float64) + right)


SPLITS = ("dev", "test")
"""``dev`` is the accuracy that chose the penalty, ``test`` that of the test part."""


@dataclass(frozen=True, slots=True)
class TransferSplit:
    """A task, and the splits that are to have records."""

    task: TransferData
    splits: tuple[str, ...]


class Transfer(OneByOne[TransferSplit]):
    """Accuracies of classifiers on frozen embeddings."""

    name = "transfer"
    place = 20

    def names(self, asked: Sequence[str], options: Options) -> tuple[list[TaskName], list[str]]:
        """Pick the transfer tasks out of what a user asked for.

        Args:
            asked: names of tasks: ``transfer`` (all seven), one such as ``mr`` or ``SST-2``, one
                with its split such as ``mr-dev``, and anything else.
            options: splits other than :data:`SPLITS` are left out.

        Raises:
            ConfigError: a transfer task is named with another split, or none is left.
        """
        found: list[TaskName] = []
        others: list[str] = []
        for text in asked:
            members, split = known_tasks(text)
            if not members or members[0] not in TRANSFER_TASKS:
                others.append(text)
                continue
            if split and split not in SPLITS:
                raise ConfigError(
                    f"{text!r}: a transfer task has no score on its {split} split, only dev and "
                    "test"
                )
            wanted = (split,) if split else [n for n in SPLITS[::-1] if n in options.splits]
            found += [TaskName(member, name) for name in wanted for member in members]
        if asked and not found and not others:
            raise ConfigError(
                f"no task to score: {', '.join(asked)} with split {', '.join(options.splits)} "
                "names none; transfer tasks have a dev and a test split"
            )
        return list(dict.fromkeys(found)), others

    def sources(self, names: Sequence[TaskName]) -> list[list[TaskName]]:
        """A task's splits come of the same files and the same classifiers."""
        tasks = dict.fromkeys(name.name for name in names)
        return [[name for name in names if name.name == task] for task in tasks]

    def load(self, names: Sequence[TaskName], options: Options) -> TransferSplit:
        """Read one task.

        Raises:
            MissingExtraError: scikit-learn is asked for and not installed.
        """
        if options.learning.classifier == "sklearn":
            logistic_regression()
        task = load_transfer(names[0].name, options.data_dir)
        return TransferSplit(task, tuple(name.split for name in names))

    def score(self, task: TransferSplit, use: EncoderUse, options: Options) -> Scores:
        """Accuracy of every split, and F1 of MRPC's test part."""
        return score_transfer(task.task, task.splits, use, options)

    def averaged(self, names: Sequence[TaskName]) -> list[TaskName]:
        """The test parts of the papers' tasks."""
        return [n for n in names if n.split == "test" and TRANSFER_TASKS[n.name].papers]

    def named(self, task: TransferSplit) -> TaskName:
        """The task, whatever its splits."""
        return TaskName(task.task.name)

    def texts(self, task: TransferSplit) -> Iterator[TaskText]:
        """The parts that the accuracies are of."""
        parts = [part for split in task.splits for part in _part(task.task, split)]
        for name in dict.fromkeys(parts):
            texts = task.task.parts[name].texts
            half = len(texts) // 2
            pairs = zip(texts[:half], texts[half:], strict=True) if task.task.of_pairs else ()
            yield TaskText(task.task.name, name, texts, list(pairs))

    def given(self, task: TransferSplit) -> Given:
        """The sentences of all files; of pairs all first ones, then all second ones."""
        heading = TaskName(task.task.name).heading
        sides = tuple(zip(*task.task.given, strict=True))
        said = ("first sentences", "second sentences") if len(sides) == 2 else ("sentences",)
        return Given(heading, tuple(map(Side, said, sides)))


TASK_TYPE = Transfer()


def evaluate_transfer(  # noqa: PLR0913 - what the command takes, by name
    encoder: DescribedEncoder,
    tasks: Sequence[str] = ("transfer",),
    data_dir: str | Path | None = None,
    *,
    precision: str = "fp32",
    splits: Sequence[str] = ("test",),
    seed: int | None = None,
    protocol: TransferProtocol | None = None,
    show_progress: bool = False,
) -> list[Record]:
    """Score an encoder on SentEval's transfer tasks.

    Args:
        encoder: what is measured; the mode it is in (training or not) stays as it is.
        tasks: as :meth:`Transfer.names` takes them.
        data_dir: as :func:`contrasent.evaluation.sts_suite.evaluate`.
        precision: ``fp32``, ``bf16``, or what the encoder's engine computes in.
        splits: splits of the tasks named without one.
        seed: the seed of the training run that made the encoder, for the records.
        protocol: classifier, preset and seed; SentEval's preset ``test`` by default.
        show_progress: a progress bar while encoding.

    Raises:
        ConfigError: a name is no transfer task, or a precision is unknown.
        DataError: a task's data is missing, damaged or too small.
        CheckpointError: an embedding has a NaN or infinite number, or all are the same.
        MissingExtraError: scikit-learn is asked for and not installed.
    """
    use = EncoderUse(encoder, precision, seed, show_progress)
    options = Options(data_dir, splits, learning=protocol or TransferProtocol())
    return TASK_TYPE.evaluate(use, tasks, options)


def _part(task: TransferData, split: str) -> list[str]:
    """The part that a split's accuracy is of: the one of that name, or what stands in for it."""
    wanted = ("test", "all") if split == "test" else ("dev", "train", "all")
    return [part for part in wanted if part in task.parts][:1]
