"""Encoders in the plane of alignment and uniformity, STS as colour: SimCSE's Figure 3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contrasent.report.figures import ABOVE, GREY, FigureData, FigureKind, Picture, picture
from contrasent.report.table import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLANE = "alignment-uniformity"

_SCALE = (40, 100)
"""Of the colours, in points of Spearman x 100: the paper's."""


def plane(data: FigureData) -> Picture:
    """A numbered point for each encoder; below stand the labels, with their scores."""
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
        name=PLANE, place=1, heading="Alignment and uniformity", draw=plane, caption=_caption
    ),
)
