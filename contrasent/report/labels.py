"""Short names for rows and points that no two of them share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from contrasent.evaluate.geometry import Geometry
from contrasent.evaluate.neighbours import Neighbours
from contrasent.evaluate.trajectory import Trajectory
from contrasent.records import Record


def short_name(encoder: str) -> str:
    """The last part of a name; of ``best`` and ``last`` of a run, that of the run too."""
    path = Path(encoder)
    run = path.parent.name
    return f"{run}/{path.name}" if run and path.name in ("best", "last") else path.name or encoder


def labelled(found: Sequence[Geometry]) -> dict[str, Geometry]:
    """Geometries by the short name of the encoder.

    Where that is not one's alone, by what tells them apart first: the pooler, the precision, the
    whole name; then by their number.
    """
    return dict(zip(_of_encoders([it.records[0] for it in found]), found, strict=True))


def labelled_neighbours(found: Sequence[Neighbours]) -> dict[str, Neighbours]:
    """Neighbours by the encoder that found them, named as in :func:`labelled`."""
    return dict(zip(_of_encoders(found), found, strict=True))


def labelled_runs(found: Sequence[Trajectory]) -> dict[str, Trajectory]:
    """Trajectories by the name of their folder, with a number where two folders share it."""
    return dict(zip(_apart([run.label for run in found]), found, strict=True))


def _of_encoders(used: Sequence[Record | Neighbours]) -> list[str]:
    short = [short_name(it.encoder) for it in used]
    poolers = [f"{a} ({it.pooler})" for a, it in zip(short, used, strict=True)]
    precise = [f"{a} ({it.pooler}, {it.precision})" for a, it in zip(short, used, strict=True)]
    whole = [f"{it.encoder} ({it.pooler}, {it.precision})" for it in used]
    return _apart(short, poolers, precise, whole)


def _apart(*choices: Sequence[str]) -> list[str]:
    """Of each row the first choice that is no other row's; else the last one and a number."""
    labels = []
    for row, last in enumerate(choices[-1]):
        own = (names[row] for names in choices if names.count(names[row]) == 1)
        labels.append(next(own, f"{last} #{row + 1}"))
    return labels
