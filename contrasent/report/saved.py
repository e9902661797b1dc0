"""Saved results, and labels for them that no two share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrasent.errors import DataError
from contrasent.evaluation.geometry import (
    KIND,
    Geometry,
    Trajectory,
    read_geometry,
    read_trajectory,
)
from contrasent.evaluation.neighbours import KIND as NEIGHBOURS
from contrasent.evaluation.neighbours import Neighbours, read_neighbours
from contrasent.records import Record, read_records

Used = Record | Neighbours
"""A result, which has with it how the encoder was used."""


def short_encoder(encoder: str) -> str:
    """The last part of a name; of ``best`` and ``last`` of a run, that of the run too."""
    path = Path(encoder)
    run = path.parent.name
    return f"{run}/{path.name}" if run and path.name in ("best", "last") else path.name or encoder


def described(label: str, used: Used) -> str:
    """How the encoder was used whose row has this label."""
    parts = [
        f"pooler {used.pooler}",
        f"head {used.head}" if used.head else "",
        used.transform or "",
        used.precision,
        f"sentences cut at {used.max_tokens} tokens" if used.max_tokens else "",
        f"encoder {used.encoder}" if used.encoder != label else "",
    ]
    return ", ".join(filter(None, parts))


def labelled(geometries: Sequence[Geometry]) -> dict[str, Geometry]:
    """Geometries by labels as :func:`labels` makes them."""
    return dict(zip(labels([it.records[0] for it in geometries]), geometries, strict=True))


def labels(results: Sequence[Used]) -> list[str]:
    """The short name of each encoder.

    Where that is not one's alone, it is followed by what tells them apart first: the pooler, the
    precision, everything known; or it is the whole name, in the end with a number.
    """
    short = [short_encoder(it.encoder) for it in results]
    ways = [(it.pooler, f"{it.pooler}, {it.precision}", _everything(it)) for it in results]
    choices = [[f"{a} ({way[k]})" for a, way in zip(short, ways, strict=True)] for k in range(3)]
    whole = [f"{it.encoder} ({way[1]})" for it, way in zip(results, ways, strict=True)]
    return _distinct(short, *choices, whole)


def labelled_runs(runs: Sequence[Trajectory]) -> dict[str, Trajectory]:
    """Trajectories by the name of their folder, with a number where two folders share it."""
    return dict(zip(_distinct([run.label for run in runs]), runs, strict=True))


def _everything(used: Used) -> str:
    """All that is known of how an encoder was used."""
    known = [
        used.pooler,
        f"head {used.head}" if used.head else "",
        used.transform or "",
        used.precision,
        used.engine or "",
        f"cut at {used.max_tokens}" if used.max_tokens else "",
        "" if used.seed is None else f"seed {used.seed}",
    ]
    return ", ".join(filter(None, known))


def _distinct(*choices: Sequence[str]) -> list[str]:
    """Of each row the first choice that is no other row's; else the last one and a number."""
    labels = []
    for row, last in enumerate(choices[-1]):
        unique = (names[row] for names in choices if names.count(names[row]) == 1)
        labels.append(next(unique, f"{last} #{row + 1}"))
    return labels


@dataclass(frozen=True, slots=True)
class Saved:
    """Results read from files."""

    geometries: tuple[Geometry, ...] = ()  # written by ``contrasent analyze --json``
    runs: tuple[Trajectory, ...] = ()  # training runs that measured geometry
    # written by ``contrasent evaluate --json``, or a run's ``scores.jsonl``
    records: tuple[Record, ...] = ()
    neighbours: tuple[Neighbours, ...] = ()  # written by ``contrasent neighbours --json``


def read_saved(paths: Iterable[str | Path]) -> Saved:
    """Read files of measured geometry, training runs, records of scores and nearest neighbours.

    DataError if a path is not there, or is none of them.
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
