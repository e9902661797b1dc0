"""Short names for rows and points that no two of them share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from contrasent.evaluation.geometry import Geometry
from contrasent.evaluation.neighbours import Neighbours
from contrasent.evaluation.trajectory import Trajectory


class Used(Protocol):
    """An encoder as it was used, which every saved result tells."""

    @property
    def encoder(self) -> str:
        """The name or folder."""

    @property
    def pooler(self) -> str:
        """How token states became the embedding."""

    @property
    def head(self) -> str | None:
        """The map after the pooler."""

    @property
    def transform(self) -> str | None:
        """The map after the head."""

    @property
    def max_tokens(self) -> int | None:
        """Longer sentences were cut there."""

    @property
    def engine(self) -> str | None:
        """What computed the transformer where that was not torch."""

    @property
    def precision(self) -> str:
        """What it was computed in."""

    @property
    def seed(self) -> int | None:
        """The seed of the training run that made the encoder."""

    @property
    def versions(self) -> Mapping[str, str]:
        """Of the packages."""


def short_name(encoder: str) -> str:
    """The last part of a name; of ``best`` and ``last`` of a run, that of the run too."""
    path = Path(encoder)
    run = path.parent.name
    return f"{run}/{path.name}" if run and path.name in ("best", "last") else path.name or encoder


def labelled(found: Sequence[Geometry]) -> dict[str, Geometry]:
    """Geometries by labels as :func:`labels` makes them."""
    return dict(zip(labels([geometry.records[0] for geometry in found]), found, strict=True))


def labelled_neighbours(found: Sequence[Neighbours]) -> dict[str, Neighbours]:
    """Neighbours by the encoder that found them, named as in :func:`labels`."""
    return dict(zip(labels(found), found, strict=True))


def labels(found: Sequence[Used]) -> list[str]:
    """The short name of each encoder.

    Where that is not one's alone, it is followed by what tells them apart first: the pooler, the
    precision, everything known; or it is the whole name, in the end with a number.
    """
    short = [short_name(it.encoder) for it in found]
    ways = [(it.pooler, f"{it.pooler}, {it.precision}", _everything(it)) for it in found]
    choices = [[f"{a} ({way[k]})" for a, way in zip(short, ways, strict=True)] for k in range(3)]
    whole = [f"{it.encoder} ({way[1]})" for it, way in zip(found, ways, strict=True)]
    return _apart(short, *choices, whole)


def labelled_runs(found: Sequence[Trajectory]) -> dict[str, Trajectory]:
    """Trajectories by the name of their folder, with a number where two folders share it."""
    return dict(zip(_apart([run.label for run in found]), found, strict=True))


def _everything(found: Used) -> str:
    """All that is told of how an encoder was used."""
    known = [
        found.pooler,
        f"head {found.head}" if found.head else "",
        found.transform or "",
        found.precision,
        found.engine or "",
        f"cut at {found.max_tokens}" if found.max_tokens else "",
        "" if found.seed is None else f"seed {found.seed}",
    ]
    return ", ".join(part for part in known if part)


def _apart(*choices: Sequence[str]) -> list[str]:
    """Of each row the first choice that is no other row's; else the last one and a number."""
    labels = []
    for row, last in enumerate(choices[-1]):
        own = (names[row] for names in choices if names.count(names[row]) == 1)
        labels.append(next(own, f"{last} #{row + 1}"))
    return labels
