"""Encoders in the plane of alignment and uniformity, STS as colour: SimCSE's Figure 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from contrasent.evaluation.geometry import Geometry
from contrasent.metrics import pareto_front
from contrasent.report.figures.style import GREY, Colours, FigureData, FigureKind, Picture, picture
from contrasent.report.table import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

PLANE = "alignment-uniformity"

_SCALE = (40, 100)
"""Of the colours, in points of Spearman x 100: the paper's."""

_ROOM = 0.3

_OFFSETS = tuple(
    (x * distance, y * distance)
    for distance in (7, 14, 24)
    for x, y in ((1, 0.6), (-1, 0.6), (1, -0.6), (-1, -0.6), (0, 1.2), (0, -1.2))
)


@dataclass(frozen=True, slots=True)
class Published:
    """A point that a paper prints."""

    label: str  # the encoder
    uniformity: float  # as printed
    alignment: float  # as printed
    average: float  # Spearman x 100, the mean over the seven STS tasks


PUBLISHED = (
    Published("BERT-base avg.", -1.468, 0.172, 56.70),
    Published("SimCSE-BERT-base", -2.313, 0.177, 76.16),
    Published("DiffCSE-BERT-base", -1.438, 0.097, 78.49),
)
"""DiffCSE, Table 11 (STS-B test). SimCSE prints the averages of its Figure 3 alone."""

PUBLISHED_IN = "printed in DiffCSE, Table 11 (STS-B test; colour: STS Avg.)"


def plane(
    rows: Mapping[str, Geometry],
    colours: Colours,
    published: Sequence[Published] = (),
    size: tuple[float, float] | None = None,
) -> Picture:
    """A point for each encoder by its label, with its score; published points as diamonds.

    ``size`` is in inches, by default that of a column of a page.
    """

    def draw(figure: Figure) -> None:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        axes = figure.subplots()
        shades = ScalarMappable(Normalize(*_SCALE), "viridis")
        names = []
        for label, geometry in rows.items():
            score = colours.values.get(label)
            place = _place(geometry)
            colour = GREY if score is None else _shade(shades, 100 * score)
            axes.plot(*place, "o", color=colour, markersize=9, markeredgecolor="black", zorder=4)
            names.append((label if score is None else f"{label} ({100 * score:.1f})", place))
        for point in published:
            place = point.uniformity, point.alignment
            colour = _shade(shades, point.average)
            axes.plot(*place, "D", color=colour, markersize=6, markeredgecolor=GREY, zorder=3)
            names.append((f"{point.label} ({point.average:.1f})", place))
        _axes(axes, rows)
        if len(front := on_front(rows)) > 1:
            corners = sorted(_place(rows[label]) for label in front)
            axes.step(*zip(*corners, strict=True), where="post", color=GREY, lw=1, ls=":", zorder=2)
        if published:
            axes.plot([], [], "D", color="white", markeredgecolor=GREY, label=PUBLISHED_IN)
            axes.plot([], [], "o", color="white", markeredgecolor="black", label="measured here")
            figure.legend(loc="outside lower center", ncols=1, fontsize=7)
        bar = figure.colorbar(shades, ax=axes, pad=0.02)
        bar.set_label(colours.title)
        figure.draw_without_rendering()
        _name(axes, names, len(rows))

    return picture(PLANE, size or (5.6, 4.1 if published else 3.7), draw)


def on_front(rows: Mapping[str, Geometry]) -> list[str]:
    """The encoders that no other one of them beats in alignment and uniformity (Pareto's front).

    Pandey and Sholokhov, section 5, count such among their encoders.
    """
    kept = pareto_front([_place(it) for it in rows.values()])
    return [label for label, keep in zip(rows, kept, strict=True) if keep]


def _place(geometry: Geometry) -> tuple[float, float]:
    return geometry.value("uniformity") or 0.0, geometry.value("alignment") or 0.0


def _shade(shades: ScalarMappable, score: float) -> tuple[float, ...]:
    low, high = _SCALE
    colour: tuple[float, ...] = shades.cmap((score - low) / (high - low))
    return colour


def _axes(axes: Axes, rows: Mapping[str, Geometry]) -> None:
    some = next(iter(rows.values()))
    axes.set_xlabel(f"uniformity of {some.sentences:,} sentences")
    axes.set_ylabel(f"alignment of {some.records[0].pairs:,} pairs rated {some.records[0].subset}")
    axes.set_title(f"{some.heading}; lower left is better", loc="left")
    axes.margins(0.12, 0.16)
    # Names stand to the right of their points where they can.
    left, right = axes.get_xlim()
    axes.set_xlim(left, right + _ROOM * (right - left))


def _name(axes: Axes, names: Sequence[tuple[str, tuple[float, float]]], encoders: int) -> None:
    """Write each name at the first place near its point where it covers nothing."""
    points = axes.transData.transform([place for _, place in names])
    taken = [(x - 7, y - 7, x + 7, y + 7) for x, y in points]
    frame = axes.get_window_extent()
    inside = (frame.x0, frame.y0, frame.x1, frame.y1)
    for k, (name, place) in enumerate(names):
        best: tuple[float, Annotation, tuple[float, float, float, float]] | None = None
        for offset in _OFFSETS:
            x, y = offset
            note = axes.annotate(
                name,
                place,
                xytext=offset,
                textcoords="offset points",
                ha="left" if x > 0 else "right" if x < 0 else "center",
                va="bottom" if y > 0 else "top",
                fontsize=7.5,
                color="black" if k < encoders else GREY,
                zorder=5,
            )
            extent = note.get_window_extent()
            box = (extent.x0, extent.y0, extent.x1, extent.y1)
            cost = sum(_common(box, other) for other in taken) + _outside(box, inside)
            if best is None or cost < best[0]:
                if best is not None:
                    best[1].remove()
                best = (cost, note, box)
            else:
                note.remove()
            if cost == 0:
                break
        if best is not None:
            taken.append(best[2])


def _common(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """Area that two boxes (left, lower, right, upper) share."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    return max(width, 0) * max(height, 0)


def _outside(box: tuple[float, ...], frame: tuple[float, ...]) -> float:
    """Area of a box beyond the frame."""
    return (box[2] - box[0]) * (box[3] - box[1]) - _common(box, frame)


def _caption(data: FigureData) -> str:
    places = "; ".join(
        f"{label}: alignment {number(it.value('alignment'), 4).text}, "
        f"uniformity {number(it.value('uniformity'), 4).text}"
        for label, it in data.rows.items()
    )
    return (
        "Close pairs (lower) and an even spread (further left) are better. Colour and number in "
        f"brackets: {data.colours.title}. {places}.{_front(data)}"
    )


def _front(data: FigureData) -> str:
    front = on_front(data.rows)
    if len(data.rows) < 2:
        return ""
    return f" No other one here is better in both than {', '.join(front)} (dotted: Pareto's front)."


FIGURES = (
    FigureKind(
        name=PLANE,
        place=1,
        heading="Alignment and uniformity",
        draw=lambda data: plane(data.rows, data.colours, PUBLISHED if data.published else ()),
        caption=_caption,
    ),
)
