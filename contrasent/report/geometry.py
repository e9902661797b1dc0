"""Measured geometry as a table, with what it was measured on beneath it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from contrasent.errors import ConfigError, pick
from contrasent.evaluation.geometry import Geometry
from contrasent.evaluation.trajectory import Trajectory
from contrasent.records import Record
from contrasent.report.figures.curves import (
    DENSITIES,
    SPECTRA,
    TRAJECTORIES,
    densities,
    spectra,
    trajectories,
)
from contrasent.report.figures.plane import PLANE, PUBLISHED, plane
from contrasent.report.figures.style import Picture
from contrasent.report.labels import labelled, labelled_runs, short_name
from contrasent.report.saved import refuse_other_pairs, sts_colours
from contrasent.report.tables import ABSENT, described, grid_table, print_grid

PICTURES = (PLANE, SPECTRA, DENSITIES, TRAJECTORIES)
"""Names of all pictures that :func:`pictures` may draw."""

COLUMNS = {
    "alignment": "alignment",
    "uniformity": "uniformity",
    "mean_cosine": "mean cosine",
    "partition_ratio": "partition ratio",
    "spearman": "Spearman",
}
_SAID = (
    "Embeddings are divided by their lengths. Alignment: mean squared distance of positive pairs, "
    "lower is closer (0 to 4). Uniformity: log of the mean of exp(-2 d^2) over all pairs of two "
    "sentences, lower is more even (-8 to 0).",
    "Mean cosine of all pairs of two sentences: 0 if isotropic (Ethayarajh 2019). Partition ratio: "
    "1 if isotropic (Mu and Viswanath 2018). Spearman x 100 of the cosines of all rated pairs.",
)


def geometry_table(rows: Mapping[str, Geometry], *, upright: bool = False) -> Table:
    """A row for each encoder by its label; encoders as columns with ``upright``."""
    cells = [
        [label, *(_cell(found, metric) for metric in COLUMNS)] for label, found in rows.items()
    ]
    return grid_table([["", *COLUMNS.values()], *cells], upright=upright)


def print_geometry(console: Console, rows: Mapping[str, Geometry]) -> None:
    """Print the table, and beneath it what was measured on what."""
    tables = [geometry_table(rows, upright=upright) for upright in (False, True)]
    print_grid(console, tables, measured_on(rows))


def measured_on(rows: Mapping[str, Geometry]) -> list[str]:
    """What the numbers of :func:`geometry_table` are, so that they can be compared with others."""
    on: dict[str, list[str]] = {}
    for label, found in rows.items():
        on.setdefault(_basis(found), []).append(label)
    lines = [
        f"{basis}." if len(on) == 1 else f"{', '.join(labels)}: {basis}."
        for basis, labels in on.items()
    ]
    of_encoders = [
        f"{label}: {described(label, found.records[0])}." for label, found in rows.items()
    ]
    return [*lines, *_SAID, *of_encoders]


def run_lines(runs: Sequence[Trajectory]) -> list[str]:
    """Each run's way through the plane, from its first measurement to its last."""
    return [
        f"{label}: {len(run.steps)} measurements on {run.pairs}, steps {run.steps[0]} to "
        f"{run.steps[-1]}: alignment {run.positions[0].alignment:.4f} to "
        f"{run.positions[-1].alignment:.4f}, uniformity {run.positions[0].uniformity:.4f} to "
        f"{run.positions[-1].uniformity:.4f}."
        for label, run in labelled_runs(runs).items()
    ]


def pictures(
    geometries: Sequence[Geometry],
    runs: Sequence[Trajectory],
    records: Sequence[Record] = (),
    *,
    published: bool = True,
    supervised: Sequence[str] = (),
    labels: Sequence[str] | None = None,
) -> list[Picture]:
    """Every figure of the papers that there is something for.

    Args:
        geometries: for Figures 3, F.1 and G.1 of SimCSE, and Figure 2 of DiffCSE.
        runs: for Figure 2 of SimCSE and Figure 1 of its replication study.
        records: scores of the same encoders, for the colours of Figure 3.
        published: put the printed points into Figure 3 where that is of STS-B.
        supervised: labels or names of encoders that get panels of their own beside the others,
            as in Figures F.1 and G.1.
        labels: of the geometries, no two alike; by default made of what tells them apart.

    Raises:
        ConfigError: one of ``supervised`` is not among the encoders.
        DataError: they were not measured on the same pairs.
    """
    refuse_other_pairs(geometries)
    refuse_other_pairs(runs)
    found = []
    if geometries:
        named = zip(labels, geometries, strict=True) if labels is not None else None
        rows = labelled(geometries) if named is None else dict(named)
        known = PUBLISHED if published and geometries[0].records[0].task == "stsb" else ()
        panels = _panels(rows, supervised)
        found += [plane(rows, sts_colours(rows, records), known)]
        found += [spectra(panels), densities(panels)]
    if runs:
        found.append(trajectories(labelled_runs(runs)))
    return found


def _panels(
    rows: Mapping[str, Geometry], supervised: Sequence[str]
) -> dict[str, dict[str, Geometry]]:
    """Encoders by their kind of training; all under one empty title where none is named."""
    if not supervised:
        return {"": dict(rows)}
    names = {label: {label, *names_of(found.encoder)} for label, found in rows.items()}
    refuse_unknown(supervised, set().union(*names.values()))
    chosen = {label for label, known in names.items() if known & set(supervised)}
    panels = {
        "unsupervised": {label: it for label, it in rows.items() if label not in chosen},
        "supervised": {label: it for label, it in rows.items() if label in chosen},
    }
    return {title: them for title, them in panels.items() if them}


def names_of(encoder: str) -> set[str]:
    """What an encoder may be called on the command line: its whole name, or its last part."""
    return {encoder, short_name(encoder)}


def refuse_unknown(supervised: Sequence[str], names: Iterable[str]) -> None:
    """Make sure that encoders for a panel of their own are among those of the figures.

    Raises:
        ConfigError: one is not.
    """
    names = set(names)
    if supervised and not names:
        raise ConfigError(
            "--supervised names encoders that are measured, and there is none; name models, or "
            "saved geometry with --from"
        )
    for name in supervised:
        pick("encoder of --supervised", name, names)


def _basis(found: Geometry) -> str:
    close = found.records[0]
    splits = " (train, dev and test)" if close.split == "all" else ""
    return (
        f"{found.heading}{splits}: alignment over the {close.pairs:,} of {found.rated:,} pairs "
        f"rated {close.subset}; uniformity, isotropy and spectrum over the {found.sentences:,} "
        "distinct sentences"
    )


def _cell(found: Geometry, metric: str) -> str:
    value = found.value(metric)
    if value is None:
        return ABSENT
    return f"{100 * value:.2f}" if metric == "spearman" else f"{value:.4f}"
