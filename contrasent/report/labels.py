"""Short names for rows and points that no two of them share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from contrasent.evaluate.geometry import Geometry
from contrasent.evaluate.trajectory import Trajectory


def labelled(found: Sequence[Geometry]) -> dict[str, Geometry]:
    """Geometries by the last part of the encoder's name.

    Where that is not one's alone, by what tells them apart first: the pooler, the precision, the
    whole name; then by their number.
    """
    short = [Path(geometry.encoder).name or geometry.encoder for geometry in found]
    records = [geometry.records[0] for geometry in found]
    poolers = [f"{a} ({r.pooler})" for a, r in zip(short, records, strict=True)]
    precise = [f"{a} ({r.pooler}, {r.precision})" for a, r in zip(short, records, strict=True)]
    whole = [f"{r.encoder} ({r.pooler}, {r.precision})" for r in records]
    return dict(zip(_apart(short, poolers, precise, whole), found, strict=True))


def labelled_runs(found: Sequence[Trajectory]) -> dict[str, Trajectory]:
    """Trajectories by the name of their folder, with a number where two folders share it."""
    return dict(zip(_apart([run.label for run in found]), found, strict=True))


def _apart(*choices: Sequence[str]) -> list[str]:
    """Of each row the first choice that is no other row's; else the last one and a number."""
    labels = []
    for row, last in enumerate(choices[-1]):
        own = (names[row] for names in choices if names.count(names[row]) == 1)
        labels.append(next(own, f"{last} #{row + 1}"))
    return labels
