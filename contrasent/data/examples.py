"""Examples of V sentences each, streamed from their source."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path

from typing_extensions import override

from contrasent.data.readers import Trouble, stop
from contrasent.errors import DataError
from contrasent.files import sha256_of

Row = tuple[str, Sequence[str | None]]
"""Where a row stands (``path:line``), and its V sentences as they are in the file."""

# A portion is bounded both ways: short sentences are many, long ones are large.
_SENTENCES_AT_ONCE = 4096
_CHARACTERS_AT_ONCE = 1 << 20


class Examples(ABC):
    """Examples of V sentences each, read anew from the source by every iteration.

    Attributes:
        source: what was opened.
        views: V, sentences per example: anchor, positive, hard negatives.
        columns: one line saying which columns were understood, and how.
        skipped: rows with an empty sentence, which are left out; known after a whole pass.
        blank: blank lines, which are left out too; known after a whole pass over a table or lines.
        labels: the number of the class of each example, known after a whole pass; None where they
            have none.
        unlabelled: rows that were left out because they have no label, known after a whole pass.
    """

    def __init__(self, source: str, views: int, columns: str) -> None:
        self.source = source
        self.views = views
        self.columns = columns
        self.skipped = 0
        self.blank = 0
        self.labels: Sequence[int] | None = None
        self.unlabelled = 0

    @property
    @abstractmethod
    def sha256(self) -> str:
        """Hexadecimal hash of the source's content and of the chosen columns."""

    @abstractmethod
    def rows(self, trouble: Trouble) -> Iterator[Row]:
        """Rows as they stand in the source; ``trouble`` is told of those that cannot be read."""

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        """Yield V sentences at a time, without white space around them.

        Raises:
            DataError: a row cannot be read; the message names file and line.
        """
        for _, sentences in self.read(stop):
            yield sentences

    def read(self, trouble: Trouble) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Examples with where they stand; unreadable rows are left to ``trouble``."""
        skipped = 0
        for where, cells in self.rows(trouble):
            sentences = tuple([(cell or "").strip() for cell in cells])
            if all(sentences):
                yield where, sentences
            else:
                skipped += 1
        self.skipped = skipped

    def require(self, minimum: int) -> None:
        """Make sure that there are enough examples, reading no more of them than needed.

        Raises:
            DataError: there are fewer than ``minimum``.
        """
        count = sum(1 for _ in islice(self, minimum))
        if count < minimum:
            raise DataError(
                f"{self.source} holds {count} example{'s' if count != 1 else ''} without an empty "
                f"sentence, but at least {minimum} are needed; an example is a line or row"
            )


class FileExamples(Examples):
    """Examples of one file."""

    def __init__(self, path: Path, views: int, columns: str, chosen: object) -> None:
        super().__init__(str(path), views, columns)
        self.path = path
        self._chosen = chosen

    @cached_property
    @override
    def sha256(self) -> str:
        return hashlib.sha256(f"{sha256_of(self.path)}\n{self._chosen!r}".encode()).hexdigest()


def portions(examples: Iterable[tuple[str, ...]]) -> Iterator[list[str]]:
    """Sentences of whole examples, one example after the other, a bounded number at once."""
    portion: list[str] = []
    characters = 0
    for sentences in examples:
        portion += sentences
        characters += sum(map(len, sentences))
        if len(portion) >= _SENTENCES_AT_ONCE or characters >= _CHARACTERS_AT_ONCE:
            yield portion
            portion, characters = [], 0
    if portion:
        yield portion
