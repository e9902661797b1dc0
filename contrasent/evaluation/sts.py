"""STS tasks: each distinct sentence encoded once, similarities, rank correlations.

Shapes: N distinct sentences of all tasks, D embedding width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import cast

from contrasent.errors import CheckpointError, DataError
from contrasent.evaluation.compare import Comparison, compare
from contrasent.evaluation.embed import (
    DescribedEncoder,
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
from contrasent.evaluation.sts_data import Subset, Task, load, require_different
from contrasent.evaluation.sts_regressor import Pairs, Regressor, fit, sentevals_order
from contrasent.evaluation.task_names import STS_TASKS, TaskName, sts_names
from contrasent.evaluation.task_types import Options, TaskData, TaskText, TaskType
from contrasent.evaluation.vectors import RowLayout
from contrasent.metrics import METRICS, pair_similarities
from contrasent.model.conventions import similarity_of
from contrasent.model.static_encoder import LookupEncoder
from contrasent.records import Interval, Record


class StsTasks:
    """Tasks read once, to be scored as often as one likes."""

    metric = "spearman"  # of :meth:`score`

    def __init__(self, tasks: Sequence[Task]) -> None:
        """Collect the sentences."""
        self.tasks = tuple(tasks)
        read = [part for task in tasks for part in (task, *(task.fitted or ()))]
        self.sentences, _ = distinct(text for task in read for text in task.sentences)
        self._places = {sentence: place for place, sentence in enumerate(self.sentences)}

    def score(self, encoder: DescribedEncoder, *, precision: str = "fp32") -> dict[str, float]:
        """One number per task, by its label, such as ``{"stsb-dev": 0.81}``.

        ConfigError if there is no such precision; CheckpointError if an embedding has a NaN or
        infinite number, or is zero; DataError if a number does not exist because all cosines are
        equal.
        """
        embeddings = EncoderUse(encoder, precision).encode(self.sentences)
        for task in self.tasks:
            self._require_usable(encoder, task, embeddings)
        return {
            task.name.label: score.value
            for task in self.tasks
            for score in correlations(task, self._compared(task, encoder, embeddings), self.metric)
            if score.aggregation == "all"
        }

    def records(
        self, use: EncoderUse, protocol: Protocol | None = None, bootstrap: Bootstrap | None = None
    ) -> Scores:
        """Every metric, aggregation and subset of every task.

        A task for which a number does not exist has no record; the problem says why. The protocol's
        numbers are named as such, and have intervals if there is a bootstrap; with a regressor, it
        scores the tasks that have something to fit it to. CheckpointError if in every task an
        embedding has a NaN or infinite number, or is zero.
        """
        embeddings = use.encode(self.sentences)
        regressors: dict[str, Regressor] = {}
        parts: list[Scores] = []
        damaged: list[CheckpointError] = []
        fits = protocol is not None and protocol.regressor
        for task in self.tasks if fits else [replace(it, fitted=None) for it in self.tasks]:
            label = task.name.label
            try:
                column = self._similarities(task, use.encoder, embeddings, regressors)
                records = tuple(_records(task, column, use, protocol, bootstrap))
                notes = self._notes(task, embeddings)
                parts.append(Scores(records, similarities={label: column}, notes=notes))
            except (CheckpointError, DataError) as error:
                parts.append(Scores(problems=(Problem(label, str(error)),)))
                damaged += [error] if isinstance(error, CheckpointError) else []
        if len(damaged) == len(self.tasks):
            raise CheckpointError("\n".join(map(str, damaged)))
        scores = Scores.together(parts)
        return self._with_covariances(scores) if bootstrap else scores

    def _notes(self, task: Task, embeddings: Embeddings) -> tuple[str, ...]:
        first, second = (self._rows(texts, embeddings).any(axis=1) for texts in task.sides)
        without = int((~(first & second)).sum())
        note = (
            f"{task.name.heading}: {without} of {len(task.gold)} pairs have a sentence without a "
            "known word; their similarity is 0, as in SentEval"
        )
        return (note,) if without else ()

    def _with_covariances(self, scores: Scores) -> Scores:
        """The scores, whose intervals tell how the errors of the tasks go together."""
        records = list(scores.records)
        tasks = {task.name: task for task in self.tasks}
        for metric, aggregation in product(METRICS, AGGREGATIONS):
            places = [
                place
                for place, it in enumerate(records)
                if it.interval and (it.metric, it.aggregation) == (metric, aggregation)
            ]
            if len(places) < 2:
                continue
            together = [tasks[TaskName(records[it].task, records[it].split)] for it in places]
            labels = [task.name.label for task in together]
            moves = [
                influences(task, scores.similarities[label], metric)[aggregation]
                for task, label in zip(together, labels, strict=True)
            ]
            rows = joint_covariance(together, moves).tolist()
            for place, label, row in zip(places, labels, rows, strict=True):
                others = {to: it for to, it in zip(labels, row, strict=True) if to != label}
                interval = replace(cast(Interval, records[place].interval), covariances=others)
                records[place] = replace(records[place], interval=interval)
        return replace(scores, records=tuple(records))

    def _similarities(
        self,
        task: Task,
        encoder: DescribedEncoder,
        embeddings: Embeddings,
        regressors: dict[str, Regressor],
    ) -> Similarities:
        """By the encoder's similarity, or as the task's regressor predicts; it is kept by name."""
        for part in (task, *(task.fitted or ())):
            self._require_usable(encoder, part, embeddings)
        if task.fitted is None:
            return self._compared(task, encoder, embeddings)
        name = task.name.name
        if name not in regressors:
            train, dev = (self._ordered_pairs(part, embeddings) for part in task.fitted)
            try:
                regressors[name] = fit(train, dev)
            except DataError as error:
                raise DataError(f"{task.fitted[0].name.heading}: {error}") from error
        if task.name.split in ("train", "all"):
            raise DataError(
                f"{task.name.heading}: its regressor is fitted to the training split, so it has "
                "no score there; ask for test or dev, or for cosines with --no-regressor"
            )
        (subset,) = task.subsets
        return (regressors[name].expected(self._pairs(subset, embeddings).features),)

    def _rows(self, sentences: Iterable[str], embeddings: Embeddings) -> Embeddings:
        return embeddings[[self._places[sentence] for sentence in sentences]]

    def _require_usable(
        self, encoder: DescribedEncoder, task: Task, embeddings: Embeddings
    ) -> None:
        sentences = list(dict.fromkeys(task.sentences))
        rows = self._rows(sentences, embeddings)
        zeros = isinstance(encoder, LookupEncoder)
        require_usable(encoder.name, sentences, rows, of=task.name.heading, zeros=zeros)

    def _compared(
        self, task: Task, encoder: DescribedEncoder, embeddings: Embeddings
    ) -> Similarities:
        pairs = (self._pairs(subset, embeddings) for subset in task.subsets)
        name = similarity_of(encoder)
        return tuple(pair_similarities(name, it.first, it.second, zeros=True) for it in pairs)

    def _pairs(self, subset: Subset, embeddings: Embeddings) -> Pairs:
        first, second = (self._rows(it, embeddings) for it in (subset.first, subset.second))
        return Pairs(first, second, subset.gold)

    def _ordered_pairs(self, task: Task, embeddings: Embeddings) -> Pairs:
        (subset,) = task.subsets
        order = sentevals_order(subset.first, subset.second, subset.gold)
        pairs = self._pairs(subset, embeddings)
        return Pairs(pairs.first[order], pairs.second[order], pairs.gold[order])


def _records(
    task: Task,
    similarities: Similarities,
    use: EncoderUse,
    protocol: Protocol | None,
    bootstrap: Bootstrap | None,
) -> Iterator[Record]:
    """Every metric, aggregation and subset of one task."""
    for metric in METRICS:
        asked = protocol is None or metric in protocol.metrics
        for score in correlations(task, similarities, metric, bootstrap if asked else None):
            reported = asked and protocol and protocol.aggregation == score.aggregation
            named = protocol.name if protocol and reported else None
            regressor = "senteval" if task.fitted else None
            yield score.record(task.name, task.sha256, use, protocol=named, regressor=regressor)


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
        fitted = _fitted(name, options.data_dir) if options.protocol.regressor else None
        task = load(name, options.data_dir, options.columns)
        require_different(name.heading, task.gold)
        return replace(task, fitted=fitted)

    def records(self, tasks: Sequence[Task], use: EncoderUse, options: Options) -> Scores:
        """Each distinct sentence of all tasks is encoded once."""
        return StsTasks(tasks).records(use, options.protocol, options.bootstrap)

    def score(self, task: Task, use: EncoderUse, options: Options) -> Scores:
        """Every metric, aggregation and subset of one task."""
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

    def named(self, task: Task) -> TaskName:
        """Its name and split."""
        return task.name

    def note(self, task: Task) -> str:
        """How columns and header of a user's file were understood."""
        return task.note

    def texts(self, task: Task) -> Iterator[TaskText]:
        """All pairs, as training text must not have both sentences."""
        pairs = list(zip(*task.sides, strict=True))
        sentences = [sentence for pair in pairs for sentence in pair]
        yield TaskText(task.name.name, task.name.split, sentences, pairs)

    def row_layout(self, task: Task) -> RowLayout:
        """The first sentences of all scored pairs, then the second."""
        names = (f"{side} sentences of the scored pairs" for side in ("first", "second"))
        return RowLayout(task.name.heading, dict(zip(names, task.sides, strict=True)))


def _fitted(name: TaskName, data_dir: str | Path | None) -> tuple[Task, Task] | None:
    """Train and dev split of a task, for its regressor; None of a task without them."""
    if name.name not in STS_TASKS or not STS_TASKS[name.name].files:
        return None
    train, dev = (load(TaskName(name.name, split), data_dir) for split in ("train", "dev"))
    return train, dev


TASK_TYPE = Sts()
