"""Saved results, recognised by their content."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrasent.errors import DataError
from contrasent.evaluation.geometry import KIND, Geometry, read_geometry
from contrasent.evaluation.neighbours import KIND as NEIGHBOURS
from contrasent.evaluation.neighbours import Neighbours, read_neighbours
from contrasent.evaluation.trajectory import Trajectory, read_trajectory
from contrasent.records import Record, read_records


@dataclass(frozen=True, slots=True)
class Saved:
    """Results read from files.

    Attributes:
        geometries: written by ``contrasent analyze --json``.
        runs: training runs that measured geometry.
        records: written by ``contrasent evaluate --json``, or a run's ``scores.jsonl``.
        neighbours: written by ``contrasent neighbours --json``.
    """

    geometries: tuple[Geometry, ...] = ()
    runs: tuple[Trajectory, ...] = ()
    records: tuple[Record, ...] = ()
    neighbours: tuple[Neighbours, ...] = ()


def read_saved(paths: Iterable[str | Path]) -> Saved:
    """Read files of measured geometry, training runs, records of scores and nearest neighbours.

    Raises:
        DataError: a path is not there, or is none of them.
    """
    geometries: list[Geometry] = []
    runs: list[Trajectory] = []
    records: list[Record] = []
    neighbours: list[Neighbours] = []
    for path in map(Path, paths):
        if not path.exists():
            raise DataError(f"{path} does not exist; name a file that was saved, or a training run")
        first = {} if path.is_dir() else _first_line(path)
        if first.get("kind") == KIND:
            geometries += read_geometry(path)
        elif first.get("kind") == NEIGHBOURS:
            neighbours += read_neighbours(path)
        elif "metric" in first:
            records += read_records(path)
        elif path.is_dir() or "step" in first:
            runs.append(read_trajectory(path))
        else:
            raise DataError(
                f"{path} holds no measured geometry, no scores, no nearest neighbours and no "
                "training run; name what 'contrasent analyze --json', 'contrasent evaluate --json' "
                "or 'contrasent neighbours --json' wrote, or a run's folder"
            )
    return Saved(tuple(geometries), tuple(runs), tuple(records), tuple(neighbours))


def _first_line(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            values = json.loads(file.readline())
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}
