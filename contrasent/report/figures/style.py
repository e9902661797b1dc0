"""Figures: which there are, their look, and their form on disk, the same bytes every time."""

from __future__ import annotations

import io
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from contrasent.errors import ConfigError
from contrasent.evaluation.geometry import Geometry, Trajectory
from contrasent.files import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


FORMATS = ("svg", "png")

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, told apart with every kind of colour vision; without yellow, pale on white."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", ":", "-.")

GREY = "#6e6e6e"

_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "figure.facecolor": "white",
    "svg.fonttype": "path",
}
_DPI = 200
_NO_METADATA = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}


def look(number: int) -> tuple[str, str, str]:
    """Colour, marker and line of the curve of this number; the first 28 are all different."""
    again = number // len(COLOURS)
    marker = MARKERS[(number + again) % len(MARKERS)]
    return COLOURS[number % len(COLOURS)], marker, LINES[again % len(LINES)]


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure in both formats: ``svg``, its text as outlines, and ``png``, 200 dots per inch.

    ``size`` is its width and height in inches, ``name`` that of its files.
    """

    name: str
    size: tuple[float, float]
    svg: bytes
    png: bytes

    @property
    def link(self) -> str:
        """The SVG as the source of an image in a page."""
        return "data:image/svg+xml," + quote(self.svg, safe=" ,;='()/")


def picture(name: str, size: tuple[float, float], draw: Callable[[Figure], None]) -> Picture:
    """Draw a figure in the common style, whatever the user's settings of matplotlib are.

    Args:
        name: of its files.
        size: width and height in inches.
        draw: puts everything on the empty figure.
    """
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rendered = {}
    # The salt makes the ids inside an SVG depend on nothing but its content.
    with style.context(["default", {**_STYLE, "svg.hashsalt": name}]):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        for kind in FORMATS:
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=_DPI, metadata=_NO_METADATA[kind])
            rendered[kind] = buffer.getvalue()
    return Picture(name, size, rendered["svg"], rendered["png"])


def files_of(folder: str | Path, names: Iterable[str]) -> list[Path]:
    """Where :func:`write_pictures` writes pictures of these names."""
    return [Path(folder) / f"{name}.{kind}" for name in names for kind in FORMATS]


def refuse_existing_pictures(folder: str | Path, names: Iterable[str]) -> None:
    """Make sure that no picture is there yet.

    Raises:
        ConfigError: one is, or ``folder`` is a file.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; name a folder for the figures")
    existing = next((path for path in files_of(folder, names) if path.exists()), None)
    if existing:
        raise ConfigError(f"{existing} exists already; name another folder or add --overwrite")


def write_pictures(folder: str | Path, pictures: Iterable[Picture]) -> list[Path]:
    """Write pictures as SVG and PNG, each whole or not at all; returns the files."""
    written = []
    for drawn in pictures:
        for path in files_of(folder, [drawn.name]):
            with writing(path) as partial:
                partial.write_bytes(drawn.svg if path.suffix == ".svg" else drawn.png)
            written.append(path)
    return written


@dataclass(frozen=True, slots=True)
class Colours:
    """The title of a figure's colours, and by label those that are known, Spearman in [-1, 1]."""

    title: str = ""
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FigureData:
    """Everything a figure may show, measured on the same pairs, by the labels of encoders and runs.

    Attributes:
        rows: geometry of the encoders.
        panels: the same, side by side, by the panel's title.
        published: show the points that papers print beside the encoders.
    """

    rows: Mapping[str, Geometry] = field(default_factory=dict)
    panels: Mapping[str, Mapping[str, Geometry]] = field(default_factory=dict)
    colours: Colours = Colours()
    published: bool = True
    runs: Mapping[str, Trajectory] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FigureKind:
    """A figure that can be drawn, of runs or of encoders; ``place`` is its place among others."""

    name: str
    place: int
    heading: str
    of_runs: bool
    draw: Callable[[FigureData], Picture]
    caption: Callable[[FigureData], str]


def figure_kinds() -> list[FigureKind]:
    """All figures, in the order in which they are shown."""
    from contrasent.report import figures

    names = (module.name for module in pkgutil.iter_modules(figures.__path__, f"{__package__}."))
    kinds = (kind for name in names for kind in getattr(import_module(name), "FIGURES", ()))
    return sorted(kinds, key=lambda kind: kind.place)


def draw_figures(data: FigureData) -> list[tuple[FigureKind, Picture]]:
    """Every figure that there is data for."""
    return [
        (kind, kind.draw(data))
        for kind in figure_kinds()
        if (data.runs if kind.of_runs else data.rows)
    ]
