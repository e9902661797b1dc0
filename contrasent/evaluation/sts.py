"""STS tasks: each distinct sentence encoded once, cosines, rank correlations.

Shapes: N distinct sentences of all tasks, D embedding width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from contrasent.errors import CheckpointError, ConfigError, DataError, pick
from contrasent.evaluation.bootstrap import Bootstrap
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
    require_usable,
)
from contrasent.evaluation.protocols import AGGREGATIONS, Protocol
from contrasent.evaluation.sts_data import Subset, Task, load, require_different
from contrasent.evaluation.sts_regressor import Pairs, Regressor, fit, sentevals_order
from contrasent.evaluation.task_names import STS_TASKS, TaskName, sts_names
from contrasent.evaluation.task_types import Options, TaskData, TaskText, TaskType
from contrasent.evaluation.vectors import Given, Side
from contrasent.metrics import METRICS, pair_cosines
from contrasent.records import Record


class StsTasks:
    """Tasks read once, to be scored as often as one likes.

    Attributes:
        tasks: what was read.
        sentences: the N distinct sentences of all of them, and of what regressors are fitted to.
        metric: what :meth:`score` gives unless told otherwise.
    """

    metric = "spearman"

    def __init__(self, tasks: Sequence[Task]) -> None:
        """Collect the sentences."""
        self.tasks = tuple(tasks)
        read = [part for task in tasks for part in (task, *(task.fitted or ()))]
        self.sentences, _ = distinct(text for task in read for text in _sentences(task))
        self._places = {sentence: place for place, sentence in enumerate(self.sentences)}

    def score(
        self,
        encoder: DescribedEncoder,
        *,
        precision: str = "fp32",
        metric: str = "spearman",
        aggregation: str = "all",
        show_progress: bool = False,
    ) -> dict[str, float]:
        """One number per task, by its label, such as ``{"stsb-dev": 0.81}``.

        Raises:
            ConfigError: no such metric, aggregation or precision.
            CheckpointError: an embedding has a NaN or infinite number, or is zero.
            DataError: a number does not exist because all cosines are equal.
        """
        pick("metric", metric, METRICS)
        pick("aggregation", aggregation, AGGREGATIONS)
        use = EncoderUse(encoder, precision, show_progress=show_progress)
        embeddings = self._embed(use)
        for task in self.tasks:
            self._require_usable(encoder, task, embeddings)
        return {
            task.name.label: score.value
            for task in self.tasks
            for score in correlations(task, self._cosines(task, embeddings), metric)
            if score.aggregation == aggregation
        }

    def records(
        self,
        encoder: DescribedEncoder,
        *,
        precision: str = "fp32",
        seed: int | None = None,
        protocol: Protocol | None = None,
        bootstrap: Bootstrap | None = None,
        show_progress: bool = False,
    ) -> Scores:
        """Every metric, aggregation and subset of every task.

        A task for which a number does not exist has no record; the problem says why.

        Args:
            encoder: what is measured.
            precision: ``fp32``, ``bf16``, or what the encoder's engine computes in.
            seed: the seed of the training run that made the encoder, for the records.
            protocol: whose numbers are named as such and have intervals; with a regressor, it
                scores the tasks that have something to fit it to.
            bootstrap: how intervals are computed; None for none.
            show_progress: a progress bar while encoding.

        Raises:
            ConfigError: no such precision.
            CheckpointError: in every task an embedding has a NaN or infinite number, or is zero.
        """
        use = EncoderUse(encoder, precision, seed, show_progress)
        embeddings = self._embed(use)
        regressors: dict[str, Regressor] = {}
        parts: list[Scores] = []
        damaged: list[CheckpointError] = []
        fits = protocol is not None and protocol.regressor
        for task in self.tasks if fits else [replace(it, fitted=None) for it in self.tasks]:
            label = task.name.label
            try:
                column = self._similarities(task, encoder, embeddings, regressors)
                records = _records(task, column, use, protocol, bootstrap)
                parts.append(Scores(tuple(records), similarities={label: column}))
            except (CheckpointError, DataError) as error:
                parts.append(Scores(problems=(Problem(label, str(error)),)))
                damaged += [error] if isinstance(error, CheckpointError) else []
        if len(damaged) == len(self.tasks):
            raise CheckpointError("\n".join(map(str, damaged)))
        return Scores.together(parts)

    def _similarities(
        self,
        task: Task,
        encoder: DescribedEncoder,
        embeddings: Embeddings,
        regressors: dict[str, Regressor],
    ) -> Similarities:
        """Cosines, or what the task's regressor predicts; one that is fitted is kept by name."""
        for part in (task, *(task.fitted or ())):
            self._require_usable(encoder, part, embeddings)
        if task.fitted is None:
            return self._cosines(task, embeddings)
        name = task.name.name
        if name not in regressors:
            regressors[name] = self._regressor(task.fitted, embeddings)
        return self._predicted(task, embeddings, regressors[name])

    def _embed(self, use: EncoderUse) -> Embeddings:
        if not self.sentences:
            raise ConfigError("no task to score")
        return use.embed(self.sentences)

    def _require_usable(
        self, encoder: DescribedEncoder, task: Task, embeddings: Embeddings
    ) -> None:
        sentences, _ = distinct(_sentences(task))
        rows = embeddings[[self._places[sentence] for sentence in sentences]]
        require_usable(encoder.name, sentences, rows, of=task.name.heading)

    def _cosines(self, task: Task, embeddings: Embeddings) -> Similarities:
        return tuple(
            pair_cosines(*self._sides(subset, embeddings, range(len(subset.gold))))
            for subset in task.subsets
        )

    def _regressor(self, fitted: tuple[Task, Task], embeddings: Embeddings) -> Regressor:
        """SentEval's regressor, fitted to the train split of a task."""
        train, dev = (self._pairs(task, embeddings) for task in fitted)
        try:
            return fit(train, dev)
        except DataError as error:
            raise DataError(f"{fitted[0].name.heading}: {error}") from error

    def _predicted(self, task: Task, embeddings: Embeddings, regressor: Regressor) -> Similarities:
        if task.name.split in ("train", "all"):
            raise DataError(
                f"{task.name.heading}: its regressor is fitted to the training split, so it has "
                "no score there; ask for test or dev, or for cosines with --no-regressor"
            )
        (subset,) = task.subsets
        sides = self._sides(subset, embeddings, range(len(subset.gold)))
        return (regressor.predict(Pairs(*sides, subset.gold)),)

    def _pairs(self, task: Task, embeddings: Embeddings) -> Pairs:
        (subset,) = task.subsets
        order = sentevals_order(subset.first, subset.second, subset.gold)
        return Pairs(*self._sides(subset, embeddings, order), subset.gold[order])

    def _sides(
        self, subset: Subset, embeddings: Embeddings, rows: Sequence[int]
    ) -> tuple[Embeddings, Embeddings]:
        first, second = (
            embeddings[[self._places[side[row]] for row in rows]]
            for side in (subset.first, subset.second)
        )
        return first, second


