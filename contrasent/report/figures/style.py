"""Figures: which there are, their look, and their form on disk, the same bytes every time."""

from __future__ import annotations

import io
import pkgutil
import re
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
_DPI, _PIXELS = 200, 1.36
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
    svg: bytes  # text as outlines, so that it looks the same everywhere
    png: bytes  # the same at 200 dots per inch

    @property
    def link(self) -> str:
        """A link that holds the SVG."""
        text = " ".join(self.svg.decode().split())
        return f"data:image/svg+xml,{quote(text, safe=_AS_IT_IS)}"

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in points."""
        found = re.search(rb'viewBox="0 0 ([\d.]+) ([\d.]+)"', self.svg)
        return (float(found[1]), float(found[2])) if found else (1.0, 1.0)

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
    return Picture(name, rendered["svg"], rendered["png"])


def refuse_existing_pictures(folder: str | Path, names: Iterable[str]) -> None:
    """Make sure that no picture is there yet; ConfigError if one is, or ``folder`` is a file."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; name a folder for the figures")
    paths = (folder / f"{name}.{kind}" for name in names for kind in FORMATS)
    if existing := next(filter(Path.exists, paths), None):
        raise ConfigError(f"{existing} exists already; name another folder or add --overwrite")


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
class Colours:
    """The scale of a figure's colours."""

    title: str = ""  # such as ``STS Avg.``
    # Spearman, in [-1, 1], by the label of the encoder; one may be absent
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FigureData:
    """Everything a figure may show, all of it measured on the same pairs."""

    # geometry by the label of the encoder
    rows: Mapping[str, Geometry] = field(default_factory=dict)
    # the same, side by side, by the panel's title
    panels: Mapping[str, Mapping[str, Geometry]] = field(default_factory=dict)
    colours: Colours = Colours()  # STS scores of the encoders
    published: bool = True  # show the points that papers print beside the encoders
    runs: Mapping[str, Trajectory] = field(default_factory=dict)  # training runs by their labels


@dataclass(frozen=True, slots=True)
class FigureKind:
    """A figure that can be drawn."""

    name: str  # of its files
    place: int  # among the others, the smallest first
    heading: str  # above it in a report
    draw: Callable[[FigureData], Picture]  # draws it, under its name
    caption: Callable[[FigureData], str]  # how to read it
    # whether there is something to draw, where it needs more than geometry or a run
    shows: Callable[[FigureData], bool] = lambda _: True
    of_runs: bool = False  # it shows training runs, and not the geometry of encoders


def figure_kinds() -> list[FigureKind]:
    """All figures, in the order in which they are shown."""
    from contrasent.report import figures

    modules = [
        import_module(f"{__package__}.{it.name}") for it in pkgutil.iter_modules(figures.__path__)
    ]
    kinds = [kind for module in modules for kind in getattr(module, "FIGURES", ())]
    return sorted(kinds, key=lambda kind: kind.place)


def draw_figures(data: FigureData) -> list[tuple[FigureKind, Picture]]:
    """Every figure that there is data for."""
    return [
        (kind, kind.draw(data))
        for kind in figure_kinds()
        if (data.runs if kind.of_runs else data.rows) and kind.shows(data)
    ]
