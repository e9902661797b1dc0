"""Records of a table: its cells, and the numbers by test pair or example that its intervals are of.

A table that was filled is written with them into one Parquet file, from which it is printed and
its claims are judged again where neither encoders nor training text are at hand.
"""

import json
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from contrasent.errors import DataError
from contrasent.files import writing
from contrasent.recipe import validate
from contrasent.reproduce.cells import FilledRow, FilledTable
from contrasent.reproduce.papers import load_tables

_KEY = b"contrasent"


def write_records(path: Path, filled: FilledTable) -> None:
    """Write the records of a table."""
    import pyarrow as pa
    from pyarrow import parquet

    content = {
        "table": filled.table.name,
        "scale": filled.scale,
        "seeds": filled.seeds,
        "rows": [asdict(row) for row in filled.rows],
    }
    results = {it for cell in filled.cells for of_seed in cell.results for it in of_seed}
    values = [
        {"result": result, "label": label, "values": numbers}
        for result in sorted(results)
        for label, numbers in filled.examples(result).items()
    ]
    types = {"result": pa.string(), "label": pa.string(), "values": pa.list_(pa.float32())}
    schema = pa.schema(types, metadata={_KEY: json.dumps(content)})
    with writing(path) as partial:
        parquet.write_table(pa.Table.from_pylist(values, schema), partial, compression="zstd")


def read_records(folder: Path, data_dir: str | None = None) -> dict[str, FilledTable]:
    """Read the tables of a folder by their names, in the order of the papers.

    DataError if there are none; other Parquet files are left out.
    """
    read = (_read(path, data_dir) for path in sorted(folder.glob("*.parquet")))
    tables = {it.table.name: it for it in read if it is not None}
    if not tables:
        raise DataError(f"{folder}: no records (.parquet), as 'contrasent reproduce' writes")
    return {name: tables[name] for name in load_tables() if name in tables}


def _read(path: Path, data_dir: str | None) -> FilledTable | None:
    from pyarrow import parquet

    table = parquet.read_table(path)
    metadata = table.schema.metadata or {}
    if _KEY not in metadata:
        return None
    content = json.loads(metadata[_KEY])
    examples = defaultdict[str, dict[str, np.ndarray]](dict)
    for it in table.to_pylist():
        examples[it["result"]][it["label"]] = np.array(it["values"], np.float32)
    rows = tuple(validate(FilledRow, it, str(path)) for it in content["rows"])
    headings = {heading for row in rows for heading in row.cells}
    paper_table = load_tables()[content["table"]]
    columns = tuple(it for it in paper_table.columns if it.heading in headings)
    return FilledTable(
        replace(paper_table, columns=columns),
        content["scale"],
        tuple(content["seeds"]),
        rows,
        lambda result: examples.get(result, {}),
        data_dir,
    )