def _sentences(task: Task) -> Iterator[str]:
    return (text for subset in task.subsets for text in (*subset.first, *subset.second))


def _records(
    task: Task,
    similarities: Similarities,
    use: EncoderUse,
    protocol: Protocol | None,
    bootstrap: Bootstrap | None,
) -> list[Record]:
    """Every metric, aggregation and subset of one task."""
    regressor = "senteval" if task.fitted else None
    records = []
    for metric in METRICS:
        asked = protocol is None or metric in protocol.metrics
        for score in correlations(task, similarities, metric, bootstrap if asked else None):
            reported = asked and protocol and protocol.aggregation == score.aggregation
            named = protocol.name if protocol and reported else None
            records.append(score.record(task, use, named, regressor))
    return records


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
        require_different(name.heading, np.concatenate([subset.gold for subset in task.subsets]))
        return replace(task, fitted=fitted)

    def records(self, tasks: Sequence[Task], use: EncoderUse, options: Options) -> Scores:
        """Each distinct sentence of all tasks is encoded once."""
        return StsTasks(tasks).records(
            use.encoder,
            precision=use.precision,
            seed=use.seed,
            protocol=options.protocol,
            bootstrap=options.bootstrap,
            show_progress=use.show_progress,
        )

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
        asked = options.protocol
        return [
            compare(
                read.tasks,
                *scores,
                metric=metric,
                aggregation=asked.aggregation,
                bootstrap=bootstrap,
            )
            for metric in asked.metrics
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

    def given(self, task: Task) -> Given:
        """The first sentences of all scored pairs, then the second."""
        first, second = task.sides
        sides = (
            Side("first sentences of the scored pairs", first),
            Side("second sentences of the scored pairs", second),
        )
        return Given(task.name.heading, sides)


def _fitted(name: TaskName, data_dir: str | Path | None) -> tuple[Task, Task] | None:
    """Train and dev split of a task, for its regressor; None of a task without them."""
    if name.name not in STS_TASKS or not STS_TASKS[name.name].files:
        return None
    train, dev = (load(TaskName(name.name, split), data_dir) for split in ("train", "dev"))
    return train, dev


TASK_TYPE = Sts()
