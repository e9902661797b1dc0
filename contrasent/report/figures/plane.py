"""Encoders in the plane of alignment and uniformity, STS as colour: SimCSE's Figure 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from contrasent.evaluation.geometry import Geometry
from contrasent.report.figures import GREY, FigureData, FigureKind, Picture, picture
from contrasent.report.table import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLANE = "alignment-uniformity"

_SCALE = (40, 100)
"""Of the colours, in points of Spearman x 100: the paper's."""

_ROOM = 0.3
_CROWD = 6
"""Encoders beyond which the names need a larger figure."""

_OFFSETS = tuple(
    (x * distance, y * distance)
    for distance in (7, 14, 24)
    for x, y in ((1, 0.6), (-1, 0.6), (1, -0.6), (-1, -0.6), (0, 1.2), (0, -1.2))
)


def plane(data: FigureData) -> Picture:
    """A point for each encoder by its label, with its score."""
    rows = data.rows

    def draw(figure: Figure) -> None:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        axes = figure.subplots()
        shades = ScalarMappable(Normalize(*_SCALE), "viridis")
        low, high = _SCALE
        names = []
        for label, geometry in rows.items():
            place, known = _place(geometry), data.colours.get(label)
            colour = GREY if known is None else shades.cmap((100 * known - low) / (high - low))
            axes.plot(*place, "o", color=colour, markersize=9, markeredgecolor="black", zorder=4)
            names.append((label if known is None else f"{label} ({100 * known:.1f})", place))
        some = next(iter(rows.values()))
        close = some.records[0]
        axes.set_xlabel(f"uniformity of {some.sentences:,} sentences")
        axes.set_ylabel(f"alignment of {close.pairs:,} pairs rated {close.subset}")
        axes.set_title(f"{some.heading}; lower left is better", loc="left")
        axes.margins(0.12, 0.16)
        # Names stand to the right of their points where they can.
        left, right = axes.get_xlim()
        axes.set_xlim(left, right + _ROOM * (right - left))
        bar = figure.colorbar(shades, ax=axes, pad=0.02)
        bar.set_label(data.title)
        figure.draw_without_rendering()
        _name(axes, names)

    return picture(PLANE, (5.6, 3.7) if len(rows) <= _CROWD else (9.0, 6.4), draw)


def _place(geometry: Geometry) -> tuple[float, float]:
    return geometry.value("uniformity") or 0.0, geometry.value("alignment") or 0.0


def _name(axes: Axes, names: Sequence[tuple[str, tuple[float, float]]]) -> None:
    from matplotlib.transforms import Bbox

    points = axes.transData.transform([place for _, place in names])
    taken = [Bbox.from_extents(x - 7, y - 7, x + 7, y + 7) for x, y in points]
    inside = axes.get_window_extent()
    for name, place in names:
        for x, y in _OFFSETS:
            note = axes.annotate(
                name,
                place,
                xytext=(x, y),
                textcoords="offset points",
                ha="left" if x > 0 else "right" if x < 0 else "center",
                va="bottom" if y > 0 else "top",
                fontsize=7.5,
                zorder=5,
            )
            box = note.get_window_extent()
            if (
                inside.containsx(box.x1)
                and inside.containsx(box.x0)
                and not box.count_overlaps(taken)
            ):
                break
            if (x, y) != _OFFSETS[-1]:
                note.remove()
        taken.append(box)


def _caption(data: FigureData) -> str:
    places = "; ".join(
        f"{label}: alignment {number(it.value('alignment'), 4).text}, "
        f"uniformity {number(it.value('uniformity'), 4).text}"
        for label, it in data.rows.items()
    )
    return (
        "Close pairs (lower) and an even spread (further left) are better. Colour and number in "
        f"brackets: {data.title}. {places}."
    )


FIGURES = (
    FigureKind(
        name=PLANE,
        place=1,
        heading="Alignment and uniformity",
        draw=plane,
        caption=_caption,
    ),
)
