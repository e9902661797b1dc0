"""Evaluation: tasks by their names, read once, and the scores of any encoder on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from contrasent.data.senteval import how_to_get_data, senteval_root
from contrasent.errors import CheckpointError, ConfigError, DataError
from contrasent.evaluation import retrieval, sts, transfer
from contrasent.evaluation.compare import Comparison
from contrasent.evaluation.embed import EncoderUse, Problem, Scores
from contrasent.evaluation.intervals import Bootstrap
from contrasent.evaluation.task_names import RowLayout, TaskName, TaskText, refuse
from contrasent.evaluation.task_types import Options, TaskData, TaskType

TASK_TYPES: tuple[TaskType[Any], ...] = (
    sts.TASK_TYPE,
    transfer.TASK_TYPE,
    transfer.LABELLED,
    retrieval.TASK_TYPE,
)
"""In the order of their tables. Names are offered to the last one first."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Tasks read once, to be scored for any number of encoders."""

    kinds: tuple[tuple[TaskType[Any], TaskData[Any]], ...]
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

    def row_layouts(self) -> list[RowLayout]:
        """The rows that a matrix has to have, of all tasks."""
        return [task.row_layout() for _, read in self.kinds for task in read.tasks]

    def texts(self) -> Iterator[TaskText]:
        """The text of all tasks."""
        return (text for _, read in self.kinds for task in read.tasks for text in task.texts())

    def records(self, use: EncoderUse) -> Scores:
        """Every record of an encoder, in the order of the tables.

        Where it cannot be scored on one type of tasks, those of the others are kept.
        CheckpointError if the encoder cannot be scored on any type.
        """
        parts: list[Scores] = []
        failures: dict[str, CheckpointError] = {}
        for kind, read in self.kinds:
            if read.tasks:
                try:
                    parts.append(kind.records(read.tasks, use, self.options))
                except CheckpointError as error:
                    failures[", ".join(kind.named(task).label for task in read.tasks)] = error
        if failures and not parts:
            raise next(iter(failures.values()))
        problems = tuple(Problem(label, str(error)) for label, error in failures.items())
        return Scores.together([*parts, Scores(problems=problems)])

    def compare(self, baseline: Scores, other: Scores, bootstrap: Bootstrap) -> list[Comparison]:
        """The second encoder's scores less the first one's, in the first metric of each type."""
        each = (
            kind.compare(read, (baseline, other), self.options, bootstrap)
            for kind, read in self.kinds
        )
        return [comparisons[0] for comparisons in each if comparisons]


def load_suite(
    tasks: Sequence[str],
    options: Options | None = None,
    types: Sequence[TaskType[Any]] = TASK_TYPES,
) -> Suite:
    """Read those tasks whose data is there and in order; the others are problems.

    ``tasks`` are named as `evaluate` takes them, and are of some of ``types``. ConfigError if a
    task or split is unknown, or columns are chosen and no file is named. DataError if no task could
    be read; the message then says why for each.
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
    if options.columns is not None and all(public):
        raise ConfigError(
            f"--columns is of your own files, and none is named: {', '.join(tasks)}; leave it out"
        )
    suite = Suite(
        tuple(
            (kind, kind.read(list(dict.fromkeys(named[kind.name])), options))
            for kind in types
            if named[kind.name]
        ),
        options,
    )
    if not any(read.tasks for _, read in suite.kinds):
        reasons = [f"  {problem.task}: {problem.message}" for problem in suite.problems]
        raise DataError("\n".join(["no task has data to score:", *reasons, *suite.remedy]))
    return suite
