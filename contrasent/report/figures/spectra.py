"""Singular values of sentence matrices: SimCSE's Figure F.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from contrasent.evaluate.geometry import Geometry
from contrasent.report.figures.canvas import LINES, Picture, look, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPECTRA = "singular-values"


def spectra(panels: Mapping[str, Mapping[str, Geometry]]) -> Picture:
    """A curve for each encoder by its label; the largest value is 1.

    Args:
        panels: encoders side by side, by the panel's title.
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
        told = f"{some.sentences:,} sentences of {some.heading}, unit length"
        figure.supxlabel(f"index of the singular value ({told})", fontsize=9)

    return picture(SPECTRA, (1.2 + 3.4 * len(panels), 3.2), draw)


def _curves(axes: Axes, rows: Mapping[str, Geometry]) -> None:
    for number, (label, found) in enumerate(rows.items()):
        axes.plot(
            np.arange(1, len(found.spectrum) + 1),
            found.spectrum,
            color=look(number)[0],
            # Colour alone would not do in print.
            linestyle=LINES[number % len(LINES)],
            linewidth=1.6,
            label=label,
        )
    axes.legend(loc="upper right")
