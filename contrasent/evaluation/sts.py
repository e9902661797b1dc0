"""STS tasks: each distinct sentence encoded once, cosines, rank correlations.

Shapes: N distinct sentences of all tasks, D embedding width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from contrasent.errors import CheckpointError, ConfigError, DataError, pick
from contrasent.evaluation.bootstrap import Bootstrap, Ratio
from contrasent.evaluation.embed import (
    PRECISIONS,
    Described,
    DescribedEncoder,
    Embeddings,
    distinct,
    encoded,
    require_usable,
)
from contrasent.evaluation.protocols import AGGREGATIONS, Protocol
from contrasent.evaluation.scores import Similarities, figures
from contrasent.evaluation.sts_data import Subset, Task, load
from contrasent.evaluation.sts_regressor import Pairs, Regressor, fit, sentevals_order
from contrasent.evaluation.task_names import TaskName, task_names
from contrasent.metrics import METRICS, pair_cosines
from contrasent.records import Record


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a task has no score.

    Attributes:
        task: its label, such as ``stsb-dev``.
        message: what is wrong and what to do.
        missing: the task's data is not there, as opposed to damaged or impossible to score.
    """

    task: str
    message: str
    missing: bool = False


@dataclass(frozen=True, slots=True)
class Scores:
    """What one encoder reached, and what could not be computed.

    Attributes:
        records: every metric, aggregation and subset.
        problems: tasks without a record.
        similarities: what correlations rest on, by the label of the task.
        ratios: what other scores rest on, by task and metric.
        notes: what is to be known of the records beside their numbers.
    """

    records: tuple[Record, ...]
    problems: tuple[Problem, ...]
    similarities: Mapping[str, Similarities] = field(default_factory=dict)
    ratios: Mapping[tuple[TaskName, str], Ratio] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def together(cls, parts: Sequence[Scores]) -> Scores:
        """What several of one encoder hold, in their order."""
        return cls(
            tuple(record for part in parts for record in part.records),
            tuple(problem for part in parts for problem in part.problems),
            {label: found for part in parts for label, found in part.similarities.items()},
            {column: found for part in parts for column, found in part.ratios.items()},
            tuple(note for part in parts for note in part.notes),
        )


class StsTasks:
    """Tasks read once, to be scored as often as one likes.

    Attributes:
        tasks: what was read.
        sentences: the N distinct sentences of all of them, and of what regressors are fitted to.
    """

    def __init__(
        self, tasks: Sequence[Task], fitted: Mapping[str, tuple[Task, Task]] | None = None
    ) -> None:
        """Collect the sentences.

        Args:
            tasks: what to score.
            fitted: train and dev splits of the tasks, by name, that a protocol scores by a
                regressor.
        """
        self.tasks = tuple(tasks)
        self._fitted = dict(fitted or {})
        read = (*tasks, *(task for pair in self._fitted.values() for task in pair))
        self.sentences, _ = distinct(sentence for task in read for sentence in _sentences(task))
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
        embeddings = self._embed(encoder, precision, show_progress)
        self._require_usable(encoder, self.tasks, embeddings)
        scores = {}
        for task in self.tasks:
            for figure in figures(task, self._cosines(task, embeddings), metric):
                if figure.aggregation == aggregation:
                    scores[task.name.label] = figure.value
        return scores

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
                scores the tasks that ``fitted`` holds.
            bootstrap: how intervals are computed; None for none.
            show_progress: a progress bar while encoding.

        Raises:
            ConfigError: no such precision.
            CheckpointError: in every task an embedding has a NaN or infinite number, or is zero.
        """
        embeddings = self._embed(encoder, precision, show_progress)
        described = Described(encoder, precision, seed, protocol, bootstrap)
        regressors: dict[str, Regressor] = {}
        records: list[Record] = []
        problems: list[Problem] = []
        similarities: dict[str, Similarities] = {}
        damaged: list[CheckpointError] = []
        for task in self.tasks:
            name = task.name.name
            by_regressor = protocol is not None and protocol.regressor and name in self._fitted
            try:
                self._require_usable(encoder, [task, *self._fitted.get(name, ())], embeddings)
                if by_regressor:
                    if name not in regressors:
                        regressors[name] = self._regressor(name, embeddings)
                    found = self._predicted(task, embeddings, regressors[name])
                else:
                    found = self._cosines(task, embeddings)
                records += described.records(task, found, "senteval" if by_regressor else None)
            except CheckpointError as error:
                problems.append(Problem(task.name.label, str(error)))
                damaged.append(error)
            except DataError as error:
                problems.append(Problem(task.name.label, str(error)))
            else:
                similarities[task.name.label] = found
        if len(damaged) == len(self.tasks):
            raise CheckpointError("\n".join(map(str, damaged)))
        return Scores(tuple(records), tuple(problems), similarities)

    def _embed(self, encoder: DescribedEncoder, precision: str, show_progress: bool) -> Embeddings:
        pick("precision", precision, PRECISIONS)
        if not self.sentences:
            raise ConfigError("no task to score")
        return encoded(encoder, self.sentences, precision=precision, show_progress=show_progress)

    def _require_usable(
        self, encoder: DescribedEncoder, tasks: Sequence[Task], embeddings: Embeddings
    ) -> None:
        for task in tasks:
            sentences, _ = distinct(_sentences(task))
            rows = embeddings[[self._places[sentence] for sentence in sentences]]
            require_usable(encoder.name, sentences, rows, of=task.name.heading)

    def _cosines(self, task: Task, embeddings: Embeddings) -> Similarities:
        return tuple(
            pair_cosines(*self._sides(subset, embeddings, range(len(subset.gold))))
            for subset in task.subsets
        )

    def _regressor(self, name: str, embeddings: Embeddings) -> Regressor:
        """SentEval's regressor, fitted to the train split of a task."""
        train, dev = (self._pairs(task, embeddings) for task in self._fitted[name])
        try:
            return fit(train, dev)
        except DataError as error:
            raise DataError(f"{self._fitted[name][0].name.heading}: {error}") from error

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


def prepare(tasks: Sequence[str], data_dir: str | Path | None = None) -> StsTasks:
    """Read tasks once for repeated scoring, as training does with ``["stsb-dev"]``.

    Raises:
        ConfigError: a task is unknown.
        DataError: a task's data is missing or damaged.
    """
    return StsTasks([load(name, data_dir) for name in task_names(tasks)])
