"""All that encoders are scored on: correlations of STS tasks, transfer tasks, retrieval."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from contrasent.errors import CheckpointError, DataError
from contrasent.evaluate.described import Encoder
from contrasent.evaluate.protocols import SIMCSE, Protocol
from contrasent.evaluate.read import how_to_get_data
from contrasent.evaluate.retrieval import RetrievalTasks
from contrasent.evaluate.retrieval_tasks import LoadedRetrieval, load_retrievals, retrieval_names
from contrasent.evaluate.run import Loaded, load_available
from contrasent.evaluate.statistics import Bootstrap
from contrasent.evaluate.sts import Problem, Scores, StsTasks
from contrasent.evaluate.transfer import TransferTasks
from contrasent.evaluate.transfer_presets import Protocol as Learning
from contrasent.evaluate.transfer_tasks import LoadedTransfer, load_transfers, transfer_names


@dataclass(frozen=True, slots=True)
class Suite:
    """Tasks read once, to be scored for any number of encoders.

    Attributes:
        loaded: tasks scored by correlations.
        learned: tasks scored by classifiers.
        protocol: of the correlations.
        learning: of the classifiers.
        bootstrap: how intervals of correlations are computed; None for none.
        retrieved: tasks scored by rankings.
    """

    loaded: Loaded
    learned: LoadedTransfer
    protocol: Protocol
    learning: Learning
    bootstrap: Bootstrap | None = None
    retrieved: LoadedRetrieval = field(default_factory=LoadedRetrieval)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Why tasks could not be read."""
        return (*self.loaded.problems, *self.learned.problems, *self.retrieved.problems)

    def records(self, encoder: Encoder, precision: str, *, show_progress: bool = False) -> Scores:
        """Everything there is, correlations first; arguments and errors as those of the kinds.

        Where an encoder cannot be scored on one kind of tasks, those of the others are kept.
        """
        parts: list[Scores] = []
        problems: list[Problem] = []
        failed: list[CheckpointError] = []
        for label, tasks in self._kinds():
            try:
                parts.append(tasks(encoder, precision=precision, show_progress=show_progress))
            except CheckpointError as error:
                failed.append(error)
                problems.append(Problem(label, str(error)))
        if failed and not parts:
            raise failed[0]
        return Scores(
            tuple(record for part in parts for record in part.records),
            (*(problem for part in parts for problem in part.problems), *problems),
            {label: found for part in parts for label, found in part.similarities.items()},
        )

    def _kinds(self) -> Iterator[tuple[str, Callable[..., Scores]]]:
        """Tasks that are scored alike: their labels, and what scores them."""
        if self.loaded.tasks:
            correlated = StsTasks(self.loaded.tasks, self.loaded.fitted).records
            chosen = partial(correlated, protocol=self.protocol, bootstrap=self.bootstrap)
            yield ", ".join(task.name.label for task in self.loaded.tasks), chosen
        if self.learned.tasks:
            learned = TransferTasks(self.learned.tasks, self.learned.names, self.learning)
            yield ", ".join(task.name for task in self.learned.tasks), learned.records
        if self.retrieved.tasks:
            ranked = RetrievalTasks(self.retrieved.tasks)
            yield ", ".join(task.name.label for task in self.retrieved.tasks), ranked.records


def load_suite(
    tasks: Sequence[str],
    data_dir: str | Path | None = None,
    splits: Sequence[str] = ("test",),
    *,
    protocol: Protocol = SIMCSE,
    learning: Learning | None = None,
    bootstrap: Bootstrap | None = None,
    columns: Sequence[str] | None = None,
) -> Suite:
    """Read those tasks whose data is there and in order; the others are problems.

    Args:
        tasks: as :func:`contrasent.evaluate.retrieval_tasks.retrieval_names`,
            :func:`contrasent.evaluate.transfer_tasks.transfer_names` and
            :func:`contrasent.evaluate.tasks.task_names` take them.
        data_dir: as :func:`contrasent.evaluate.run.evaluate` takes it.
        splits: splits of the tasks named without one.
        protocol: of the correlations.
        learning: of the classifiers; SentEval's preset ``test`` by default.
        bootstrap: how intervals of correlations are computed; None for none.
        columns: of users' files.

    Raises:
        ConfigError: a task or split is unknown.
        DataError: the folder that was named is not there, or no task could be read; the message
            then says why for each.
    """
    ranked, others = retrieval_names(tasks, splits)
    retrieved = load_retrievals(ranked, data_dir)
    names, others = transfer_names(others, splits)
    learned = load_transfers(names, data_dir)
    kept = bool(retrieved.tasks or learned.tasks)
    problems = (*retrieved.problems, *learned.problems)
    loaded = Loaded((), (), ())
    if others or not (names or ranked):
        try:
            loaded = load_available(
                others, data_dir, splits, protocol=protocol, columns=columns, keep_going=True
            )
        except DataError as error:
            if not kept:
                raise DataError("\n".join([str(error), *_reasons(problems)])) from error
            loaded = Loaded((), (), (Problem(", ".join(others), str(error)),))
    if not loaded.tasks and not kept:
        remedy = [how_to_get_data()] if any(problem.missing for problem in problems) else []
        raise DataError("\n".join(["no task has data to score:", *_reasons(problems), *remedy]))
    return Suite(loaded, learned, protocol, learning or Learning(), bootstrap, retrieved)


def _reasons(problems: Sequence[Problem]) -> list[str]:
    return [f"  {problem.task}: {problem.message}" for problem in problems]
