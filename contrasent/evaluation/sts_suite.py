"""The task type of scored sentence pairs, from task names to records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from contrasent.data.senteval import MissingDataError, how_to_get_data, senteval_root
from contrasent.errors import DataError
from contrasent.evaluation.bootstrap import Bootstrap
from contrasent.evaluation.compare import Comparison, compare
from contrasent.evaluation.embed import DescribedEncoder
from contrasent.evaluation.protocols import SIMCSE, Protocol
from contrasent.evaluation.protocols import protocol as named_protocol
from contrasent.evaluation.sts import Problem, Scores, StsTasks
from contrasent.evaluation.sts_data import (
    Task,
    load,
    require_different,
)
from contrasent.evaluation.task_names import STS_TASKS, TaskName, task_names
from contrasent.evaluation.task_types import EncoderUse, Options, TaskData, TaskText, TaskType
from contrasent.evaluation.vectors import Given, Side
from contrasent.records import Record


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was asked for, what of it could be read, and why the rest could not.

    Attributes:
        names: what was asked for.
        tasks: what could be read.
        problems: why the rest could not.
        fitted: train and dev splits of the tasks that the protocol scores by a regressor.
    """

    names: tuple[TaskName, ...]
    tasks: tuple[Task, ...]
    problems: tuple[Problem, ...]
    fitted: Mapping[str, tuple[Task, Task]] = field(default_factory=dict)


def load_available(
    tasks: Sequence[str],
    data_dir: str | Path | None = None,
    splits: Sequence[str] = ("test",),
    *,
    protocol: Protocol = SIMCSE,
    columns: Sequence[str] | None = None,
) -> Loaded:
    """Read those tasks whose data is there and in order.

    Args:
        tasks: as :func:`contrasent.evaluation.task_names.task_names` takes them.
        data_dir: as :func:`evaluate` takes it.
        splits: splits of the tasks named without one.
        protocol: decides on splits and on what is read for regressors.
        columns: of users' files, as :func:`contrasent.evaluation.sts_data.read_pairs` takes them.

    Raises:
        ConfigError: a task or split is unknown.
        DataError: the folder that was named is not there, a user's file is missing or damaged,
            or no task could be read; the message then says why for each.
    """
    names = of_protocol(task_names(tasks, splits), protocol)
    if any(name.name in STS_TASKS for name in names):
        data_dir = senteval_root(data_dir)
    found: list[Task] = []
    problems: list[Problem] = []
    fitted: dict[str, tuple[Task, Task]] = {}
    for name in names:
        try:
            _fit_on(fitted, name, protocol, data_dir)
            found.append(load(name, data_dir, columns))
        except MissingDataError as error:
            problems.append(Problem(name.label, f"{error.path} is missing", missing=True))
        except DataError as error:
            if name.name not in STS_TASKS:
                raise
            problems.append(Problem(name.label, str(error)))
    if not found:
        reasons = [f"  {problem.task}: {problem.message}" for problem in problems]
        remedy = [how_to_get_data()] if any(problem.missing for problem in problems) else []
        raise DataError("\n".join(["no task has data to score:", *reasons, *remedy]))
    return Loaded(tuple(names), tuple(found), tuple(problems), fitted)


def of_protocol(names: Sequence[TaskName], protocol: Protocol) -> list[TaskName]:
    """The tasks, those with all splits in place of the test split where the protocol says so."""
    found = [
        TaskName(name.name, "all")
        if name.split == "test" and name.name in protocol.every_split
        else name
        for name in names
    ]
    return list(dict.fromkeys(found))


def parts_to_fit(
    name: TaskName, protocol: Protocol, data_dir: str | Path | None
) -> tuple[Task, Task] | None:
    """Train and dev split of a task that the protocol scores by a regressor; else None."""
    row = STS_TASKS.get(name.name)
    if not protocol.regressor or row is None or not row.files:
        return None
    train, dev = (load(TaskName(name.name, split), data_dir) for split in ("train", "dev"))
    return train, dev


def _fit_on(
    fitted: dict[str, tuple[Task, Task]],
    name: TaskName,
    protocol: Protocol,
    data_dir: str | Path | None,
) -> None:
    """Add the splits that the task's regressor needs, unless they are there."""
    parts = None if name.name in fitted else parts_to_fit(name, protocol, data_dir)
    if parts:
        fitted[name.name] = parts


