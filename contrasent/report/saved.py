"""What commands saved before, told apart by its content."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrasent.errors import DataError
from contrasent.evaluation.geometry import KIND, Geometry, read_geometry
from contrasent.evaluation.neighbours import KIND as NEIGHBOURS
from contrasent.evaluation.neighbours import Neighbours, read_neighbours
from contrasent.evaluation.task_names import STS
from contrasent.evaluation.trajectory import Trajectory, read_trajectory
from contrasent.records import Record, read_records
from contrasent.report.figures.plane import Colours


@dataclass(frozen=True, slots=True)
class Saved:
    """What files held.

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


def sts_colours(rows: dict[str, Geometry], records: Sequence[Record]) -> Colours:
    """What Figure 3 shows as colour.

    That is the average of the seven STS tasks where ``records`` have it for every encoder, and
    otherwise, for every encoder, the correlation on the pairs that were measured: the two are not
    comparable, so they never share a scale.
    """
    averages = {label: _average(found.records[0], records) for label, found in rows.items()}
    known = {label: value for label, value in averages.items() if value is not None}
    if len(known) == len(rows):
        return Colours("STS Avg., Spearman x 100", known)
    own = {label: found.value("spearman") for label, found in rows.items()}
    some = next(iter(rows.values()))
    return Colours(
        f"{some.heading}, Spearman x 100",
        {label: value for label, value in own.items() if value is not None},
    )


def refuse_other_pairs(rows: Iterable[Geometry | Trajectory]) -> None:
    """Make sure that all were measured on the same pairs.

    Raises:
        DataError: they were not, so that their numbers do not belong in one figure.
    """
    found = list(dict.fromkeys(row.pairs for row in rows))
    if len(found) > 1:
        raise DataError(
            f"{' and '.join(found)} are different pairs, whose numbers do not belong in one "
            "figure; draw them one after the other, into two folders"
        )


def _first_line(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            found = json.loads(file.readline())
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _average(like: Record, records: Sequence[Record]) -> float | None:
    """Mean over the test splits of the seven tasks, of the encoder as ``like`` has it."""
    same = (like.encoder, like.pooler, like.head, like.transform)
    values = {
        record.task: record.value
        for record in records
        if (record.encoder, record.pooler, record.head, record.transform) == same
        and (record.metric, record.aggregation, record.split) == ("spearman", "all", "test")
        and record.regressor is None
        and record.task in STS
    }
    return sum(values.values()) / len(STS) if len(values) == len(STS) else None
