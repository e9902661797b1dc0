"""Figures of the papers, from saved numbers alone. A file here that has FIGURES adds its own."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module

from contrasent.evaluation.geometry import Geometry
from contrasent.evaluation.trajectory import Trajectory
from contrasent.report.figures.style import Picture


@dataclass(frozen=True, slots=True)
class Colours:
    """The scale of a figure's colours.

    Attributes:
        title: such as ``STS Avg.``.
        values: Spearman, in [-1, 1], by the label of the encoder; one may be absent.
    """

    title: str = ""
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FigureData:
    """Everything a figure may show, all of it measured on the same pairs.

    Attributes:
        rows: geometry by the label of the encoder.
        panels: the same, side by side, by the panel's title.
        colours: STS scores of the encoders.
        published: show the points that papers print beside the encoders.
        runs: training runs by their labels.
    """

    rows: Mapping[str, Geometry] = field(default_factory=dict)
    panels: Mapping[str, Mapping[str, Geometry]] = field(default_factory=dict)
    colours: Colours = Colours()
    published: bool = True
    runs: Mapping[str, Trajectory] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FigureKind:
    """A figure that can be drawn.

    Attributes:
        name: of its files.
        place: among the others, the smallest first.
        heading: above it in a report.
        of_runs: it shows training runs, and not the geometry of encoders.
        draw: draws it, under its name.
        caption: how to read it.
    """

    name: str
    place: int
    heading: str
    of_runs: bool
    draw: Callable[[FigureData], Picture]
    caption: Callable[[FigureData], str]


def figure_kinds() -> list[FigureKind]:
    """All figures, in the order in which they are shown."""
    modules = [import_module(f"{__name__}.{it.name}") for it in pkgutil.iter_modules(__path__)]
    kinds = [kind for module in modules for kind in getattr(module, "FIGURES", ())]
    return sorted(kinds, key=lambda kind: kind.place)


def draw_figures(data: FigureData) -> list[tuple[FigureKind, Picture]]:
    """Every figure that there is data for."""
    return [
        (kind, kind.draw(data))
        for kind in figure_kinds()
        if (data.runs if kind.of_runs else data.rows)
    ]
