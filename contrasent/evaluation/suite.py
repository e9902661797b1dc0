"""All that encoders are scored on, whatever its kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from contrasent.data.senteval import how_to_get_data, senteval_root
from contrasent.errors import CheckpointError, ConfigError, DataError
from contrasent.evaluation.embed import DescribedEncoder
from contrasent.evaluation.sts import Problem, Scores
from contrasent.evaluation.task_types import EncoderUse, Options, TaskData, TaskText, TaskType
from contrasent.evaluation.vectors import Given


@dataclass(frozen=True, slots=True)
class Suite:
    """Tasks read once, to be scored for any number of encoders.

    Attributes:
        kinds: each kind that was asked for, with what was read of it, in the order of the tables.
        options: how it was asked for.
    """

    kinds: tuple[tuple[TaskType[Any], TaskData[Any]], ...]
    options: Options

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Why tasks could not be read."""
        return tuple(problem for _, read in self.kinds for problem in read.problems)

    @property
    def notes(self) -> list[str]:
        """How users' files were understood, where that had to be guessed."""
        said = [kind.note(task) for kind, read in self.kinds for task in read.tasks]
        return [note for note in said if note]

    def tasks(self, kind: str) -> tuple[Any, ...]:
        """What was read of one kind, by its name."""
        return tuple(t for known, read in self.kinds if known.name == kind for t in read.tasks)

    def given(self) -> list[Given]:
        """What a matrix has to have rows for, of all tasks."""
        return [kind.given(task) for kind, read in self.kinds for task in read.tasks]

    def texts(self) -> Iterator[TaskText]:
        """The text of all tasks."""
        for kind, read in self.kinds:
            for task in read.tasks:
                yield from kind.texts(task)

    def records(
        self, encoder: DescribedEncoder, precision: str, *, show_progress: bool = False
    ) -> Scores:
        """Everything there is, in the order of the tables.

        Where an encoder cannot be scored on one kind of tasks, those of the others are kept.

        Raises:
            ConfigError: no such precision.
            CheckpointError: the encoder cannot be scored on any kind.
        """
        use = EncoderUse(encoder, precision, show_progress=show_progress)
        parts: list[Scores] = []
        problems: list[Problem] = []
        failed: list[CheckpointError] = []
        for kind, read in self.kinds:
            if read.tasks:
                try:
                    parts.append(kind.records(read.tasks, use, self.options))
                except CheckpointError as error:
                    failed.append(error)
                    label = ", ".join(kind.named(task).label for task in read.tasks)
                    problems.append(Problem(label, str(error)))
        if failed and not parts:
            raise failed[0]
        return Scores.together([*parts, Scores((), tuple(problems))])


def task_types() -> list[TaskType[Any]]:
    """All task types, in the order of their tables."""
    from contrasent.evaluation import labelled, retrieval, sts_suite, transfer

    types = (module.TASK_TYPE for module in (labelled, retrieval, sts_suite, transfer))
    return sorted(types, key=lambda task_type: task_type.place)


def load_suite(tasks: Sequence[str], options: Options | None = None) -> Suite:
    """Read those tasks whose data is there and in order; the others are problems.

    Args:
        tasks: as the kinds' ``names`` take them.
        options: what else was asked for; the test splits by SimCSE's protocol if None.

    Raises:
        ConfigError: a task or split is unknown, or columns are chosen and no file is named.
        DataError: the folder that was named is not there, or no task could be read; the message
            then says why for each.
    """
    options = options or Options()
    rest: Sequence[str] = tasks
    if not rest:
        raise ConfigError("no task to score: an empty list")
    found = {}
    for kind in reversed(task_types()):
        if rest:
            found[kind], rest = kind.names(rest, options)
    named = [name for names in found.values() for name in names]
    if any(name.in_senteval for name in named):
        senteval_root(options.data_dir)
    if options.columns is not None and all(name.in_senteval for name in named):
        raise ConfigError(
            f"--columns is of your own files, and none is named: {', '.join(tasks)}; leave it out"
        )
    read = [(kind, kind.read(names, options)) for kind, names in found.items() if names]
    suite = Suite(tuple(read[::-1]), options)
    if not any(part.tasks for _, part in read):
        reasons = [f"  {problem.task}: {problem.message}" for problem in suite.problems]
        remedy = [how_to_get_data()] if any(p.missing for p in suite.problems) else []
        raise DataError("\n".join(["no task has data to score:", *reasons, *remedy]))
    return suite
