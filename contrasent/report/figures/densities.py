"""Cosines of sentence pairs by human rating: SimCSE's Figure G.1, DiffCSE's Figure 2.

Shapes: P pairs, X points of the axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from contrasent.evaluate.geometry import Geometry
from contrasent.metrics import Vector
from contrasent.report.figures.canvas import Picture, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DENSITIES = "cosine-densities"

_COLUMNS = 3
_POINTS = 801
_NARROWEST = 0.004
_ROWS_HIGH = 1.7
_THINNEST = 0.004
_WIDTH, _HEIGHT, _LABELS, _TITLES = 2.5, 2.5, 0.7, 0.2


def density(values: Vector, points: Vector) -> Vector:
    """Gaussian kernel density of ``values (P,)`` at ``points (X,)``, as ``(X,)``.

    The width is Scott's rule, P^(-1/5) times the standard deviation, and at least 0.004, so that
    equal values are a narrow peak.
    """
    width = max(
        len(values) ** -0.2 * (np.std(values, ddof=1) if len(values) > 1 else 0), _NARROWEST
    )
    total = np.zeros(len(points))
    for start in range(0, len(values), 1024):
        part = values[start : start + 1024]
        total += np.exp(-0.5 * ((points[:, None] - part) / width) ** 2).sum(axis=1)
    found: Vector = total / (len(values) * width * np.sqrt(2 * np.pi))
    return found


def densities(panels: Mapping[str, Mapping[str, Geometry]]) -> Picture:
    """A panel for each encoder by its label, a density for each group of ratings.

    In a panel all densities have one scale, so that a narrow one is high.

    Args:
        panels: encoders whose panels stand together, by what is written over them.
    """
    widest = max(len(rows) for rows in panels.values())
    columns = min(widest, _COLUMNS)
    titles = _TITLES if any(panels) else 0
    lines = [line for title, rows in panels.items() for line in _lines(title, rows, columns)]

    def draw(figure: Figure) -> None:
        grid = figure.subplots(len(lines), columns, squeeze=False, sharex=True, sharey=True)
        for place, line in enumerate(lines):
            for axes in grid[place, len(line) :]:
                axes.set_visible(False)
            for column, (label, found) in enumerate(line.items()):
                axes = grid[place, column]
                _panel(axes, found)
                axes.set_title(label)
                axes.tick_params(labelbottom=True)
                if all(len(below) <= column for below in lines[place + 1 :]):
                    axes.set_xlabel("cosine")
        some = next(iter(lines[0].values()))
        figure.supylabel(f"human rating, {some.heading} ({some.rated:,} pairs)", fontsize=9)

    return picture(
        DENSITIES, (_LABELS + _WIDTH * columns, 0.4 + (_HEIGHT + titles) * len(lines)), draw
    )


def _lines(title: str, rows: Mapping[str, Geometry], columns: int) -> Iterator[dict[str, Geometry]]:
    """Rows of panels, with what is written over each panel."""
    named = [(f"{title}\n{label}" if title else label, found) for label, found in rows.items()]
    for start in range(0, len(named), columns):
        yield dict(named[start : start + columns])


def _panel(axes: Axes, found: Geometry) -> None:
    from matplotlib import colormaps

    points = np.linspace(-1, 1, _POINTS)
    curves = [density(group.cosines, points) for group in found.groups]
    scale = _ROWS_HIGH / max(float(curve.max()) for curve in curves)
    shades = colormaps["viridis"](np.linspace(0.1, 0.9, len(curves)))
    # The upper rows first, so that a high peak stands before the row above it.
    for number in reversed(range(len(curves))):
        seen = np.flatnonzero(scale * curves[number] > _THINNEST)
        part = slice(seen[0], seen[-1] + 1)
        axes.fill_between(
            points[part],
            number,
            number + scale * curves[number][part],
            facecolor=shades[number],
            edgecolor="white",
            linewidth=0.7,
            alpha=0.9,
            zorder=2 + len(curves) - number,
        )
    axes.set_yticks(range(len(curves)), [group.label for group in found.groups])
    axes.set_ylim(-0.15, len(curves) - 1 + _ROWS_HIGH + 0.1)
    axes.set_xlim(-1, 1)
    axes.set_xticks([-1, -0.5, 0, 0.5, 1], ["-1", "-0.5", "0", "0.5", "1"])
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
