"""Transfer tasks, SentEval's and users': classifiers on frozen embeddings.

Shapes: N sentences or pairs of a part, D embedding width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from contrasent.errors import CheckpointError, ConfigError
from contrasent.evaluation.embed import EncoderUse, Score, Scores, distinct
from contrasent.evaluation.intervals import Ratio, intervals
from contrasent.evaluation.logistic_regression import (
    Accuracy,
    LabelledFeatures,
    cross_validate,
    logistic_regression,
)
from contrasent.evaluation.protocols import Rows
from contrasent.evaluation.sts_regressor import pair_features
from contrasent.evaluation.task_names import (
    CLASSIFY,
    TRANSFER,
    TRANSFER_TASKS,
    TaskName,
    known_tasks,
    names_own_data,
    require_source,
)
from contrasent.evaluation.task_types import Options, TaskType
from contrasent.evaluation.transfer_data import (
    Part,
    TransferData,
    holds_labels,
    load_transfer,
    read_labelled,
)


def labelled(task: TransferData, part: Part, use: EncoderUse) -> LabelledFeatures:
    """Embeddings of a part as a classifier sees them, of pairs |u - v| and u * v as in SentEval.

    A classifier, unlike a cosine, has a use for a zero vector.
    """
    texts, places = distinct(part.texts)
    rows = use.embed(texts, zeros=True)
    if len(rows) > 1 and (rows == rows[0]).all():
        raise CheckpointError(
            f"{use.encoder.name} gives all {len(rows)} sentences the same embedding, so there is "
            "nothing to classify them by"
        )
    embeddings = rows[places].astype(np.float32)
    if task.of_pairs:
        embeddings = pair_features(*np.split(embeddings, 2))
    return LabelledFeatures(embeddings, part.labels)


def ratios_of(task: TransferData, reached: Accuracy, labels: Rows) -> dict[str, Ratio]:
    """The sums that the scores of the test rows are quotients of, by metric."""
    right = (reached.predicted == labels).astype(np.float64)
    weights = np.ones_like(right)
    if reached.folds is not None:
        # The mean over folds: a row counts as much as its fold is small.
        weights = 1 / np.bincount(reached.folds)[reached.folds]
    ratios = {"accuracy": Ratio(right * weights, weights)}
    if task.class_names:
        ratios["macro_f1"] = _f1(reached.predicted, labels, np.arange(task.classes))
    elif task.of_pairs:
        ratios["f1"] = _f1(reached.predicted, labels, [1])
    return ratios


def _f1(predicted: Rows, expected: Rows, classes: ArrayLike) -> Ratio:
    """Harmonic mean of precision and recall of a class, or its mean over classes.

    A class may be absent from a fold, so rows of all folds count together (Forman and Scholz 2010).
    """
    chosen, right = (rows[:, None] == np.asarray(classes) for rows in (predicted, expected))
    return Ratio(2.0 * (chosen & right), chosen.astype(np.float64) + right)


SPLITS = ("dev", "test")
"""``dev`` is the accuracy that chose the penalty, ``test`` that of the test part."""


def _judged_splits(text: str, asked: Sequence[str], needed: object = True) -> list[str]:
    wanted = [split for split in SPLITS[::-1] if split in asked]
    if needed and not wanted:
        raise ConfigError(f"{text!r} has no score on {', '.join(asked)}, only on dev and test")
    return wanted


class Transfer(TaskType[TransferData]):
    """Accuracies of classifiers on frozen embeddings."""

    name = "transfer"

    def names(self, text: str, options: Options) -> list[TaskName] | None:
        """Transfer tasks, on those of the splits that are in :data:`SPLITS`."""
        tasks, split = known_tasks(text)
        if not tasks or tasks[0] not in TRANSFER_TASKS:
            return None
        wanted = _judged_splits(
            text, [split] if split else options.splits, len(tasks) == 1 or split
        )
        return [TaskName(task, name) for name in wanted for task in tasks]

    def sources(self, names: Sequence[TaskName]) -> list[list[TaskName]]:
        """A task's splits come of the same files and the same classifiers."""
        tasks = dict.fromkeys(name.name for name in names)
        return [[name for name in names if name.name == task] for task in tasks]

    def load(self, names: Sequence[TaskName], options: Options) -> TransferData:
        if options.learning.classifier == "sklearn":
            logistic_regression()
        data = self.data(names[0].name, options)
        return replace(data, splits=tuple(name.split for name in names))

    def data(self, name: str, options: Options) -> TransferData:
        """The parts of one task."""
        return load_transfer(name, options.data_dir)

    def score(self, task: TransferData, use: EncoderUse, options: Options) -> Scores:
        """Accuracy of every split; of test rows F1 of pairs, and macro-F1 of a user's own task.

        Intervals are of scores of test rows, by drawing these again, the classifiers as they are.
        Rows of a dev score chose the penalty, so it has no interval, but its difference to that of
        another encoder has.
        """
        parts = {name: labelled(task, part, use) for name, part in task.parts.items()}
        device = getattr(use.encoder, "device", "cpu")
        reached = cross_validate(parts, task.classes, options.learning, device)
        test = task.parts[task.judged_part("test")]
        ratios = ratios_of(task, reached, test.labels) if "test" in task.splits else {}
        sure = intervals(ratios, options.bootstrap, task.name)
        values = {("dev", "accuracy"): reached.dev_rows.value, ("test", "accuracy"): reached.test}
        values |= {("test", of): each.value for of, each in ratios.items() if of != "accuracy"}
        how = options.learning.described()
        records = tuple(
            Score(
                metric=metric,
                value=value,
                pairs=len(task.parts[task.judged_part(split)].labels),
                aggregation="mean" if metric == "accuracy" and task.over_folds(split) else "all",
                interval=sure.get(metric) if split == "test" else None,
            ).record(TaskName(task.name, split), task.sha256, use, classifier=how)
            for (split, metric), value in values.items()
            if split in task.splits
        )
        kept = {(TaskName(task.name), of): ratio for of, ratio in ratios.items()}
        if "dev" in task.splits:
            kept[TaskName(task.name, "dev"), "accuracy"] = reached.dev_rows
        return Scores(records, ratios=kept)

    def averaged(self, names: Sequence[TaskName]) -> list[TaskName]:
        """The test parts of the papers' tasks; users' own have little in common."""
        return [name for name in names if name.split == "test" and name.name in TRANSFER]


class LabelledTask(Transfer):
    """Accuracy and macro-F1 of classifiers on frozen embeddings."""

    name = "labelled"

    def names(self, text: str, options: Options) -> list[TaskName] | None:
        """The task after :data:`CLASSIFY`, or a file or data set that :func:`holds_labels` knows.

        Splits other than dev and test are left out; a ConfigError if none is left.
        """
        text = text.strip()
        if text.startswith(CLASSIFY):
            require_source(text, CLASSIFY, "FILE or classify:TRAIN+TEST")
        elif not (names_own_data(text) and holds_labels(text, options.columns)):
            return None
        return [TaskName(text, split) for split in _judged_splits(text, options.splits)]

    def data(self, name: str, options: Options) -> TransferData:
        return read_labelled(name, options.columns)


TASK_TYPE, LABELLED = Transfer(), LabelledTask()
