"""Examples of JSON lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from contrasent.data.columns import Layout, named_columns, table_layout
from contrasent.data.examples import FileExamples, Row
from contrasent.data.readers import Trouble, first_row, json_rows
from contrasent.errors import ConfigError, DataError


class JsonExamples(FileExamples):
    """Examples of a ``.jsonl`` file."""

    def __init__(self, path: Path, columns: Sequence[str] | None) -> None:
        first, value = first_row(json_rows(path), path)
        where = f"{path}:{first}"
        self._names: tuple[str, ...] | None = None
        self._layout: Layout | None = None
        if isinstance(value, dict):
            self._names, told = named_columns([*value], columns, where)
        elif isinstance(value, list) and value and all(isinstance(cell, str) for cell in value):
            if columns is not None and not all(column.isdecimal() for column in columns):
                raise ConfigError(f"{where}: arrays have no column names; choose by number from 0")
            self._layout = table_layout([""] * len(value), columns, where)
            told = self._layout.described
        else:
            raise DataError(f"{where}: expected an object or an array of strings in every line")
        chosen = self._names or (self._layout and self._layout.positions) or ()
        super().__init__(path, len(chosen), told, chosen)

    @override
    def rows(self, trouble: Trouble) -> Iterator[Row]:
        for number, value in json_rows(self.path, trouble):
            try:
                yield f"{self.path}:{number}", self._sentences(value, f"{self.path}:{number}")
            except DataError as error:
                trouble(error)

    def _sentences(self, value: Any, where: str) -> list[str | None]:
        if self._names is not None:
            if not isinstance(value, dict):
                raise DataError(f"{where}: expected an object, as in the first line")
            missing = [name for name in self._names if name not in value]
            if missing:
                raise DataError(f"{where}: no {missing[0]!r}, which the first line has")
            cells = [value[name] for name in self._names]
        else:
            cells = self._of_array(value, where)
        for cell in cells:
            if cell is not None and not isinstance(cell, str):
                raise DataError(f"{where}: {cell!r} is no text; sentences are strings")
            if cell and not _encodable(cell):
                raise DataError(f"{where}: half of a surrogate pair in {cell!r}; escape the whole")
        return cells

    def _of_array(self, value: Any, where: str) -> list[Any]:
        layout = self._layout
        width = layout.width if layout else 0
        if not isinstance(value, list) or len(value) != width:
            told = f"{len(value)} sentences" if isinstance(value, list) else "no array"
            raise DataError(f"{where}: {told}, but the first line is an array of {width}")
        return [value[position] for position in layout.positions] if layout else value


def _encodable(text: str) -> bool:
    return text.isascii() or not re.search("[\ud800-\udfff]", text)
