"""Curves: cosine densities, singular spectra, trajectories, correlation by dimension.

Shapes: P pairs, X points of the axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from contrasent.evaluation.geometry import Geometry, Trajectory
from contrasent.metrics import Vector
from contrasent.report.figures.style import LINES, FigureData, FigureKind, Picture, look, picture

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
    curve: Vector = total / (len(values) * width * np.sqrt(2 * np.pi))
    return curve


def densities(panels: Mapping[str, Mapping[str, Geometry]]) -> Picture:
    """A panel for each encoder by its label, a density for each group of ratings.

    In a panel all densities have one scale, so that a narrow one is high. ``panels`` are by what is
    written over them.
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
            for column, (label, geometry) in enumerate(line.items()):
                axes = grid[place, column]
                _panel(axes, geometry)
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


def _panel(axes: Axes, geometry: Geometry) -> None:
    from matplotlib import colormaps

    points = np.linspace(-1, 1, _POINTS)
    curves = [density(group.cosines, points) for group in geometry.groups]
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
    axes.set_yticks(range(len(curves)), [group.label for group in geometry.groups])
    axes.set_ylim(-0.15, len(curves) - 1 + _ROWS_HIGH + 0.1)
    axes.set_xlim(-1, 1)
    axes.set_xticks([-1, -0.5, 0, 0.5, 1], ["-1", "-0.5", "0", "0.5", "1"])
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


SPECTRA = "singular-values"


def spectra(panels: Mapping[str, Mapping[str, Geometry]]) -> Picture:
    """A curve for each encoder by its label; the largest value is 1.

    ``panels`` are side by side, by their titles.
    """

    def draw(figure: Figure) -> None:
        drawn = figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True).ravel()
        for axes, (title, rows) in zip(drawn, panels.items(), strict=True):
            _curves(axes, rows)
            if title:
                axes.set_title(title)
        drawn[0].set_xlim(left=0)
        drawn[0].set_ylim(0, 1.02)
        drawn[0].set_ylabel("singular value / largest")
        some = next(iter(next(iter(panels.values())).values()))
        caption = f"{some.sentences:,} sentences of {some.heading}, unit length"
        figure.supxlabel(f"index of the singular value ({caption})", fontsize=9)

    return picture(SPECTRA, (1.2 + 3.4 * len(panels), 3.2), draw)


def _curves(axes: Axes, rows: Mapping[str, Geometry]) -> None:
    for number, (label, geometry) in enumerate(rows.items()):
        axes.plot(
            np.arange(1, len(geometry.spectrum) + 1),
            geometry.spectrum,
            color=look(number)[0],
            # Colour alone would not do in print.
            linestyle=LINES[number % len(LINES)],
            linewidth=1.6,
            label=label,
        )
    axes.legend(loc="upper right")


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
            arrowprops={"arrowstyle": "-|>", "color": look(number)[0], "shrinkA": 0, "shrinkB": 0},
        )


DIMENSIONS = "sts-by-dimension"


def correlation_curves(rows: Mapping[str, Geometry]) -> Picture:
    """A curve for each encoder by its label, over a logarithmic axis of dimensions.

    As Figure 2 of Kusupati et al. 2022, Matryoshka representation learning.
    """

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        sizes: set[int] = set()
        for number, (label, geometry) in enumerate(rows.items()):
            points = sorted(geometry.by_dimension.items())
            sizes |= geometry.by_dimension.keys()
            axes.plot(
                [size for size, _ in points],
                [100 * value for _, value in points],
                color=look(number)[0],
                marker=look(number)[1],
                linestyle=LINES[number % len(LINES)],
                linewidth=1.6,
                label=label,
            )
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted(sizes), [str(size) for size in sorted(sizes)])
        axes.minorticks_off()
        some = next(iter(rows.values()))
        axes.set_xlabel("leading dimensions kept")
        axes.set_ylabel(f"Spearman x 100, {some.heading} ({some.rated:,} pairs)")
        axes.legend(loc="lower right")

    return picture(DIMENSIONS, (4.8, 3.4), draw)


def run_lines(runs: Mapping[str, Trajectory]) -> list[str]:
    """Each run's way through the plane, from its first measurement to its last."""
    return [
        f"{label}: {len(run.steps)} measurements on {run.pairs}, steps {run.steps[0]} to "
        f"{run.steps[-1]}: alignment {run.positions[0].alignment:.4f} to "
        f"{run.positions[-1].alignment:.4f}, uniformity {run.positions[0].uniformity:.4f} to "
        f"{run.positions[-1].uniformity:.4f}."
        for label, run in runs.items()
    ]


def _run_caption(data: FigureData) -> str:
    ring = "A ring is the start of training, a large marker with its step the end."
    return " ".join([ring, *run_lines(data.runs)])


FIGURES = (
    FigureKind(
        name=SPECTRA,
        place=2,
        heading="Singular values",
        draw=lambda data: spectra(data.panels),
        caption=lambda _: (
            "Singular values of the matrix of unit vectors, the largest set to 1; a "
            "curve that falls slowly uses more directions."
        ),
    ),
    FigureKind(
        name=DENSITIES,
        place=3,
        heading="Cosines by human rating",
        draw=lambda data: densities(data.panels),
        caption=lambda _: (
            "Densities of the cosines of all rated pairs, by their human rating; the "
            "less they overlap, the better the cosines tell the ratings apart."
        ),
    ),
    FigureKind(
        name=TRAJECTORIES,
        place=4,
        heading="Alignment and uniformity over training",
        of_runs=True,
        draw=lambda data: trajectories(data.runs),
        caption=_run_caption,
    ),
    FigureKind(
        name=DIMENSIONS,
        place=5,
        heading="Correlation by dimension",
        draw=lambda data: correlation_curves(data.rows),
        caption=lambda _: (
            "Spearman's correlation of cosines and human ratings when only the first dimensions of "
            "an embedding are kept; a curve that falls late can be cut short."
        ),
        shows=lambda data: any(len(it.by_dimension) > 1 for it in data.rows.values()),
    ),
)
