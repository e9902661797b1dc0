"""Scores and geometry of one encoder, each sentence embedded once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from contrasent.evaluate.described import Embeddings, Encoder
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


class Remembering:
    """An encoder that computes each sentence once, in fp32, however many tasks have it."""

    def __init__(self, encoder: Encoder, name: str) -> None:
        """Wrap ``encoder``, whose other attributes stay visible, under the ``name`` of its row."""
        self.name = name
        self._encoder = encoder
        self._rows: dict[str, int] = {}
        self._embeddings: list[Embeddings] = []

    def __getattr__(self, name: str) -> Any:
        """What tables tell of the encoder."""
        return getattr(self._encoder, name)

    @property
    def pooler(self) -> str:
        """How token states became the embedding."""
        return self._encoder.pooler

    def encode(
        self, sentences: list[str], *, precision: str = "fp32", show_progress: bool = False
    ) -> np.ndarray:
        """Embed N sentences, ``(N, D)``."""
        new = list(dict.fromkeys(it for it in sentences if it not in self._rows))
        if new:
            found = self._encoder.encode(new, precision=precision, show_progress=show_progress)
            self._rows.update({it: len(self._rows) + k for k, it in enumerate(new)})
            self._embeddings = [np.concatenate([*self._embeddings, found])]
        whole = self._embeddings[0]
        return np.ascontiguousarray(whole[[self._rows[it] for it in sentences]])


def examine(encoder: Encoder, name: str, tasks: Tasks, seed: int | None) -> Examined:
    """Score an encoder on the tasks and measure its geometry.

    Args:
        encoder: what is measured.
        name: of its row, which the records have in place of a folder.
        tasks: on what.
        seed: of the training run that made it, for the records.

    Raises:
        CheckpointError: it cannot be scored on any task.
    """
    from contrasent.errors import ContrasentError

    suite, pairs = tasks.read()
    once = Remembering(encoder, name)
    found = suite.records(once, "fp32")
    problems = [*suite.problems, *found.problems]
    said = [f"{problem.task}: {problem.message}" for problem in problems]
    geometry = None
    try:
        geometry = measure(once, pairs, seed=seed)
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
