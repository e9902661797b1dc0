"""Examples of a Parquet file, a batch of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from contrasent.data.columns import named_columns
from contrasent.data.examples import FileExamples, Row
from contrasent.data.readers import Trouble
from contrasent.errors import DataError

_ROWS_AT_ONCE = 4096


class ParquetExamples(FileExamples):
    """Examples of a ``.parquet`` file; a null is an empty sentence, and rows count from 1."""

    def __init__(self, path: Path, columns: Sequence[str] | None) -> None:
        with opened(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
        self._names, told = named_columns(schema.names, columns, str(path))
        if not rows:
            raise DataError(f"{path} is empty; it needs at least one row")
        for name in self._names:
            if not _is_text(schema.field(name).type):
                raise DataError(
                    f"{path}: column {name!r} holds {schema.field(name).type}, not text; "
                    "choose text columns with columns="
                )
        super().__init__(path, len(self._names), told, self._names)

    @override
    def rows(self, trouble: Trouble) -> Iterator[Row]:
        for number, cells in table_rows(self.path, self._names):
            yield f"{self.path}:{number}", cells


def table_rows(path: Path, names: Sequence[str]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Rows of the named columns, counted from 1.

    Raises:
        DataError: the file is damaged.
    """
    import pyarrow

    number = 0
    with opened(path) as file:
        try:
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=list(names)):
                cells = [batch.column(name).to_pylist() for name in names]
                for row in zip(*cells, strict=True):
                    number += 1
                    yield number, row
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(f"{path}: damaged after row {number}: {error}") from error


def opened(path: Path) -> Any:
    """The file as pyarrow opens it.

    Raises:
        DataError: it is no Parquet file.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path, memory_map=False, pre_buffer=False)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file: {error}") from error


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    plain = kind.value_type if types.is_dictionary(kind) else kind
    return bool(
        types.is_string(plain) or types.is_large_string(plain) or types.is_string_view(plain)
    )
