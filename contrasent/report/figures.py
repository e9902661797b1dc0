"""Figures of the papers, from saved numbers alone: which there are, their look, their form on disk.

A figure has the same bytes every time. Shapes: P pairs, X points of the axis.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from contrasent.errors import DataError
from contrasent.evaluation.geometry import Geometry, Trajectory
from contrasent.evaluation.task_names import STS, TaskName
from contrasent.files import writing
from contrasent.metrics import Vector
from contrasent.records import Record
from contrasent.report.contents import identity, labelled_runs
from contrasent.report.scores_table import Column, first_of_each
from contrasent.report.table import number as printed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


FORMATS = ("svg", "png")

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, told apart with every kind of colour vision; without yellow, pale on white."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", ":", "-.")

GREY = "#6e6e6e"

ABOVE: dict[str, Any] = {
    "xytext": (0, 9),
    "textcoords": "offset points",
    "ha": "center",
    "va": "center",
    "fontsize": 7,
}
"""How a number stands above a point."""

_STYLE = Path(__file__).with_name("papers.mplstyle")
_DPI, _PIXELS = 200, 72 * 1.36
_AS_IT_IS = " =/,;()"
"""Characters that stand for themselves in a link, beside letters and digits."""

_NO_METADATA = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}


def look(number: int) -> tuple[str, str, str]:
    """Colour, marker and line of the curve of this number; the first 28 are all different."""
    again = number // len(COLOURS)
    marker = MARKERS[(number + again) % len(MARKERS)]
    return COLOURS[number % len(COLOURS)], marker, LINES[again % len(LINES)]


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure in both formats."""

    name: str  # of its files
    size: tuple[float, float]  # width and height in inches
    svg: bytes  # text as outlines, so that it looks the same everywhere
    png: bytes  # the same at 200 dots per inch

    @property
    def link(self) -> str:
        """A link that holds the SVG."""
        return f"data:image/svg+xml,{quote(' '.join(self.svg.decode().split()), safe=_AS_IT_IS)}"

    @property
    def pixels(self) -> int:
        """Width in a page, so that the letters of all pictures are of one size."""
        return round(_PIXELS * self.size[0])


def picture(name: str, size: tuple[float, float], draw: Callable[[Figure], None]) -> Picture:
    """Draw a figure in the common style, whatever the user's settings of matplotlib are.

    ``draw`` puts everything on an empty figure of ``size`` inches.
    """
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rendered: dict[str, bytes] = {}
    # The salt makes the ids inside an SVG depend on nothing but its content.
    with style.context(["default", _STYLE, {"svg.hashsalt": name}]):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        for kind in FORMATS:
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=_DPI, metadata=_NO_METADATA[kind])
            rendered[kind] = buffer.getvalue()
    return Picture(name, size, **rendered)


def write_pictures(folder: str | Path, pictures: Iterable[Picture]) -> list[Path]:
    """Write pictures as SVG and PNG, each whole or not at all; returns the files."""
    written = []
    for drawn in pictures:
        for kind in FORMATS:
            written.append(Path(folder) / f"{drawn.name}.{kind}")
            with writing(written[-1]) as partial:
                partial.write_bytes(getattr(drawn, kind))
    return written


@dataclass(frozen=True, slots=True)
class FigureData:
    """Everything a figure may show, all of it measured on the same pairs."""

    rows: Mapping[str, Geometry] = field(default_factory=dict)  # by the label of the encoder
    # the same, side by side, by the panel's title
    panels: Mapping[str, Mapping[str, Geometry]] = field(default_factory=dict)
    runs: Mapping[str, Trajectory] = field(default_factory=dict)  # training runs by their labels
    title: str = ""  # of the scale of the colours, such as ``STS Avg.``
    # Spearman, in [-1, 1], by the label of the encoder; one may be absent
    colours: Mapping[str, float] = field(default_factory=dict)


def figure_data(
    rows: Mapping[str, Geometry], runs: Sequence[Trajectory], records: Sequence[Record] = ()
) -> FigureData:
    """Numbers to draw; DataError if they were not measured on the same pairs.

    ``rows`` are for Figures 3, F.1 and G.1 of SimCSE and Figure 2 of DiffCSE, ``runs`` for Figure 2
    of SimCSE and Figure 1 of its replication study, ``records`` for the colours of Figure 3.
    """
    for results in (rows.values(), runs):
        pairs = list(dict.fromkeys(result.pairs for result in results))
        if len(pairs) > 1:
            what = "are different pairs, whose numbers do not belong in one figure"
            remedy = "draw them one after the other, into two folders"
            raise DataError(f"{' and '.join(pairs)} {what}; {remedy}")
    return FigureData(
        rows,
        {"": rows} if rows else {},
        labelled_runs(runs) if runs else {},
        *(sts_colours(rows, records) if rows else ("", {})),
    )


def sts_colours(
    rows: Mapping[str, Geometry], records: Sequence[Record]
) -> tuple[str, dict[str, float]]:
    """The colours of Figure 3, and the title of their scale.

    That is the average of the seven STS tasks where ``records`` have it for every encoder, and
    otherwise, for every encoder, the correlation on the pairs that were measured: the two are not
    comparable, so they never share a scale.
    """
    average = Column("STS Avg.", tuple((TaskName(task), "spearman") for task in STS))
    averages = {}
    for label, it in rows.items():
        of_encoder = [
            record
            for record in records
            if identity(record) == identity(it.records[0])
            and (record.aggregation, record.regressor) == ("all", None)
        ]
        averages[label] = average.cell(first_of_each(of_encoder)).value
    heading = average.heading
    if None in averages.values():
        averages = {label: it.value("spearman") for label, it in rows.items()}
        heading = next(iter(rows.values())).heading
    known = {label: value for label, value in averages.items() if value is not None}
    return f"{heading}, Spearman x 100", known


