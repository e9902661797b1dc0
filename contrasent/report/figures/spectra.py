"""Singular values of sentence matrices: SimCSE's Figure F.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from contrasent.evaluate.geometry import Geometry
from contrasent.report.figures.canvas import Picture, look, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SPECTRA = "singular-values"


def spectra(rows: Mapping[str, Geometry]) -> Picture:
    """A curve for each encoder by its label; the largest value is 1."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for number, (label, found) in enumerate(rows.items()):
            colour, _, line = look(number)
            axes.plot(
                np.arange(1, len(found.spectrum) + 1),
                found.spectrum,
                color=colour,
                linestyle=line,
                linewidth=1.6,
                label=label,
            )
        axes.set_xlim(left=0)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("index of the singular value")
        axes.set_ylabel("singular value / largest")
        some = next(iter(rows.values()))
        task = some.source.partition(" ")[0]
        axes.set_title(f"{some.sentences:,} {task} sentences, unit length", loc="left")
        axes.legend(loc="upper right")

    return picture(SPECTRA, (4.6, 3.2), draw)
