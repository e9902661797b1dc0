"""Geometry as tables and figures of a report, those of one set of pairs together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contrasent.evaluation.geometry import Geometry
from contrasent.evaluation.trajectory import Trajectory
from contrasent.report.figures.curves import DENSITIES, SPECTRA, TRAJECTORIES
from contrasent.report.figures.plane import PLANE
from contrasent.report.figures.style import Picture
from contrasent.report.geometry import COLUMNS, measured_on, names_of, pictures, run_lines
from contrasent.report.html.contents import Contents, Identity, PageRow, identity
from contrasent.report.html.grid import Cell, Grid, score, with_best
from contrasent.report.html.svg import aspect, inline_svg
from contrasent.report.saved import sts_colours
from contrasent.report.tables import ABSENT

LOWER = ("alignment", "uniformity")
"""Metrics of which less is better; of isotropy neither is."""

_WIDE = 2.0
"""Width over height from which on a figure is not set beside another."""

_HEADINGS = {
    PLANE: "Alignment and uniformity",
    SPECTRA: "Singular values",
    DENSITIES: "Cosines by human rating",
    TRAJECTORIES: "Alignment and uniformity over training",
}


@dataclass(frozen=True, slots=True)
class GeometryFigure:
    """A figure of a report.

    Attributes:
        heading: above it.
        svg: the drawing.
        caption: what it shows, of which pairs, split and pooler.
        wide: it needs the width of the page.
    """

    heading: str
    svg: str
    caption: str
    wide: bool


def geometry_grids(contents: Contents, rows: Mapping[Identity, PageRow]) -> list[Grid]:
    """A table for each set of pairs."""
    found = []
    for number, (pairs, of_label) in enumerate(_by_pairs(contents, rows).items()):
        cells = [(Cell(label), *map(_cell, [it] * len(COLUMNS), COLUMNS)) for label, it in of_label]
        lower = [k for k, metric in enumerate(COLUMNS, start=1) if metric in LOWER]
        judged = [*lower, 1 + list(COLUMNS).index("spearman")]
        best = tuple(
            tuple(marked if k in judged else cell for k, (cell, marked) in enumerate(both))
            for both in (
                zip(plain, row, strict=True)
                for plain, row in zip(cells, with_best(cells, lower), strict=True)
            )
        )
        found.append(
            Grid(
                "geometry" if number == 0 else f"geometry-{number + 1}",
                f"Geometry: {pairs}",
                ("encoder", *COLUMNS.values()),
                best,
                tuple(measured_on(dict(of_label))),
            )
        )
    return found


def figures(contents: Contents, rows: Mapping[Identity, PageRow]) -> list[GeometryFigure]:
    """Every figure there is something for; of each set of pairs those of its own."""
    found: list[GeometryFigure] = []
    for pairs, of_label in _by_pairs(contents, rows).items():
        measured = [it for _, it in of_label]
        labels = [label for label, _ in of_label]
        drawn = pictures(
            measured,
            (),
            contents.records,
            published=contents.published,
            supervised=_among(contents.supervised, of_label),
            labels=labels,
        )
        said = _basis(pairs, dict(of_label))
        more = {
            PLANE: _plane_caption(dict(of_label), contents),
            SPECTRA: "Singular values of the matrix of unit vectors, the largest set to 1; a curve "
            "that falls slowly uses more directions.",
            DENSITIES: "Densities of the cosines of all rated pairs, by their human rating; the "
            "less they overlap, the better the cosines tell the ratings apart.",
        }
        found += [
            _figure(it, len(found) + k, f"{more.get(it.name, '')} {said}")
            for k, it in enumerate(drawn)
        ]
    for runs in _runs_by_pairs(contents.runs).values():
        said = "A ring is the start of training, a large marker with its step the end."
        lines = " ".join(run_lines(runs))
        found += [_figure(it, len(found), f"{said} {lines}") for it in pictures((), runs)]
    return found


def _among(asked: Sequence[str], of_label: Sequence[tuple[str, Geometry]]) -> list[str]:
    """Those names that are of encoders measured on these pairs."""
    known = {name for label, it in of_label for name in (label, *names_of(it.encoder))}
    return [name for name in asked if name in known]


def _figure(picture: Picture, number: int, caption: str) -> GeometryFigure:
    heading = _HEADINGS.get(picture.name, picture.name)
    caption = " ".join(caption.split())
    svg = inline_svg(picture, f"f{number}-", f"{heading}. {caption}")
    return GeometryFigure(heading, svg, caption, aspect(svg) > _WIDE)


def _by_pairs(
    contents: Contents, rows: Mapping[Identity, PageRow]
) -> dict[str, list[tuple[str, Geometry]]]:
    """Encoders with their labels, each once, by the pairs they were measured on."""
    found: dict[str, dict[str, Geometry]] = {}
    for geometry in contents.geometries:
        label = rows[identity(geometry.records[0])].label
        found.setdefault(geometry.pairs, {}).setdefault(label, geometry)
    return {pairs: list(of_label.items()) for pairs, of_label in found.items()}


def _runs_by_pairs(runs: Sequence[Trajectory]) -> dict[str, list[Trajectory]]:
    found: dict[str, list[Trajectory]] = {}
    for run in runs:
        found.setdefault(run.pairs, []).append(run)
    return found


def _basis(pairs: str, of_label: Mapping[str, Geometry]) -> str:
    """Pairs, split and poolers."""
    some = next(iter(of_label.values()))
    poolers = {label: it.records[0].pooler for label, it in of_label.items()}
    same = len(set(poolers.values())) == 1
    pooler = (
        f"pooler {some.records[0].pooler}"
        if same
        else ", ".join(f"{label} with pooler {name}" for label, name in poolers.items())
    )
    split = some.records[0].split
    splits = "train, dev and test" if split == "all" else split
    return (
        f"{some.source} ({splits} split), {some.rated:,} rated pairs, {some.sentences:,} "
        f"sentences, positive pairs {pairs}; {pooler}."
    )


def _plane_caption(of_label: Mapping[str, Geometry], contents: Contents) -> str:
    colours = sts_colours(dict(of_label), contents.records)
    places = "; ".join(
        f"{label}: alignment {_printed(it, 'alignment')}, uniformity {_printed(it, 'uniformity')}"
        for label, it in of_label.items()
    )
    return (
        f"Close pairs (lower) and an even spread (further left) are better. Colour and number in "
        f"brackets: {colours.title}. {places}."
    )


def _printed(found: Geometry, metric: str) -> str:
    return _cell(found, metric).text


def _cell(found: Geometry, metric: str) -> Cell:
    value = found.value(metric)
    if value is None:
        return Cell(ABSENT)
    return score(value) if metric == "spearman" else Cell(f"{value:.4f}", value)
