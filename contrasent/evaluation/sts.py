"""STS tasks: each distinct sentence encoded once, similarities, rank correlations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

from contrasent.errors import CheckpointError, DataError
from contrasent.evaluation.compare import Comparison, compare
from contrasent.evaluation.embed import (
    Embeddings,
    EncoderUse,
    Problem,
    Scores,
    Similarities,
    correlations,
    distinct,
    influences,
    joint_covariance,
    require_usable,
)
from contrasent.evaluation.intervals import Bootstrap
from contrasent.evaluation.protocols import AGGREGATIONS, Protocol
from contrasent.evaluation.sts_data import Subset, Task, load
from contrasent.evaluation.sts_regressor import Regressor, fit, pair_features, sentevals_order
from contrasent.evaluation.task_names import STS_TASKS, TaskName, sts_names
from contrasent.evaluation.task_types import Options, TaskData, TaskType
from contrasent.metrics import METRICS, pair_similarities
from contrasent.model.lookup_encoders import LookupEncoder
from contrasent.records import Record

Rows = Callable[[Sequence[str]], Embeddings]
"""Embeddings ``(N, D)`` of sentences."""


def sts_scores(
    tasks: Sequence[Task],
    use: EncoderUse,
    protocol: Protocol | None = None,
    bootstrap: Bootstrap | None = None,
) -> Scores:
    """Every metric, aggregation and subset of every task; each distinct sentence is encoded once.

    A task for which a number does not exist is a problem. The protocol's numbers are named as such,
    and have intervals if there is a bootstrap. CheckpointError if in every task an embedding has a
    NaN or infinite number, or is zero.
    """
    read = [part for task in tasks for part in (task, *(task.fitted or ()))]
    sentences, _ = distinct(text for task in read for text in task.sentences)
    places = {sentence: place for place, sentence in enumerate(sentences)}
    embeddings, zeros = use.encode(sentences), isinstance(use.encoder, LookupEncoder)

    def rows(texts: Sequence[str]) -> Embeddings:
        return embeddings[[places[text] for text in texts]]

    regressors: dict[str, Regressor] = {}
    parts: list[Scores] = []
    damaged: list[CheckpointError] = []
    for task in tasks:
        label = task.name.label
        try:
            for part in (task, *(task.fitted or ())):
                texts, heading = list(dict.fromkeys(part.sentences)), part.name.heading
                require_usable(use.encoder.name, texts, rows(texts), of=heading, zeros=zeros)
            columns = _similarities(task, use, rows, regressors)
            records = tuple(_records(task, columns, use, protocol, bootstrap))
            parts.append(Scores(records, similarities={label: columns}, notes=_notes(task, rows)))
        except (CheckpointError, DataError) as error:
            parts.append(Scores(problems=(Problem(label, str(error)),)))
            damaged += [error] if isinstance(error, CheckpointError) else []
    if len(damaged) == len(tasks):
        raise CheckpointError("\n".join(map(str, damaged)))
    scores = Scores.together(parts)
    return _with_covariances(tasks, scores) if bootstrap else scores


def _similarities(
    task: Task, use: EncoderUse, rows: Rows, regressors: dict[str, Regressor]
) -> Similarities:
    """By the encoder's similarity, or as the task's regressor predicts; it is kept by name."""
    if task.fitted is None:
        sides = ((rows(it.first), rows(it.second)) for it in task.subsets)
        return tuple(pair_similarities(use.similarity, *both, zeros=True) for both in sides)
    if task.name.split in ("train", "all"):
        raise DataError(
            f"{task.name.heading}: its regressor is fitted to the training split, so it has "
            "no score there; ask for test or dev, or for cosines with --no-regressor"
        )

    def features(subset: Subset, order: Sequence[int] | slice = slice(None)) -> Embeddings:
        return pair_features(rows(subset.first)[order], rows(subset.second)[order])

    name = task.name.name
    if name not in regressors:
        ordered = []
        for part in task.fitted:
            (subset,) = part.subsets
            order = sentevals_order(subset.first, subset.second, subset.gold)
            ordered.append((features(subset, order), subset.gold[order]))
        train, dev = ordered
        try:
            regressors[name] = fit(train, dev)
        except DataError as error:
            raise DataError(f"{task.fitted[0].name.heading}: {error}") from error
    (subset,) = task.subsets
    return (regressors[name].expected(features(subset)),)


def _records(
    task: Task,
    columns: Similarities,
    use: EncoderUse,
    protocol: Protocol | None,
    bootstrap: Bootstrap | None,
) -> list[Record]:
    records = []
    for metric in METRICS:
        asked = protocol is None or metric in protocol.metrics
        for score in correlations(task, columns, metric, bootstrap if asked else None):
            reported = asked and protocol and protocol.aggregation == score.aggregation
            named = protocol.name if protocol and reported else None
            regressor = "senteval" if task.fitted else None
            record = score.record(task.name, task.sha256, use, protocol=named, regressor=regressor)
            records.append(record)
    return records


def _notes(task: Task, rows: Rows) -> tuple[str, ...]:
    first, second = (rows(texts).any(axis=1) for texts in task.sides)
    without = int((~(first & second)).sum())
    note = (
        f"{task.name.heading}: {without} of {len(task.gold)} pairs have a sentence without a "
        "known word; their similarity is 0, as in SentEval"
    )
    return (note,) if without else ()


def _with_covariances(tasks: Sequence[Task], scores: Scores) -> Scores:
    """The scores, whose intervals tell how the errors of the tasks go together."""
    records, of_name = list(scores.records), {task.name: task for task in tasks}
    for metric, aggregation in product(METRICS, AGGREGATIONS):
        numbered = {
            n: it
            for n, it in enumerate(records)
            if it.interval and (it.metric, it.aggregation) == (metric, aggregation)
        }
        if len(numbered) < 2:
            continue
        together = [of_name[TaskName(it.task, it.split)] for it in numbered.values()]
        labels = [task.name.label for task in together]
        moves = [
            influences(task, scores.similarities[label], metric)[aggregation]
            for task, label in zip(together, labels, strict=True)
        ]
        rows = joint_covariance(together, moves).tolist()
        for (n, record), label, row in zip(numbered.items(), labels, rows, strict=True):
            others = {to: it for to, it in zip(labels, row, strict=True) if to != label}
            if record.interval:
                interval = replace(record.interval, covariances=others)
                records[n] = replace(record, interval=interval)
    return replace(scores, records=tuple(records))


class Sts(TaskType[Task]):
    """Correlations."""

    name = "sts"

    def names(self, text: str, options: Options) -> list[TaskName] | None:
        """STS tasks, files and data sets of scored pairs; with all splits if the protocol says."""
        names = sts_names(text, options.splits)
        every = options.protocol.every_split
        return names and [
            TaskName(it.name, "all") if it.split == "test" and it.name in every else it
            for it in names
        ]

    def load(self, names: Sequence[TaskName], options: Options) -> Task:
        """Read one split, and what its regressor needs; a constant score is no score."""
        (name,) = names
        fitted = None
        if options.protocol.regressor and name.name in STS_TASKS and STS_TASKS[name.name].files:
            splits = (TaskName(name.name, split) for split in ("train", "dev"))
            train, dev = (load(split, options.data_dir) for split in splits)
            fitted = train, dev
        task = load(name, options.data_dir, options.columns)
        if (task.gold == task.gold[0]).all():
            raise DataError(
                f"{name.heading}: the score of all {len(task.gold)} pairs is {task.gold[0]:g}, so "
                "there is no correlation; is the right column taken as the score?"
            )
        return replace(task, fitted=fitted)

    def records(self, tasks: Sequence[Task], use: EncoderUse, options: Options) -> Scores:
        return sts_scores(tasks, use, options.protocol, options.bootstrap)

    def score(self, task: Task, use: EncoderUse, options: Options) -> Scores:
        return self.records([task], use, options)

    def compare(
        self,
        read: TaskData[Task],
        scores: tuple[Scores, Scores],
        options: Options,
        bootstrap: Bootstrap,
    ) -> list[Comparison]:
        """One comparison for each metric of the protocol."""
        how, metrics = options.protocol.aggregation, options.protocol.metrics
        return [
            compare(read.tasks, *scores, metric=metric, aggregation=how, bootstrap=bootstrap)
            for metric in metrics
        ]


TASK_TYPE = Sts()
