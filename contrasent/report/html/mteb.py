"""Main scores of MTEB's tasks as a table of a report."""

from __future__ import annotations

from collections.abc import Sequence

from contrasent.evaluation.mteb_encoder import PROTOCOL
from contrasent.records import Record
from contrasent.report.html.columns import Column, Named, choose, scores_grid
from contrasent.report.html.contents import PageRow
from contrasent.report.html.grid import Grid
from contrasent.report.mteb import heading, told


def is_mteb(record: Record) -> bool:
    """MTEB's runner computed it, on MTEB's data."""
    return "mteb" in record.versions


def mteb_grids(rows: Sequence[PageRow]) -> list[Grid]:
    """One table of all tasks, or none."""
    chosen = choose(rows, _is_main)
    if not chosen:
        return []
    keys = dict.fromkeys(key for line in chosen.values() for key in line)
    columns = [Column(heading(name.name, name.split), ((name, of),)) for name, of in keys]
    named = Named("mteb", "MTEB: main score of each task", f"MTEB {columns[0].heading}")
    notes = told({label: list(line.values()) for label, line in chosen.items()})
    return [scores_grid(named, columns, chosen, notes)]


def _is_main(record: Record) -> bool:
    return is_mteb(record) and record.protocol == PROTOCOL
