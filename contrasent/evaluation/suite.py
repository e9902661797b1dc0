"""Evaluation: tasks by their names, read once, and the scores of any encoder on them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from contrasent.data.senteval import MissingDataError, how_to_get_data, senteval_root
from contrasent.errors import CheckpointError, ConfigError, DataError
from contrasent.evaluation import retrieval, sts, transfer
from contrasent.evaluation.compare import Comparison, compare, compare_ratios
from contrasent.evaluation.embed import EncoderUse, Problem, Scores
from contrasent.evaluation.intervals import Bootstrap
from contrasent.evaluation.protocols import Options
from contrasent.evaluation.task_names import TaskName, TaskText, refuse


@dataclass(frozen=True, slots=True)
class TaskType:
    """Tasks that are scored alike."""

    name: str  # by which tables find their columns
    # The tasks of this type that a text names, each split for itself; None if it names others. A
    # split that a task does not have is a ConfigError.
    names: Callable[[str, Options], list[TaskName] | None]
    load: Callable[[Sequence[TaskName], Options], Any]  # the data of one task, or a DataError
    score: Callable[[Sequence[Any], EncoderUse, Options], Scores]
    whole: bool = False  # the splits of a task are read together

    def read(self, names: Sequence[TaskName], options: Options) -> "TaskData":
        """Read the tasks whose data is there and in order; the others are problems."""
        groups: dict[str, list[TaskName]] = {}
        for name in names:
            groups.setdefault(name.name if self.whole else name.label, []).append(name)
        tasks: list[Any] = []
        problems: list[Problem] = []
        for label, group in groups.items():
            try:
                tasks.append(self.load(group, options))
            except MissingDataError as error:
                problems.append(Problem(label, f"{error.path} is missing", missing=True))
            except DataError as error:
                problems.append(Problem(label, str(error)))
        return TaskData(tuple(names), tuple(tasks), tuple(problems))


@dataclass(frozen=True, slots=True)
class TaskData:
    """What was asked for, each task and split once, what was read, and why the rest was not."""

    names: tuple[TaskName, ...] = ()
    # each has ``name``, ``note`` (how a user's file was understood where that had to be guessed),
    # and ``texts()`` that training text must not have
    tasks: tuple[Any, ...] = ()
    problems: tuple[Problem, ...] = ()


STS = TaskType("sts", sts.names, sts.load_task, sts.score)
TRANSFER = TaskType("transfer", transfer.names, transfer.load, transfer.score, whole=True)
RETRIEVAL = TaskType("retrieval", retrieval.names, retrieval.load_task, retrieval.score)
TASK_TYPES = (
    STS,
    TRANSFER,
    TaskType("labelled", transfer.labelled_names, transfer.load, transfer.score, whole=True),
    RETRIEVAL,
)
"""In the order of their tables. Names are offered to the last one first."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Tasks read once, to be scored for any number of encoders."""

    kinds: tuple[tuple[TaskType, TaskData], ...]
    options: Options

    @property
    def names(self) -> tuple[TaskName, ...]:
        """The tasks asked for."""
        return tuple(name for _, read in self.kinds for name in read.names)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Why tasks could not be read."""
        return tuple(problem for _, read in self.kinds for problem in read.problems)

    @property
    def remedy(self) -> list[str]:
        """How to get the data where some is missing, else nothing."""
        return [how_to_get_data()] if any(it.missing for it in self.problems) else []

    @property
    def notes(self) -> list[str]:
        """How users' files were understood, where that had to be guessed."""
        return [task.note for _, read in self.kinds for task in read.tasks if task.note]

    def tasks(self, kind: str) -> tuple[Any, ...]:
        """The data of one type of tasks, by its name."""
        return tuple(t for known, read in self.kinds if known.name == kind for t in read.tasks)

    def texts(self) -> Iterator[TaskText]:
        """The text of all tasks."""
        return (text for _, read in self.kinds for task in read.tasks for text in task.texts())

    def records(self, use: EncoderUse) -> Scores:
        """Every record of an encoder, in the order of the tables, and why tasks have none.

        CheckpointError if the encoder has no record at all.
        """
        scored = [kind.score(it.tasks, use, self.options) for kind, it in self.kinds if it.tasks]
        scores = Scores.together(scored)
        if not scores.records and any(problem.damaged for problem in scores.problems):
            raise CheckpointError("\n".join(problem.message for problem in scores.problems))
        return scores

    def compare(
        self, baseline: Scores, other: Scores, bootstrap: Bootstrap
    ) -> dict[str, list[Comparison]]:
        """The second encoder's scores less the first one's, by type, in every metric of a table."""
        how, both = self.options.protocol, (baseline, other)
        given: dict[str, Any] = {"aggregation": how.aggregation, "bootstrap": bootstrap}
        return {
            kind.name: [compare(read.tasks, *both, metric=it, **given) for it in how.metrics]
            if kind is STS
            else compare_ratios(read.names, *both, bootstrap=bootstrap)
            for kind, read in self.kinds
        }


def load_suite(
    tasks: Sequence[str], options: Options | None = None, types: Sequence[TaskType] = TASK_TYPES
) -> Suite:
    """Read those tasks whose data is there and in order; the others are problems.

    ``tasks`` are named as `evaluate` takes them, and are of some of ``types``. ConfigError if one
    is unknown; DataError, which says why for each, if none could be read.
    """
    options = options or Options()
    named: dict[str, list[TaskName]] = {kind.name: [] for kind in types}
    for text in tasks:
        for kind in reversed(types):
            if (names := kind.names(text, options)) is not None:
                named[kind.name] += names
                break
        else:
            refuse(text)
    public = [name.in_senteval for names in named.values() for name in names]
    if not public:
        raise ConfigError(
            f"no task to score in {', '.join(tasks) or 'an empty list'} with split "
            f"{', '.join(options.splits)}; STS12-16 have a test split only, transfer tasks a dev "
            "and a test split"
        )
    if any(public):
        senteval_root(options.data_dir)
    kinds = tuple(
        (kind, kind.read(list(dict.fromkeys(named[kind.name])), options))
        for kind in types
        if named[kind.name]
    )
    suite = Suite(kinds, options)
    if not any(read.tasks for _, read in suite.kinds):
        reasons = [f"  {problem.task}: {problem.message}" for problem in suite.problems]
        raise DataError("\n".join(["no task has data to score:", *reasons, *suite.remedy]))
    return suite
