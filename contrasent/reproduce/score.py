"""Scores and geometry of one encoder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from contrasent.errors import ContrasentError
from contrasent.evaluate.described import Encoder
from contrasent.evaluate.geometry import Geometry, measure
from contrasent.evaluate.kinds.base import Options
from contrasent.evaluate.rated_pairs import RatedPairs
from contrasent.evaluate.suite import Suite, load_suite
from contrasent.evaluate.transfer_presets import Protocol
from contrasent.records import Record


@dataclass(frozen=True, slots=True)
class Examined:
    """What was measured of one encoder.

    Attributes:
        records: of all tasks.
        geometry: of the pairs; None if it cannot be measured.
        problems: what could not be computed, and why.
    """

    records: tuple[Record, ...]
    geometry: Geometry | None
    problems: tuple[str, ...]


def examine(encoder: Encoder, tasks: Tasks, seed: int | None) -> Examined:
    """Score an encoder on the tasks and measure its geometry.

    Args:
        encoder: what is measured.
        tasks: on what.
        seed: of the training run that made it, for the records.

    Raises:
        CheckpointError: it cannot be scored on any task.
    """
    suite, pairs = tasks.read()
    found = suite.records(encoder, "fp32")
    problems = [*suite.problems, *found.problems]
    said = [f"{problem.task}: {problem.message}" for problem in problems]
    geometry = None
    try:
        geometry = measure(encoder, pairs, seed=seed)
    except ContrasentError as error:
        said.append(str(error))
    records = tuple(replace(record, seed=seed) for record in found.records)
    return Examined(records, geometry, tuple(said))


@dataclass(frozen=True, slots=True)
class Tasks:
    """What encoders are measured on.

    Attributes:
        names: as ``contrasent evaluate --tasks`` takes them.
        preset: SentEval's settings of the classifiers.
        geometry: the pairs of alignment and uniformity.
        data_dir: SentEval's folder.
    """

    names: tuple[str, ...]
    preset: str
    geometry: str
    data_dir: str | None

    def read(self) -> tuple[Suite, RatedPairs]:
        """The data, read once in a process.

        Raises:
            ConfigError: a name is unknown.
            DataError: data is missing or damaged.
        """
        return _read(self)


@cache
def _read(tasks: Tasks) -> tuple[Suite, RatedPairs]:
    options = Options(tasks.data_dir, learning=Protocol(preset=tasks.preset))
    suite = load_suite(tasks.names, options)
    return suite, RatedPairs.read(tasks.geometry, tasks.data_dir)
