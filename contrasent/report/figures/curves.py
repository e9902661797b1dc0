"""Cosine densities, singular spectra, and the plane of alignment and uniformity.

Shapes: P pairs, X points of the axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from contrasent.evaluation.geometry import Geometry, Trajectory
from contrasent.metrics import Vector
from contrasent.report.figures import (
    ABOVE,
    GREY,
    LINES,
    FigureData,
    FigureKind,
    Picture,
    look,
    picture,
)
from contrasent.report.table import number as printed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


DENSITIES = "cosine-densities"

_COLUMNS, _POINTS, _NARROWEST, _THINNEST = 3, 801, 0.004, 0.004
_ROWS_HIGH = 1.7
_WIDTH, _HEIGHT, _LABELS, _TITLES = 2.5, 2.5, 0.7, 0.2


def density(values: Vector, points: Vector) -> Vector:
    """Gaussian kernel density of ``values (P,)`` at ``points (X,)``, as ``(X,)``.

    The width is Scott's rule, P^(-1/5) times the standard deviation, and at least 0.004, so that
    equal values are a narrow peak.
    """
    scott = len(values) ** -0.2 * (np.std(values, ddof=1) if len(values) > 1 else 0)
    width = max(scott, _NARROWEST)
    kernels = np.exp(-0.5 * ((points[:, None] - values) / width) ** 2)
    curve: Vector = kernels.sum(axis=1) / (len(values) * width * np.sqrt(2 * np.pi))
    return curve


def densities(panels: Mapping[str, Mapping[str, Geometry]]) -> Picture:
    """A panel for each encoder by its label, a density for each group of ratings.

    In a panel all densities have one scale, so that a narrow one is high. ``panels`` are by what is
    written over them.
    """
    columns = min(max(len(rows) for rows in panels.values()), _COLUMNS)
    titles = _TITLES if any(panels) else 0
    lines = []
    for title, rows in panels.items():
        named = [(f"{title}\n{label}" if title else label, curve) for label, curve in rows.items()]
        lines += [dict(named[k : k + columns]) for k in range(0, len(named), columns)]

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

    size = _LABELS + _WIDTH * columns, 0.4 + (_HEIGHT + titles) * len(lines)
    return picture(DENSITIES, size, draw)


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
        style: dict[str, Any] = {"facecolor": shades[number], "edgecolor": "white"}
        style |= {"linewidth": 0.7, "alpha": 0.9, "zorder": 2 + len(curves) - number}
        axes.fill_between(points[part], number, number + scale * curves[number][part], **style)
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
            for number, (label, geometry) in enumerate(rows.items()):
                colour, line = look(number)[0], LINES[number % len(LINES)]
                index = np.arange(1, len(geometry.spectrum) + 1)
                axes.plot(index, geometry.spectrum, line, color=colour, label=label, linewidth=1.6)
            axes.legend(loc="upper right")
            if title:
                axes.set_title(title)
        drawn[0].set_xlim(left=0)
        drawn[0].set_ylim(0, 1.02)
        drawn[0].set_ylabel("singular value / largest")
        some = next(iter(next(iter(panels.values())).values()))
        caption = f"{some.sentences:,} sentences of {some.heading}, unit length"
        figure.supxlabel(f"index of the singular value ({caption})", fontsize=9)

    return picture(SPECTRA, (1.2 + 3.4 * len(panels), 3.2), draw)


TRAJECTORIES = "alignment-uniformity-training"

_THIN: dict[str, Any] = {"markersize": 3, "linewidth": 1}
_ARROWS: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "scale": 1, "width": 0.004}


def trajectories(runs: Mapping[str, Trajectory]) -> Picture:
    """A line for each run by its label, arrows in the direction of training.

    A ring is the start, a large marker the end, with the number of its step.
    """
    places = {
        label: np.array([(it.uniformity, it.alignment) for it in run.positions])
        for label, run in runs.items()
    }

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for number, (label, points) in enumerate(places.items()):
            colour, marker, line = look(number)
            x, y = points.T
            axes.plot(x, y, color=colour, marker=marker, linestyle=line, label=label, **_THIN)
            axes.quiver(*points[:-1].T, *np.diff(points, axis=0).T, color=colour, **_ARROWS)
            axes.plot(x[0], y[0], marker="o", markersize=9, markerfacecolor="none", color=colour)
            axes.plot(x[-1], y[-1], marker=marker, markersize=7, color=colour)
            axes.annotate(f"{runs[label].steps[-1]}", points[-1], color=colour, **ABOVE)
        axes.margins(0.08)
        axes.set_xlabel("uniformity (lower is more even)")
        axes.set_ylabel("alignment (lower is closer)")
        axes.set_title(f"measured on {next(iter(runs.values())).pairs}", loc="left")
        figure.legend(loc="outside lower center", ncols=min(len(runs), 3))

    return picture(TRAJECTORIES, (4.8, 3.5 + 0.2 * -(-len(runs) // 3)), draw)


def run_lines(runs: Mapping[str, Trajectory]) -> list[str]:
    """Each run's way through the plane, from its first measurement to its last."""
    return [
        f"{label}: {len(run.steps)} measurements on {run.pairs}, steps {run.steps[0]} to "
        f"{run.steps[-1]}: alignment {run.positions[0].alignment:.4f} to "
        f"{run.positions[-1].alignment:.4f}, uniformity {run.positions[0].uniformity:.4f} to "
        f"{run.positions[-1].uniformity:.4f}."
        for label, run in runs.items()
    ]


