"""Accuracies of the transfer tasks: each distinct sentence encoded once, then classifiers.

Shapes: N sentences or pairs of a part, D embedding width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from contrasent.errors import CheckpointError, DataError
from contrasent.evaluate.described import Embeddings, of_encoder
from contrasent.evaluate.embedded import distinct, encoded, require_usable
from contrasent.evaluate.kinds.base import Options, Use
from contrasent.evaluate.statistics import Ratio, intervals
from contrasent.evaluate.sts import Scores
from contrasent.evaluate.tasks import TaskName
from contrasent.evaluate.transfer_folds import Rows
from contrasent.evaluate.transfer_procedure import Labelled, Reached, reach
from contrasent.evaluate.transfer_read import Part, TransferTask
from contrasent.records import Record


def score_transfer(task: TransferTask, splits: Sequence[str], use: Use, options: Options) -> Scores:
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
    reached = reach(parts, task.classes, options.learning, device)
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


def labelled(task: TransferTask, part: Part, use: Use) -> Labelled:
    """What a classifier sees of a part: embeddings, of pairs |u - v| and u * v as in SentEval.

    Raises:
        CheckpointError: the embeddings cannot be classified.
    """
    embeddings = _embed(part, use)
    if task.of_pairs:
        first, second = np.split(embeddings, 2)
        embeddings = np.concatenate([np.abs(first - second), first * second], axis=1)
    return Labelled(embeddings, part.labels)


def _embed(part: Part, use: Use) -> Embeddings:
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


def _judging(task: TransferTask) -> tuple[Part, Part]:
    """The parts that dev and test accuracies are of."""
    parts = task.parts
    test = parts.get("test", parts.get("all"))
    dev = parts.get("dev", parts.get("train", parts.get("all")))
    if dev is None or test is None:
        raise DataError(f"{task.name} has no part to be judged by")
    return dev, test


def ratios_of(task: TransferTask, reached: Reached, labels: Rows) -> dict[str, Ratio]:
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
