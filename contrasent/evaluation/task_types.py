"""The interface of task types: names, data, scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from contrasent.data.senteval import MissingDataError, how_to_get_data
from contrasent.errors import CheckpointError, ConfigError, ContrasentError, DataError, pick
from contrasent.evaluation.bootstrap import Bootstrap
from contrasent.evaluation.compare import Comparison, compare_ratios
from contrasent.evaluation.embed import PRECISIONS, DescribedEncoder
from contrasent.evaluation.protocols import SIMCSE, Protocol
from contrasent.evaluation.protocols import TransferProtocol as Learning
from contrasent.evaluation.sts import Problem, Scores
from contrasent.evaluation.task_names import SPLITS, TaskName
from contrasent.evaluation.vectors import Given
from contrasent.records import Record

T = TypeVar("T")
"""What a kind makes of the data of one task."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a user asked for beside the names of tasks.

    Attributes:
        data_dir: a folder in SentEval's layout; else ``CONTRASENT_DATA``, else the folder that
            ``contrasent data fetch`` fills.
        splits: splits of the tasks named without one.
        columns: of users' files.
        protocol: of the correlations.
        learning: of the classifiers; SentEval's preset ``test`` by default.
        bootstrap: how intervals are computed; None for none.

    Raises:
        ConfigError: a split is unknown.
    """

    data_dir: str | Path | None = None
    splits: Sequence[str] = ("test",)
    columns: Sequence[str] | None = None
    protocol: Protocol = SIMCSE
    learning: Learning = field(default_factory=Learning)
    bootstrap: Bootstrap | None = None

    def __post_init__(self) -> None:
        for split in self.splits:
            pick("split", split, SPLITS)


@dataclass(frozen=True, slots=True)
class EncoderUse:
    """An encoder and how it is used.

    Attributes:
        encoder: what is measured; the mode it is in (training or not) stays as it is.
        precision: ``fp32``, ``bf16``, or what the encoder's engine computes in.
        seed: the seed of the training run that made the encoder, for the records.
        show_progress: a progress bar while encoding.

    Raises:
        ConfigError: no such precision.
    """

    encoder: DescribedEncoder
    precision: str = "fp32"
    seed: int | None = None
    show_progress: bool = False

    def __post_init__(self) -> None:
        pick("precision", self.precision, PRECISIONS)


@dataclass(frozen=True, slots=True)
class TaskText:
    """The sentences of a task's split, and the pairs of them that belong together."""

    task: str
    split: str
    sentences: Sequence[str]
    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class TaskData(Generic[T]):
    """What was asked for, what of it could be read, and why the rest could not.

    Attributes:
        names: what was asked for, each task and split once.
        tasks: what could be read.
        problems: why the rest could not.
    """

    names: tuple[TaskName, ...] = ()
    tasks: tuple[T, ...] = ()
    problems: tuple[Problem, ...] = ()


