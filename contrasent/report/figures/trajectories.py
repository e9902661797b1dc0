"""Alignment and uniformity over training: SimCSE's Figure 2, Figure 1 of its replication study."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from contrasent.evaluate.trajectory import Trajectory
from contrasent.report.figures.canvas import Picture, look, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAJECTORIES = "alignment-uniformity-training"

_ARROWS = 5
_LONG = 18
_ABOVE = 9
_FREE = np.array([9, 7])
"""Half of the width and height of a number's place, in dots."""


def trajectories(runs: Mapping[str, Trajectory]) -> Picture:
    """A line for each run by its label, arrows in the direction of training.

    A ring is the start, a large marker the end. Numbers are steps, at the end and wherever there is
    room for one.
    """

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for number, (label, run) in enumerate(runs.items()):
            _line(axes, run, label, number)
        axes.margins(0.08)
        axes.autoscale_view()
        for number, run in enumerate(runs.values()):
            _arrows(axes, run, number)
        _steps(axes, runs)
        some = next(iter(runs.values()))
        axes.set_xlabel("uniformity (lower is more even)")
        axes.set_ylabel("alignment (lower is closer)")
        axes.set_title(f"measured on {some.pairs}", loc="left")
        figure.legend(loc="outside lower center", ncols=min(len(runs), 3))

    lines = -(-len(runs) // 3)
    return picture(TRAJECTORIES, (4.8, 3.5 + 0.2 * lines), draw)


def _line(axes: Axes, run: Trajectory, label: str, number: int) -> None:
    colour, marker, line = look(number)
    x = np.array([position.uniformity for position in run.positions])
    y = np.array([position.alignment for position in run.positions])
    axes.plot(
        x, y, color=colour, marker=marker, linestyle=line, markersize=3, linewidth=1, label=label
    )
    axes.plot(x[0], y[0], marker="o", markersize=9, markerfacecolor="none", color=colour)
    axes.plot(x[-1], y[-1], marker=marker, markersize=7, color=colour)


def _steps(axes: Axes, runs: Mapping[str, Trajectory]) -> None:
    """The numbers of the last steps, and then those of others that stand free of all points."""
    points = [
        (step, number, (place.uniformity, place.alignment), step == run.steps[-1])
        for number, run in enumerate(runs.values())
        for step, place in zip(run.steps, run.positions, strict=True)
    ]
    points.sort(key=lambda it: not it[3])
    shown = axes.transData.transform([place for _, _, place, _ in points])
    dots = axes.figure.dpi / 72
    taken: list[NDArray[np.float64]] = []
    for (step, number, place, last), dot in zip(points, shown, strict=True):
        middle = dot + np.array([0, _ABOVE * dots])
        covers = (np.abs(shown - middle) < _FREE).all(axis=1).any()
        crowded = any((np.abs(other - middle) < 2 * _FREE).all() for other in taken)
        if last or not (covers or crowded):
            axes.annotate(
                f"{step}",
                place,
                xytext=(0, _ABOVE),
                textcoords="offset points",
                ha="center",
                va="center",
                fontsize=7,
                color=look(number)[0],
            )
            taken.append(middle)


def _arrows(axes: Axes, run: Trajectory, number: int) -> None:
    """Arrow heads on some of the steps that are long enough to carry one."""
    points = np.array([(place.uniformity, place.alignment) for place in run.positions])
    shown = axes.transData.transform(points)
    long = np.flatnonzero(np.linalg.norm(np.diff(shown, axis=0), axis=1) >= _LONG)
    if not len(long):
        return
    for step in np.unique(long[np.linspace(0, len(long) - 1, _ARROWS).astype(int)]):
        axes.annotate(
            "",
            (points[step] + points[step + 1]) / 2,
            xytext=points[step],
            arrowprops={
                "arrowstyle": "-|>",
                "color": look(number)[0],
                "shrinkA": 0,
                "shrinkB": 0,
            },
        )
