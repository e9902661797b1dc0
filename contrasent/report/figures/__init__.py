"""Figures of the papers, from saved numbers alone: which there are, their look, their form on disk.

A figure has the same bytes every time.
"""

import io
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from contrasent.errors import DataError
from contrasent.evaluation.geometry import Geometry, Trajectory
from contrasent.evaluation.task_names import STS, TaskName
from contrasent.files import writing
from contrasent.records import Record
from contrasent.report.contents import identity, labelled_runs
from contrasent.report.scores_table import Column, first_of_each

if TYPE_CHECKING:
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
        text = " ".join(self.svg.decode().split())
        return f"data:image/svg+xml,{quote(text, safe=_AS_IT_IS)}"

    @property
    def pixels(self) -> int:
        """Width in a page, so that the letters of all pictures are of one size."""
        return round(_PIXELS * self.size[0])


def picture(name: str, size: tuple[float, float], draw: "Callable[[Figure], None]") -> Picture:
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
            raise DataError(
                f"{' and '.join(pairs)} are different pairs, whose numbers do not belong in one "
                "figure; draw them one after the other, into two folders"
            )
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


def figure_kinds() -> list[FigureKind]:
    """All figures, in the order in which they are shown."""
    modules = [import_module(f"{__name__}.{it.name}") for it in pkgutil.iter_modules(__path__)]
    return [kind for module in modules for kind in getattr(module, "FIGURES", ())]


def draw_figures(data: FigureData) -> list[tuple[FigureKind, Picture]]:
    """Every figure that there is data for."""
    return [
        (kind, kind.draw(data))
        for kind in figure_kinds()
        if (data.runs if kind.of_runs else data.rows)
    ]
