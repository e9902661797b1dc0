"""Files of rows in every data format."""

import gzip
import json


def write(path, *, names, rows):
    """A file with a column of numbers and then the rows', in the path's format."""
    table = [dict(zip(names, (number, *row), strict=True)) for number, row in enumerate(rows)]
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(table), path)
        return str(path)
    if ".jsonl" in path.name:
        text = "".join(json.dumps(row) + "\n" for row in table)
    else:
        mark = "," if ".csv" in path.name else "\t"
        text = "".join(
            mark.join(map(str, row)) + "\n" for row in [names, *(r.values() for r in table)]
        )
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)
