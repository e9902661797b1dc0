"""From task names to records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from contrasent.data.senteval import senteval_root
from contrasent.errors import DataError
from contrasent.evaluate.read import MissingDataError, Task, how_to_get_data, load
from contrasent.evaluate.sts import Encoder, Problem, StsTasks
from contrasent.evaluate.tasks import STS, TaskName, task_names
from contrasent.records import Record


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was asked for, what of it could be read, and why the rest could not."""

    names: tuple[TaskName, ...]
    tasks: tuple[Task, ...]
    problems: tuple[Problem, ...]


def load_available(
    tasks: Sequence[str],
    data_dir: str | Path | None = None,
    splits: Sequence[str] = ("test",),
) -> Loaded:
    """Read those tasks whose data is there and in order.

    Raises:
        ConfigError: a task or split is unknown.
        DataError: the folder that was named is not there, a user's file is missing or damaged,
            or no task could be read; the message then says why for each.
    """
    names = task_names(tasks, splits)
    if any(name.name in STS for name in names):
        data_dir = senteval_root(data_dir)
    found: list[Task] = []
    problems: list[Problem] = []
    for name in names:
        try:
            found.append(load(name, data_dir))
        except MissingDataError as error:
            problems.append(Problem(name.label, f"{error.path} is missing", missing=True))
        except DataError as error:
            if name.name not in STS:
                raise
            problems.append(Problem(name.label, str(error)))
    if not found:
        reasons = [f"  {problem.task}: {problem.message}" for problem in problems]
        remedy = [how_to_get_data()] if any(problem.missing for problem in problems) else []
        raise DataError("\n".join(["no task has data to score:", *reasons, *remedy]))
    return Loaded(tuple(names), tuple(found), tuple(problems))


def evaluate(
    encoder: Encoder,
    tasks: Sequence[str] = ("sts",),
    data_dir: str | Path | None = None,
    *,
    precision: str = "fp32",
    splits: Sequence[str] = ("test",),
    seed: int | None = None,
    show_progress: bool = False,
) -> list[Record]:
    """Score an encoder on STS tasks as SentEval does in the form that SimCSE gave it.

    Args:
        encoder: what is measured; the mode it is in (training or not) stays as it is.
        tasks: as :func:`contrasent.evaluate.tasks.task_names` takes them.
        data_dir: a folder in SentEval's layout; else ``CONTRASENT_DATA``, else the folder that
            ``contrasent data fetch`` fills.
        precision: ``fp32``, ``bf16``, or what the encoder's engine computes in.
        splits: splits of the tasks named without one.
        seed: the seed of the training run that made the encoder, for the records.
        show_progress: a progress bar while encoding.

    Returns:
        Records of every metric, aggregation and subset, in the order of the tasks.

    Raises:
        ConfigError: a task, split or precision is unknown.
        DataError: a task's data is missing or damaged, or a correlation does not exist.
        CheckpointError: an embedding is zero or not finite.
    """
    read = StsTasks([load(name, data_dir) for name in task_names(tasks, splits)])
    scores = read.records(encoder, precision=precision, seed=seed, show_progress=show_progress)
    if scores.problems:
        raise DataError("; ".join(problem.message for problem in scores.problems))
    return list(scores.records)
