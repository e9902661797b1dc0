"""The cache of embeddings: the least recently used leave first, and its bytes are bounded."""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

Text = str | tuple[int, ...]
"""What is embedded: a text, or the token ids of one."""

_OVERHEAD = 400
"""Bytes of an entry beside its text and its vector, measured with CPython 3.11."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """The embedding of a text."""

    row: np.ndarray  # ``(D,)`` float32 as the encoder gives it, without normalisation
    tokens: int  # what the encoder read, special tokens included
    truncated: bool  # whether the text was longer than that


class VectorCache:
    """Embeddings by text, of one encoder and one precision, in at most ``limit`` bytes.

    It is used by one thread. Equal bytes of text mean an equal key: nothing is stripped or
    lowered. A limit of 0 keeps nothing.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._entries: OrderedDict[Text, Embedded] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, text: Text) -> Embedded | None:
        """The embedding of ``text``, which thereby becomes the most recently used."""
        entry = self._entries.get(text)
        if entry is not None:
            self._entries.move_to_end(text)
        return entry

    def put(self, text: Text, entry: Embedded) -> None:
        """Keep an embedding; what was not used for longest makes room. It must own its row."""
        size = _size(text, entry)
        if size > self.limit:
            return
        before = self._entries.pop(text, None)
        self.bytes += size - (0 if before is None else _size(text, before))
        self._entries[text] = entry
        while self.bytes > self.limit:
            self.bytes -= _size(*self._entries.popitem(last=False))


def _size(text: Text, entry: Embedded) -> int:
    numbers = 0 if isinstance(text, str) else 32 * len(text)
    return sys.getsizeof(text) + numbers + entry.row.nbytes + _OVERHEAD