@dataclass(frozen=True, slots=True)
class FigureKind:
    """A figure that can be drawn."""

    name: str  # of its files
    heading: str  # above it in a report
    draw: Callable[[FigureData], Picture]  # draws it, under its name
    caption: Callable[[FigureData], str]  # how to read it
    of_runs: bool = False  # it shows training runs, and not the geometry of encoders


DENSITIES = "cosine-densities"

_COLUMNS, _POINTS, _NARROWEST, _THINNEST = 3, 801, 0.004, 0.004
_ROWS_HIGH = 1.7
_WIDTH, _HEIGHT, _LABELS, _TITLES = 2.5, 2.5, 0.7, 0.2
_LETTERS, _LINE = 28, 64  # of a title, and of the only label in a line


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
    lines = list[list[tuple[str, Geometry]]]()
    for title, rows in panels.items():
        start = f"{title}\n" if title else ""
        named = [(f"{start}{fill(label, _LETTERS)}", curve) for label, curve in rows.items()]
        lines += [named[k : k + columns] for k in range(0, len(named), columns)]

    def draw(figure: Figure) -> None:
        grid = figure.subplots(len(lines), columns, squeeze=False, sharex=True, sharey=True)
        for place, line in enumerate(lines):
            for axes in grid[place, len(line) :]:
                axes.set_visible(False)
            for column, (label, geometry) in enumerate(line):
                axes = grid[place, column]
                _panel(axes, geometry)
                axes.set_title(label)
                axes.tick_params(labelbottom=True)
                if all(len(below) <= column for below in lines[place + 1 :]):
                    axes.set_xlabel("cosine")
        (_, some), *_ = lines[0]
        figure.supylabel(f"human rating, {some.heading} ({some.rated:,} pairs)", fontsize=9)

    breaks = sum(max(label.count("\n") for label, _ in line) for line in lines)
    size = _LABELS + _WIDTH * columns, 0.4 + _HEIGHT * len(lines) + _TITLES * breaks
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
            axes.legend(axes.lines, [fill(it, _LETTERS) for it in rows], loc="upper right")
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
        figure.legend(handles=axes.lines[::3], loc="outside lower center", ncols=columns)

    columns = max(1, min(3, 60 // (6 + max(map(len, runs)))))
    return picture(TRAJECTORIES, (4.8, 3.5 + 0.2 * -(-len(runs) // columns)), draw)


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
    rows, scores, names = data.rows, list[float | None](), list[str]()
    for place, label in enumerate(rows, start=1):
        scores.append(known := data.colours.get(label))
        score = "" if known is None else f" ({100 * known:.1f})"
        names.append(fill(f"{place}  {label}{score}", _LINE))
    columns = max(1, min(2, 84 // (6 + max(map(len, names)))))

    def draw(figure: Figure) -> None:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        (low, high), axes = _SCALE, figure.subplots()
        shades = ScalarMappable(Normalize(low, high), "viridis")
        for name, known, geometry in zip(names, scores, rows.values(), strict=True):
            at = geometry.value("uniformity") or 0.0, geometry.value("alignment") or 0.0
            colour = GREY if known is None else shades.cmap((100 * known - low) / (high - low))
            axes.plot(*at, "o", color=colour, markeredgecolor="black", label=name)
            axes.annotate(name.split()[0], at, **ABOVE)
        some = next(iter(rows.values()))
        close = some.records[0]
        axes.set_xlabel(f"uniformity of {some.sentences:,} sentences")
        axes.set_ylabel(f"alignment of {close.pairs:,} pairs rated {close.subset}")
        axes.set_title(f"{some.heading}; lower left is better", loc="left")
        axes.margins(0.12, 0.16)
        figure.colorbar(shades, ax=axes, pad=0.02).set_label(data.title)
        figure.legend(loc="outside lower center", ncols=columns)

    lines = sum(1 + name.count("\n") for name in names)
    return picture(PLANE, (5.6, 3.5 + 0.2 * -(-lines // columns)), draw)


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


_SPECTRA = (
    "Singular values of the matrix of unit vectors, the largest set to 1; a curve that falls "
    "slowly uses more directions."
)
_DENSITIES = (
    "Densities of the cosines of all rated pairs, by their human rating; the less they overlap, "
    "the better the cosines tell the ratings apart."
)
_RUNS = "A ring is the start of training, a large marker with its step the end."
FIGURES = (
    FigureKind(PLANE, "Alignment and uniformity", plane, _caption),
    FigureKind(SPECTRA, "Singular values", lambda it: spectra(it.panels), lambda _: _SPECTRA),
    FigureKind(
        DENSITIES, "Cosines by human rating", lambda it: densities(it.panels), lambda _: _DENSITIES
    ),
    FigureKind(
        TRAJECTORIES,
        "Alignment and uniformity over training",
        lambda it: trajectories(it.runs),
        lambda it: " ".join([_RUNS, *run_lines(it.runs)]),
        of_runs=True,
    ),
)
"""All figures, in the order in which they are shown."""


def draw_figures(data: FigureData) -> list[tuple[FigureKind, Picture]]:
    """Every figure that there is data for."""
    return [(it, it.draw(data)) for it in FIGURES if (data.runs if it.of_runs else data.rows)]