def evaluate(  # noqa: PLR0913 - what the command takes, by name
    encoder: DescribedEncoder,
    tasks: Sequence[str] = ("sts",),
    data_dir: str | Path | None = None,
    *,
    precision: str = "fp32",
    splits: Sequence[str] = ("test",),
    seed: int | None = None,
    protocol: str | Protocol = SIMCSE,
    bootstrap: Bootstrap | None = None,
    show_progress: bool = False,
) -> list[Record]:
    """Score an encoder on STS tasks, by default as SentEval does in the form of SimCSE.

    Args:
        encoder: what is measured; the mode it is in (training or not) stays as it is.
        tasks: as :func:`contrasent.evaluation.task_names.task_names` takes them.
        data_dir: a folder in SentEval's layout; else ``CONTRASENT_DATA``, else the folder that
            ``contrasent data fetch`` fills.
        precision: ``fp32``, ``bf16``, or what the encoder's engine computes in.
        splits: splits of the tasks named without one.
        seed: the seed of the training run that made the encoder, for the records.
        protocol: a name in :data:`contrasent.evaluation.protocols.PROTOCOLS`, or one made by
            :func:`contrasent.evaluation.protocols.protocol`.
        bootstrap: how intervals are computed; None for none.
        show_progress: a progress bar while encoding.

    Returns:
        Records of every metric, aggregation and subset, in the order of the tasks.

    Raises:
        ConfigError: a task, split, protocol or precision is unknown.
        DataError: a task's data is missing or damaged, or a correlation does not exist.
        CheckpointError: an embedding is zero or not finite.
    """
    asked = named_protocol(protocol) if isinstance(protocol, str) else protocol
    names = of_protocol(task_names(tasks, splits), asked)
    fitted: dict[str, tuple[Task, Task]] = {}
    for name in names:
        _fit_on(fitted, name, asked, data_dir)
    read = StsTasks([load(name, data_dir) for name in names], fitted)
    scores = read.records(
        encoder,
        precision=precision,
        seed=seed,
        protocol=asked,
        bootstrap=bootstrap,
        show_progress=show_progress,
    )
    if scores.problems:
        raise DataError("; ".join(problem.message for problem in scores.problems))
    return list(scores.records)


@dataclass(frozen=True, slots=True)
class StsSplit:
    """One split of a task, and what its regressor is fitted to.

    Attributes:
        task: the pairs.
        fitted: train and dev split; None where cosines are scored.
    """

    task: Task
    fitted: tuple[Task, Task] | None = None


class Sts(TaskType[StsSplit]):
    """Correlations."""

    name = "sts"
    place = 10

    def names(self, asked: Sequence[str], options: Options) -> tuple[list[TaskName], list[str]]:
        """All of them, as :func:`contrasent.evaluation.task_names.task_names` takes them.

        Raises:
            ConfigError: a task is unknown or has no such split.
        """
        return of_protocol(task_names(asked, options.splits), options.protocol), []

    def load(self, names: Sequence[TaskName], options: Options) -> StsSplit:
        """Read one split, and what its regressor needs; a constant score is no score."""
        (name,) = names
        fitted = parts_to_fit(name, options.protocol, options.data_dir)
        task = load(name, options.data_dir, options.columns)
        if name.name not in STS_TASKS:
            require_different(name.label, task.subsets[0].gold)
        return StsSplit(task, fitted)

    def records(self, tasks: Sequence[StsSplit], use: EncoderUse, options: Options) -> Scores:
        """Each distinct sentence of all tasks is encoded once."""
        fitted = {rated.task.name.name: rated.fitted for rated in tasks if rated.fitted}
        return StsTasks([rated.task for rated in tasks], fitted).records(
            use.encoder,
            precision=use.precision,
            seed=use.seed,
            protocol=options.protocol,
            bootstrap=options.bootstrap,
            show_progress=use.show_progress,
        )

    def compare(
        self,
        read: TaskData[StsSplit],
        scores: tuple[Scores, Scores],
        options: Options,
        bootstrap: Bootstrap,
    ) -> list[Comparison]:
        """One comparison for each metric of the protocol."""
        tasks = [rated.task for rated in read.tasks]
        asked = options.protocol
        return [
            compare(
                tasks, *scores, metric=metric, aggregation=asked.aggregation, bootstrap=bootstrap
            )
            for metric in asked.metrics
        ]

    def named(self, task: StsSplit) -> TaskName:
        """Its own name."""
        return task.task.name

    def note(self, task: StsSplit) -> str:
        """How columns and header of a user's file were understood."""
        return task.task.note

    def texts(self, task: StsSplit) -> Iterator[TaskText]:
        """All pairs, as training text must not have both sentences."""
        subsets = task.task.subsets
        pairs = [pair for s in subsets for pair in zip(s.first, s.second, strict=True)]
        sentences = [sentence for pair in pairs for sentence in pair]
        yield TaskText(task.task.name.name, task.task.name.split, sentences, pairs)

    def given(self, task: StsSplit) -> Given:
        """The first sentences of all scored pairs, then the second."""
        sides = [
            Side(f"{which} sentences of the scored pairs", tuple(sentences))
            for which, sentences in (
                ("first", [s for subset in task.task.subsets for s in subset.first]),
                ("second", [s for subset in task.task.subsets for s in subset.second]),
            )
        ]
        return Given(task.task.name.heading, tuple(sides))


TASK_TYPE = Sts()
