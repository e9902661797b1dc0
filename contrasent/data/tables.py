"""Examples of files that hold rows of cells: plain lines, CSV and TSV."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType

from typing_extensions import override

from contrasent.data.columns import Layout, table_layout
from contrasent.data.examples import FileExamples, Row
from contrasent.data.readers import Trouble, comma_rows, first_row, line_rows, stop, tab_rows
from contrasent.errors import ConfigError, DataError

Reader = Callable[[Path, Trouble], Iterator[tuple[int, list[str]]]]
_READERS = MappingProxyType({".txt": line_rows, ".csv": comma_rows, ".tsv": tab_rows})


class TableExamples(FileExamples):
    """Examples of a ``.txt``, ``.csv`` or ``.tsv`` file.

    Attributes:
        is_lines: a ``.txt``, whose blank lines separate documents.
    """

    def __init__(self, path: Path, kind: str, columns: Sequence[str] | None) -> None:
        self.is_lines = kind == ".txt"
        self._reader: Reader = _READERS[kind]
        rows = self._reader(path, stop)
        first, row = first_row((it for it in rows if not _is_blank(it[1])), path)
        self.layout = (
            _line_layout(path, columns)
            if kind == ".txt"
            else table_layout(row, columns, f"{path}:{first}")
        )
        self._after = first if self.layout.header else 0
        chosen = (self._after, self.layout.positions)
        super().__init__(path, len(self.layout.positions), self.layout.described, chosen)

    @override
    def rows(self, trouble: Trouble) -> Iterator[Row]:
        width, positions = self.layout.width, self.layout.positions
        blank = 0
        for number, cells in self._reader(self.path, trouble):
            if _is_blank(cells):
                blank += 1
            elif number <= self._after:
                continue
            elif len(cells) == width:
                yield f"{self.path}:{number}", [cells[position] for position in positions]
            else:
                trouble(self._ragged(number, len(cells)))
        self.blank = blank

    def _ragged(self, number: int, width: int) -> DataError:
        csv = self._reader is comma_rows
        remedy = 'cells that hold a comma need "..."' if csv else "or tabs inside sentences"
        return DataError(
            f"{self.path}:{number}: {width} column{'s' if width != 1 else ''}, but the first row "
            f"has {self.layout.width}; look for missing cells, {remedy}"
        )


def _line_layout(path: Path, columns: Sequence[str] | None) -> Layout:
    if columns is not None and list(columns) != ["0"]:
        raise ConfigError(
            f"{path} holds one sentence per line, so columns={','.join(columns)} has nothing to "
            "choose from; leave it out, or name a table .csv or .tsv"
        )
    return Layout((0,), False, 1, "1 sentence per line")


def _is_blank(cells: list[str]) -> bool:
    return not cells or (len(cells) == 1 and not cells[0].strip())
