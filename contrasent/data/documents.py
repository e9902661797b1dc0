"""Documents: sentences of a text that follow each other, with a blank line between documents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

import numpy as np

from contrasent.data.examples import Examples, SourceExamples
from contrasent.data.readers import Trouble, line_rows, stop
from contrasent.data.token_store import IndexArray, TokenStore
from contrasent.errors import DataError

_NEEDED = (
    "give a .txt (or .txt.gz) with the sentences of each document in order, one per line, and a "
    "blank line between documents"
)


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents of N sentences that are numbered through.

    Attributes:
        ends: ``(N,)`` int64, for each sentence the number after the last one of its document.
    """

    ends: IndexArray

    @property
    def count(self) -> int:
        """The number of documents."""
        return len(np.unique(self.ends))

    def with_next(self) -> IndexArray:
        """Numbers of the sentences that have a next one in their document, ascending."""
        numbers = np.arange(len(self.ends))
        return numbers[numbers + 1 < self.ends]

    def positions(self) -> IndexArray:
        """``(N,)`` int64 that grow by 1 within a document, and by more than N between two."""
        count = len(self.ends)
        document = np.unique(self.ends, return_inverse=True)[1]
        return np.arange(count) + document * count


def has_lines(examples: Examples) -> TypeGuard[SourceExamples]:
    """Whether blank lines between ``examples`` would tell documents apart."""
    return isinstance(examples, SourceExamples) and examples.is_lines


def document_lengths(examples: Examples, trouble: Trouble = stop) -> IndexArray:
    """``(documents,)`` int64: sentences of each document, in the order of the file.

    Blank lines at the start, at the end or next to each other separate nothing.

    Args:
        examples: of a ``.txt`` file.
        trouble: is called with the error of each line that cannot be read.

    Raises:
        DataError: ``examples`` come from something else than lines of text.
    """
    if not has_lines(examples):
        raise DataError(f"{examples.source} is no text in documents; {_NEEDED}")
    lengths, current = [], 0
    for _, (line,) in line_rows(examples.path, trouble):
        if line.strip():
            current += 1
        elif current:
            lengths.append(current)
            current = 0
    return np.array([*lengths, current] if current else lengths, dtype=np.int64)


def require_documents(examples: Examples, need: str) -> IndexArray:
    """:func:`document_lengths` of what must be text in documents.

    Args:
        examples: of one sentence each.
        need: what asks for documents, for the messages.

    Raises:
        DataError: ``examples`` are no lines of text, have no blank line between them, or fewer
            than 2 have a next sentence in their document.
    """
    try:
        lengths = document_lengths(examples)
    except DataError as error:
        raise DataError(f"{need}: {error}") from error
    if len(lengths) == 1:
        raise DataError(
            f"{need}: {examples.source} has no blank line between its {lengths[0]} sentences, so "
            f"nothing tells a shuffled file from a document; {_NEEDED}"
        )
    followed = int((lengths - 1).sum())
    if followed < 2:
        raise DataError(
            f"{need}: of the {lengths.sum()} sentences of {examples.source} only {followed} have "
            f"another after them in their document; {_NEEDED}"
        )
    return lengths


def documents_of(lengths: IndexArray, store: TokenStore) -> Documents:
    """The documents of the sentences that ``store`` holds: some may have been left out.

    Args:
        lengths: sentences of each document of the text that the store was made of.
        store: of one sentence per example.
    """
    owner = np.delete(np.repeat(np.arange(len(lengths)), lengths), store.tokenless())
    return Documents(np.searchsorted(owner, owner, side="right").astype(np.int64))
