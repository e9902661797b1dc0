"""Pairs of sentences with a score, scored by a correlation; what no other kind knows is one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from contrasent.evaluate.compare import Comparison, compare
from contrasent.evaluate.kinds.base import Kind, Options, Read, Text, Use
from contrasent.evaluate.pairs import require_different
from contrasent.evaluate.read import Task, load
from contrasent.evaluate.run import of_protocol, parts_to_fit
from contrasent.evaluate.statistics import Bootstrap
from contrasent.evaluate.sts import Scores, StsTasks
from contrasent.evaluate.tasks import STS, TaskName, task_names
from contrasent.evaluate.vectors import Given, Side


@dataclass(frozen=True, slots=True)
class Rated:
    """One split of a task, and what its regressor is fitted to.

    Attributes:
        task: the pairs.
        fitted: train and dev split; None where cosines are scored.
    """

    task: Task
    fitted: tuple[Task, Task] | None = None


class Sts(Kind[Rated]):
    """Correlations."""

    name = "sts"
    place = 10

    def names(self, asked: Sequence[str], options: Options) -> tuple[list[TaskName], list[str]]:
        """All of them, as :func:`contrasent.evaluate.tasks.task_names` takes them.

        Raises:
            ConfigError: a task is unknown or has no such split.
        """
        return of_protocol(task_names(asked, options.splits), options.protocol), []

    def load(self, names: Sequence[TaskName], options: Options) -> Rated:
        """Read one split, and what its regressor needs; a constant score is no score."""
        (name,) = names
        fitted = parts_to_fit(name, options.protocol, options.data_dir)
        task = load(name, options.data_dir, options.columns)
        if name.name not in STS:
            require_different(name.label, task.subsets[0].gold)
        return Rated(task, fitted)

    def records(self, tasks: Sequence[Rated], use: Use, options: Options) -> Scores:
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
        read: Read[Rated],
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

    def named(self, task: Rated) -> TaskName:
        """Its own name."""
        return task.task.name

    def note(self, task: Rated) -> str:
        """How columns and header of a user's file were understood."""
        return task.task.note

    def texts(self, task: Rated) -> Iterator[Text]:
        """All pairs, as training text must not have both sentences."""
        subsets = task.task.subsets
        pairs = [pair for s in subsets for pair in zip(s.first, s.second, strict=True)]
        sentences = [sentence for pair in pairs for sentence in pair]
        yield Text(task.task.name.name, task.task.name.split, sentences, pairs)

    def given(self, task: Rated) -> Given:
        """The first sentences of all scored pairs, then the second."""
        sides = [
            Side(f"{which} sentences of the scored pairs", tuple(sentences))
            for which, sentences in (
                ("first", [s for subset in task.task.subsets for s in subset.first]),
                ("second", [s for subset in task.task.subsets for s in subset.second]),
            )
        ]
        return Given(task.task.name.heading, tuple(sides))


KIND = Sts()
