"""The interface of task types: names, data, scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from contrasent.data.senteval import MissingDataError
from contrasent.errors import CheckpointError, DataError, pick
from contrasent.evaluation.compare import Comparison, compare_ratios
from contrasent.evaluation.embed import EncoderUse, Problem, Scores
from contrasent.evaluation.intervals import Bootstrap
from contrasent.evaluation.protocols import SIMCSE, Protocol, TransferProtocol, protocol
from contrasent.evaluation.task_names import SPLITS, TaskName
from contrasent.options import EvaluationOptions

T = TypeVar("T")
"""The data of one task: it has ``name``, ``note`` (how a user's file was understood where that had
to be guessed), ``texts()`` that training text must not have, and a ``row_layout()``."""


@dataclass(frozen=True, slots=True)
class Options:
    """Wishes beside the names of tasks, as :func:`contrasent.evaluate` takes them."""

    data_dir: str | Path | None = None
    splits: Sequence[str] = ("test",)
    columns: Sequence[str] | None = None
    protocol: Protocol = SIMCSE  # of the correlations
    learning: TransferProtocol = field(default_factory=TransferProtocol)  # of the classifiers
    bootstrap: Bootstrap | None = None

    @classmethod
    def of(cls, given: EvaluationOptions) -> Options:
        """The reading that options ask for; ConfigError if one is unknown."""
        return cls(
            given.data_dir,
            given.splits,
            given.columns,
            protocol(given.protocol, given.metric, given.aggregation, given.regressor),
            TransferProtocol(given.classifier, given.preset, given.classifier_seed),
            None if given.confidence is None else Bootstrap(given.confidence),
        )

    def __post_init__(self) -> None:
        for split in self.splits:
            pick("split", split, SPLITS)


@dataclass(frozen=True, slots=True)
class TaskData(Generic[T]):
    """What was asked for, each task and split once, what was read, and why the rest was not."""

    names: tuple[TaskName, ...] = ()
    tasks: tuple[T, ...] = ()
    problems: tuple[Problem, ...] = ()


class TaskType(ABC, Generic[T]):
    """Tasks that are scored alike, by default one after the other."""

    name: ClassVar[str]
    """By which tables find their columns."""

    @abstractmethod
    def names(self, text: str, options: Options) -> list[TaskName] | None:
        """The tasks of this type that a text names, each split for itself; None if it names others.

        A split that a task does not have is a ConfigError.
        """

    @abstractmethod
    def load(self, names: Sequence[TaskName], options: Options) -> T:
        """Read the data of one task, as :meth:`sources` groups its names, or a DataError."""

    @abstractmethod
    def score(self, task: T, use: EncoderUse, options: Options) -> Scores:
        """Score an encoder on one task; a CheckpointError or DataError if it cannot be scored."""

    def sources(self, names: Sequence[TaskName]) -> Sequence[Sequence[TaskName]]:
        """The names in groups that are read together; by default each alone."""
        return [[name] for name in names]

    def averaged(self, names: Sequence[TaskName]) -> list[TaskName]:
        """The names that the table's average is over; by default there is none."""
        del names
        return []

    def named(self, task: Any) -> TaskName:
        """The task as messages name it."""
        return task.name if isinstance(task.name, TaskName) else TaskName(task.name)

    def read(self, names: Sequence[TaskName], options: Options) -> TaskData[T]:
        """Read the tasks whose data is there and in order; the others are problems."""
        tasks: list[T] = []
        problems: list[Problem] = []
        for group in self.sources(names):
            label = group[0].label if len(group) == 1 else group[0].name
            try:
                tasks.append(self.load(group, options))
            except MissingDataError as error:
                problems.append(Problem(label, f"{error.path} is missing", missing=True))
            except DataError as error:
                problems.append(Problem(label, str(error)))
        return TaskData(tuple(names), tuple(tasks), tuple(problems))

    def records(self, tasks: Sequence[T], use: EncoderUse, options: Options) -> Scores:
        """Score an encoder; a task that cannot be scored has no record, and a problem says why."""
        parts: list[Scores] = []
        problems: list[Problem] = []
        unusable = False
        for task in tasks:
            try:
                parts.append(self.score(task, use, options))
            except (CheckpointError, DataError) as error:
                name = self.named(task)
                problems.append(Problem(name.label, f"{name.heading}: {error}"))
                unusable |= isinstance(error, CheckpointError)
        if unusable and not parts:
            raise CheckpointError("\n".join(problem.message for problem in problems))
        return Scores.together([*parts, Scores(problems=tuple(problems))])

    def compare(
        self,
        read: TaskData[T],
        scores: tuple[Scores, Scores],
        options: Options,
        bootstrap: Bootstrap,
    ) -> list[Comparison]:
        """The second encoder's scores less the first one's, in every metric of the table."""
        del options
        averaged = self.averaged(read.names)
        return compare_ratios(read.names, *scores, averaged_over=averaged, bootstrap=bootstrap)
