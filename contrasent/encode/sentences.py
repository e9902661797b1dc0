"""Sentences of a source, one in a row, with their ids."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from contrasent.errors import ConfigError, DataError
from contrasent.files import scratch

if TYPE_CHECKING:
    from contrasent.data.examples import Examples


class Sentences:
    """Sentences of a source, read anew by every iteration; see :func:`open_sentences`."""

    def __init__(
        self, path: str, source: str, columns: str | None, ids: str | None, clean: bool
    ) -> None:
        from contrasent.data.examples import open_examples

        if ids is not None and columns is None:
            raise ConfigError(f"--ids {ids} needs --columns too: which column holds the sentences?")
        chosen = [column for column in (columns, ids) if column is not None] or None
        self.source, self._ids, self._total = source, ids, -1
        self.examples: Examples = open_examples(path, chosen, with_ids=ids is not None, clean=clean)
        if ids is not None:
            self.examples.columns = f"{columns} as the text, {ids} as the id"
        if chosen is None and self.examples.views > 1:
            raise ConfigError(
                f"{source} has {self.examples.views} sentences in a row ({self.examples.columns}); "
                "choose one with --columns NAME, or by its number from 0"
            )

    def __iter__(self) -> Iterator[str]:
        """Yield the sentences, in the order of the source."""
        return (example[0] for example in self.examples)

    def count(self) -> int:
        """Read the whole source once, so that a bad row is found before any work starts."""
        if self._total < 0:
            self._total = sum(1 for _ in self.examples)
        if not self._total:
            raise DataError(f"{self.source} holds no sentence; it needs at least one")
        return self._total

    def ids(self) -> list[str] | None:
        """The id of every sentence, or None if no column of ids was asked for."""
        return None if self._ids is None else [example[1] for example in self.examples]


@contextmanager
def open_sentences(
    source: str, columns: str | None = None, ids: str | None = None, *, clean: bool = False
) -> Iterator[Sentences]:
    """Open a source of a sentence per row, or ``-`` for lines of standard input, kept in a file."""
    if source != "-":
        yield Sentences(source, source, columns, ids, clean)
        return
    with scratch("sentences") as folder:
        kept = Path(folder) / "standard-input.txt"
        with kept.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        try:
            yield Sentences(str(kept), "standard input", columns, ids, clean)
        except DataError as error:
            raise DataError(str(error).replace(str(kept), "standard input")) from error