PLANE = "alignment-uniformity"

_SCALE = (40, 100)
"""Of the colours, in points of Spearman x 100: the paper's."""


def plane(data: FigureData) -> Picture:
    """A numbered point for each encoder; below, labels and scores: SimCSE's Figure 3."""
    rows = data.rows

    def draw(figure: Figure) -> None:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        (low, high), axes = _SCALE, figure.subplots()
        shades = ScalarMappable(Normalize(low, high), "viridis")
        for place, (label, geometry) in enumerate(rows.items(), start=1):
            at = geometry.value("uniformity") or 0.0, geometry.value("alignment") or 0.0
            known = data.colours.get(label)
            score = "" if known is None else f" ({100 * known:.1f})"
            colour = GREY if known is None else shades.cmap((100 * known - low) / (high - low))
            name = f"{place}  {label}{score}"
            axes.plot(*at, "o", color=colour, markeredgecolor="black", label=name)
            axes.annotate(f"{place}", at, **ABOVE)
        some = next(iter(rows.values()))
        close = some.records[0]
        axes.set_xlabel(f"uniformity of {some.sentences:,} sentences")
        axes.set_ylabel(f"alignment of {close.pairs:,} pairs rated {close.subset}")
        axes.set_title(f"{some.heading}; lower left is better", loc="left")
        axes.margins(0.12, 0.16)
        figure.colorbar(shades, ax=axes, pad=0.02).set_label(data.title)
        figure.legend(loc="outside lower center", ncols=2)

    return picture(PLANE, (5.6, 3.5 + 0.2 * -(-len(rows) // 2)), draw)


def _caption(data: FigureData) -> str:
    places = "; ".join(
        f"{label}: alignment {printed(it.value('alignment'), 4).text}, "
        f"uniformity {printed(it.value('uniformity'), 4).text}"
        for label, it in data.rows.items()
    )
    return (
        "Close pairs (lower) and an even spread (further left) are better. Colour and number in "
        f"brackets: {data.title}. {places}."
    )


FIGURES = (
    FigureKind(PLANE, "Alignment and uniformity", plane, _caption),
    FigureKind(
        name=SPECTRA,
        heading="Singular values",
        draw=lambda data: spectra(data.panels),
        caption=lambda _: (
            "Singular values of the matrix of unit vectors, the largest set to 1; a "
            "curve that falls slowly uses more directions."
        ),
    ),
    FigureKind(
        name=DENSITIES,
        heading="Cosines by human rating",
        draw=lambda data: densities(data.panels),
        caption=lambda _: (
            "Densities of the cosines of all rated pairs, by their human rating; the "
            "less they overlap, the better the cosines tell the ratings apart."
        ),
    ),
    FigureKind(
        name=TRAJECTORIES,
        heading="Alignment and uniformity over training",
        of_runs=True,
        draw=lambda data: trajectories(data.runs),
        caption=lambda data: " ".join(
            [
                "A ring is the start of training, a large marker with its step the end.",
                *run_lines(data.runs),
            ]
        ),
    ),
)
