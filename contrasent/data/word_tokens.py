"""Text to the rows of word vectors, in the form in which a tokenizer gives token ids."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from contrasent.data.tokens import SpecialIds, Tokenizer
from contrasent.data.words import WordStore
from contrasent.errors import CheckpointError, ConfigError, DataError

MARKS = (("<s>", "</s>"), ("<p>", "</p>"))
"""What InferSent puts around a sentence: version 1, over GloVe, and version 2, over fastText."""

_RULES = "spaces, then pieces 1"
# As the Penn Treebank cuts words: do + n't, it + 's; every other character by itself.
_PIECES = re.compile(r"\w+(?=n't)|n't|'(?:s|m|d|re|ve|ll)\b|\w+|[^\w\s]", re.IGNORECASE)


class WordTokenizer(Tokenizer):
    """Words that have a vector, as the numbers of their rows; the other words are left out.

    Words are what stands between spaces. One that the vectors do not have, in its own case or in
    lower case, is cut at its punctuation, so that ``runs.`` gives ``runs`` and ``.``, and
    ``don't`` gives ``do`` and ``n't``; pieces without a vector are left out.

    Attributes:
        store: the vectors.
        marks: words that are put before and behind every sentence; empty for nothing.
    """

    def __init__(self, store: WordStore, marks: Sequence[str] = ()) -> None:
        """Read with ``store``; `found_marks` gives the marks that vectors have.

        Raises:
            CheckpointError: the vectors lack these marks.
        """
        rows = store.rows(marks)
        if len(marks) not in (0, 2) or len(rows) < len(marks):
            raise CheckpointError(
                f"the vectors of {store.source} lack a word of the marks {', '.join(marks)}, which "
                "stand before and behind every sentence; name two words that are there, or none"
            )
        self.store, self.marks = store, tuple(marks)
        self._marks = [rows[mark] for mark in marks]
        self.vocabulary = store.blank + 1
        self.max_tokens = None
        self.specials = len(marks)
        told = f"words {store.sha256} {self.marks} {_RULES}"
        self.fingerprint = hashlib.sha256(told.encode()).hexdigest()
        self.source = store.source
        first, last = self._marks or (None, None)
        every = tuple(sorted(self._marks))
        self.special_ids = SpecialIds(mask=None, first=first, last=last, pad=None, every=every)

    @property
    @override
    def vocabulary_map(self) -> Mapping[str, int]:
        """Not known: of a word only its hash is kept.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"the words of {self.source} cannot be listed, only looked up")

    @override
    def ids(
        self, texts: Sequence[str], max_tokens: int | None
    ) -> tuple[list[np.ndarray[Any, np.dtype[np.int32]]], int]:
        """Rows of the words of each text, marks included, and how many texts had to be cut.

        A text without a known word has its marks alone; where there are none, it has the word of
        zeros that the store keeps for that.
        """
        if max_tokens is not None and max_tokens <= self.specials:
            raise ConfigError(
                f"max_tokens must be above {self.specials}, the marks around every sentence, not "
                f"{max_tokens}"
            )
        split = [_text(number, text).split() for number, text in enumerate(texts)]
        words = {word for found in split for word in found}
        rows = self.store.rows(words)
        cuts = {word: _PIECES.findall(word) for word in words if word not in rows}
        known = self.store.rows({piece for pieces in cuts.values() for piece in pieces})
        parts = {word: [row] for word, row in rows.items()}
        parts |= {word: [known[p] for p in cut if p in known] for word, cut in cuts.items()}
        room = None if max_tokens is None else max_tokens - self.specials
        before, behind = self._marks[:1], self._marks[1:]
        found, cut_off = [], 0
        for sentence in split:
            numbers = [row for word in sentence for row in parts[word]]
            cut_off += room is not None and len(numbers) > room
            kept = [*before, *numbers[:room], *behind] or [self.store.blank]
            found.append(np.array(kept, dtype=np.int32))
        return found, cut_off

    @override
    def wordless(self, ids: Sequence[np.ndarray[Any, Any]]) -> int:
        """How many of the sentences with these ``ids`` have no known word."""
        alone = self._marks or [self.store.blank]
        return sum(list(found) == alone for found in ids)

    @override
    def save(self, folder: str | Path) -> None:
        """Write the vectors, which are all there is to keep."""
        self.store.save(Path(folder))


def found_marks(store: WordStore) -> tuple[str, ...]:
    """The first pair of `MARKS` that ``store`` has whole; empty if there is none."""
    return next((pair for pair in MARKS if len(store.rows(pair)) == len(pair)), ())


def _text(number: int, text: object) -> str:
    if not isinstance(text, str):
        raise DataError(f"text {number} is {text!r}, but a text must be a string")
    return text
