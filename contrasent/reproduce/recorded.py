"""Records of a table: its cells, and the numbers by test pair or example that its intervals are of.

A table that was filled is written with them into one Parquet file, from which it is printed and
its claims are judged again where neither encoders nor training text are at hand.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from contrasent.errors import DataError
from contrasent.files import writing
from contrasent.reproduce.cells import FilledRow, FilledTable, Filler, PaperCell
from contrasent.reproduce.papers import PaperColumn, PaperRow, PaperTable, load_tables

_KEY = b"contrasent"


def write_records(path: Path, filler: Filler, filled: FilledTable) -> None:
    """Write the records of a table."""
    import pyarrow as pa
    from pyarrow import parquet

    rows, kept = list[dict[str, Any]](), dict[str, dict[str, np.ndarray]]()
    for row, made in zip(filled.table.rows, filled.rows, strict=True):
        columns = filled.table.columns_of(row)
        plans = {it.heading: filler.plan(row, it)[0] for it in columns}
        names = {
            heading: [[f"{it.job.key}/{it.key}" for it in of_seed] for of_seed in plan]
            for heading, plan in plans.items()
        }
        found = (it for plan in plans.values() for of_seed in plan for it in of_seed)
        kept |= {f"{it.job.key}/{it.key}": filler.store.examples(it) for it in found}
        varies = {it.heading: filler.varies(filled.table, row, it) for it in columns}
        cells = {heading: asdict(cell) for heading, cell in made.cells.items()}
        rows.append({"label": row.label, "notes": made.notes, "cells": cells})
        rows[-1] |= {"varies": varies, "measurements": names}
    about = {"table": filled.table.name, "scale": filled.scale, "seeds": filled.seeds, "rows": rows}
    flat = [(name, label, it) for name, each in kept.items() for label, it in each.items()]
    columns_of_file = {
        "measurement": pa.array([name for name, _, _ in flat], pa.string()),
        "label": pa.array([label for _, label, _ in flat], pa.string()),
        "values": pa.array([it for _, _, it in flat], pa.list_(pa.float32())),
    }
    table = pa.table(columns_of_file).replace_schema_metadata({_KEY: json.dumps(about)})
    with writing(path) as partial:
        parquet.write_table(table, partial, compression="zstd")


class Recorded:
    """What fills tables from their records, as a `Filler` does from a store."""

    def __init__(self, folder: Path, data_dir: str | None = None) -> None:
        self._tables = dict[str, dict[str, Any]]()
        self._examples = dict[tuple[str, str], np.ndarray]()
        self.data_dir = data_dir
        for path in sorted(folder.glob("*.parquet")):
            self._read(path)
        if not self._tables:
            raise DataError(f"{folder}: no records (.parquet), as 'contrasent reproduce' writes")
        self.scale: str = next(iter(self._tables.values()))["scale"]
        self.seeds = max((tuple(it["seeds"]) for it in self._tables.values()), key=len)

    def _read(self, path: Path) -> None:
        from pyarrow import parquet

        file = parquet.read_table(path)
        metadata = file.schema.metadata or {}
        if _KEY not in metadata:
            raise DataError(f"{path}: no records of a table, as 'contrasent reproduce' writes")
        about = json.loads(metadata[_KEY])
        about["rows"] = {it["label"]: it for it in about["rows"]}
        self._tables[about["table"]] = about
        for name, label, values in zip(*(it.to_pylist() for it in file.columns), strict=True):
            self._examples[name, label] = np.array(values, np.float32)

    @property
    def names(self) -> list[str]:
        """The tables that have records, in the order of the papers."""
        return [name for name in load_tables() if name in self._tables]

    def table(self, table: PaperTable) -> FilledTable:
        """A table as it was filled; ``table`` may have a part of its rows and columns."""
        about = self._tables[table.name]
        rows = [
            FilledRow(
                row.label,
                {it.heading: self.cell(table, row, it) for it in table.columns_of(row)},
                tuple(about["rows"][row.label]["notes"]),
            )
            for row in table.rows
            if row.label in about["rows"]
        ]
        return FilledTable(table, about["scale"], tuple(about["seeds"]), tuple(rows))

    def cell(self, table: PaperTable, row: PaperRow, column: PaperColumn) -> PaperCell:
        """One cell."""
        found = self._of(table, row).get("cells", {}).get(column.heading)
        if found is None:
            return PaperCell(table.printed(row, column.heading), reason="not in the records")
        return PaperCell(**found | {"ours": tuple(found["ours"])})

    def varies(self, table: PaperTable, row: PaperRow, column: PaperColumn) -> bool:
        """Another seed would give another number."""
        return bool(self._of(table, row)["varies"][column.heading])

    def examples(
        self, table: PaperTable, row: PaperRow, column: PaperColumn, place: int, label: str
    ) -> list[np.ndarray]:
        """Numbers by test pair or example, of each seed that has them."""
        by_seed = self._of(table, row)["measurements"][column.heading]
        keys = [(of[place if len(of) > 1 else 0], label) for of in by_seed]
        return [self._examples[key] for key in keys if key in self._examples]

    def _of(self, table: PaperTable, row: PaperRow) -> dict[str, Any]:
        rows = self._tables.get(table.name, {"rows": {}})["rows"]
        found: dict[str, Any] = rows.get(row.label, {})
        return found