class TaskType(ABC, Generic[T]):
    """Tasks that are scored alike.

    Attributes:
        name: that of its file here, and of the file in ``contrasent.report`` that prints its table.
        place: of its table, the smallest first. Names are offered to the last kind first, and the
            first one refuses what it does not know.
    """

    name: ClassVar[str]
    place: ClassVar[int]

    @abstractmethod
    def names(
        self, asked: Sequence[str], options: Options
    ) -> tuple[Sequence[TaskName], Sequence[str]]:
        """Pick the tasks of this kind out of what a user asked for.

        Returns:
            They, each with its split once in the order asked, and everything else.

        Raises:
            ConfigError: a task has no such split.
        """

    @abstractmethod
    def load(self, names: Sequence[TaskName], options: Options) -> T:
        """Read the data of one task, as :meth:`sources` named it.

        Raises:
            MissingDataError: it is not there.
            DataError: it is damaged.
        """

    @abstractmethod
    def records(self, tasks: Sequence[T], use: EncoderUse, options: Options) -> Scores:
        """Score an encoder; a task that cannot be scored has no record, and a problem says why.

        Raises:
            CheckpointError: the encoder cannot be scored on any of them.
        """

    @abstractmethod
    def compare(
        self,
        read: TaskData[T],
        scores: tuple[Scores, Scores],
        options: Options,
        bootstrap: Bootstrap,
    ) -> list[Comparison]:
        """The second encoder's scores less the first one's, in every metric of the table.

        Args:
            read: what both were scored on.
            scores: of both.
            options: what else was asked for.
            bootstrap: how what the scores are of is drawn again.
        """

    @abstractmethod
    def named(self, task: T) -> TaskName:
        """How messages name a task."""

    @abstractmethod
    def texts(self, task: T) -> Iterator[TaskText]:
        """What of a task must not be in training text."""

    @abstractmethod
    def given(self, task: T) -> Given:
        """What a matrix has to have rows for, to stand in for an encoder."""

    def sources(self, names: Sequence[TaskName]) -> Sequence[Sequence[TaskName]]:
        """The names in groups that are read together; by default each alone."""
        return [[name] for name in names]

    def averaged(self, names: Sequence[TaskName]) -> list[TaskName]:
        """The names that the table's average is over; by default there is none."""
        del names
        return []

    def note(self, task: T) -> str:
        """How a user's file was understood, where that had to be guessed; else empty."""
        del task
        return ""

    def read(self, names: Sequence[TaskName], options: Options) -> TaskData[T]:
        """Read the tasks whose data is there and in order; the others are problems.

        Args:
            names: as :meth:`names` returns them.
            options: what else was asked for.
        """
        found: list[T] = []
        problems: list[Problem] = []
        for together in self.sources(names):
            label = together[0].label if len(together) == 1 else together[0].name
            try:
                found.append(self.load(together, options))
            except MissingDataError as error:
                problems.append(Problem(label, f"{error.path} is missing", missing=True))
            except DataError as error:
                problems.append(Problem(label, str(error)))
        return TaskData(tuple(names), tuple(found), tuple(problems))


class OneByOne(TaskType[T]):
    """A kind whose tasks are scored one after the other."""

    @abstractmethod
    def score(self, task: T, use: EncoderUse, options: Options) -> Scores:
        """Score an encoder on one task.

        Raises:
            CheckpointError: its embeddings cannot be scored.
            DataError: the task has too little data.
        """

    def records(self, tasks: Sequence[T], use: EncoderUse, options: Options) -> Scores:
        """All that could be scored; arguments and errors as :meth:`Kind.records`."""
        parts, failed = self._each(tasks, use, options)
        if not parts and any(isinstance(error, CheckpointError) for _, error in failed):
            raise CheckpointError("\n".join(_told(name, error) for name, error in failed))
        problems = [Problem(name.label, _told(name, error)) for name, error in failed]
        return Scores.together([*parts, Scores((), tuple(problems))])

    def compare(
        self,
        read: TaskData[T],
        scores: tuple[Scores, Scores],
        options: Options,
        bootstrap: Bootstrap,
    ) -> list[Comparison]:
        """One comparison for each metric; arguments as :meth:`Kind.compare`."""
        del options
        return compare_ratios(
            read.names, *scores, averaged_over=self.averaged(read.names), bootstrap=bootstrap
        )

    def evaluate(self, use: EncoderUse, asked: Sequence[str], options: Options) -> list[Record]:
        """Score an encoder on tasks by their names, all of them or none.

        Raises:
            ConfigError: a name is no task of this kind.
            DataError: a task's data is missing, damaged or too small.
            CheckpointError: the encoder's embeddings cannot be scored.
        """
        names, others = self.names(asked, options)
        if others or not names:
            raise ConfigError(f"no {self.name} task: {', '.join(others) or 'an empty list'}")
        read = self.read(names, options)
        if read.problems:
            remedy = [how_to_get_data()] if any(p.missing for p in read.problems) else []
            raise DataError("; ".join([*(p.message for p in read.problems), *remedy]))
        parts, failed = self._each(read.tasks, use, options)
        if failed:
            of_encoder = any(isinstance(error, CheckpointError) for _, error in failed)
            refusal = CheckpointError if of_encoder else DataError
            raise refusal("; ".join(_told(name, error) for name, error in failed))
        return [record for part in parts for record in part.records]

    def _each(
        self, tasks: Sequence[T], use: EncoderUse, options: Options
    ) -> tuple[list[Scores], list[tuple[TaskName, ContrasentError]]]:
        parts: list[Scores] = []
        failed: list[tuple[TaskName, ContrasentError]] = []
        for task in tasks:
            try:
                parts.append(self.score(task, use, options))
            except (CheckpointError, DataError) as error:
                failed.append((self.named(task), error))
        return parts, failed


def _told(name: TaskName, error: ContrasentError) -> str:
    return f"{name.heading}: {error}"
