"""Documents: where they end, spans of their words (Giorgi et al. 2021, DeCLUTR), and sentences.

Shapes: B documents, A anchors of each, P positives of each anchor.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.random import Generator

from contrasent.data.examples import Examples
from contrasent.data.loader import example_of
from contrasent.data.readers import Trouble, lines, stop
from contrasent.data.token_store import IndexArray, TextStore, TokenStore
from contrasent.errors import DataError

Near = Literal["any", "adjacent", "subsumed"]
Span = tuple[int, int]
"""Numbers of the first word, and of the one after the last."""


def document_lengths(examples: Examples, trouble: Trouble = stop) -> IndexArray:
    """``(documents,)`` int64: sentences of each document of a ``.txt``, between blank lines."""
    lengths = [0]
    for _, line in lines(Path(examples.source), trouble):
        if line.strip():
            lengths[-1] += 1
        elif lengths[-1]:
            lengths.append(0)
    return np.array([length for length in lengths if length], dtype=np.int64)


def require_documents(examples: Examples, need: str) -> IndexArray:
    """:func:`document_lengths` of what must be text in documents, where ``need`` asks for them."""
    lengths = document_lengths(examples) if examples.is_lines else np.zeros(0, np.int64)
    followed = int((lengths - 1).sum())
    if len(lengths) < 2 or followed < 2:
        raise DataError(
            f"{need}: {examples.source} has {followed} of {lengths.sum()} sentences with another "
            f"after them, in {len(lengths)} documents; give a .txt (or .txt.gz) with the sentences "
            "of each document in order, one per line, and a blank line between documents"
        )
    return lengths


def document_ends(lengths: IndexArray, store: TokenStore) -> IndexArray:
    """``(N,)`` int64: for each sentence of ``store`` the number after the last of its document.

    ``lengths`` are those of the text that the store was made of, of which some may be left out.
    """
    owner = np.delete(np.repeat(np.arange(len(lengths)), lengths), store.tokenless())
    return np.searchsorted(owner, owner, side="right").astype(np.int64)


def positions(ends: IndexArray) -> IndexArray:
    """``(N,)`` int64 that grow by 1 within a document, and by more than N between two."""
    document = np.unique(ends, return_inverse=True)[1]
    return np.arange(len(ends)) + document * len(ends)


@dataclass(frozen=True, slots=True)
class Spans:
    """The spans to draw from a document."""

    anchors: int = 2  # A, from each document; they do not overlap
    positives: int = 2  # P, near each anchor
    shortest: int = 32  # words of a span, at least
    longest: int = 512  # words of a span, at most; not below ``shortest``
    # where positives lie: ``adjacent`` to their anchor, ``subsumed`` by it, or ``any`` place where
    # they touch or overlap it
    near: Near = "any"

    @property
    def views(self) -> int:
        """A + A * P, spans of a document."""
        return self.anchors * (1 + self.positives)

    @property
    def words(self) -> int:
        """The words that a document needs: room for the anchors and for as much again."""
        return 2 * self.anchors * self.longest

    def draw(self, words: int, random: Generator) -> list[Span]:
        """The anchors of a document, then the positives of the first, of the second and so on.

        A document is blocks of ``longest`` words, and an anchor lies anywhere within one. The block
        and its neighbours are then taken; where blocks would run out, one at an end is chosen,
        which has one neighbour.
        """
        blocks = list(range(0, words - self.longest + 1, self.longest))
        anchors: list[Span] = []
        for left in range(self.anchors, 0, -1):
            scarce = len(blocks) // left < left
            count = len(blocks)
            drawn = random.integers(2) * (count - 1) if scarce else random.integers(count)
            place = int(drawn)
            length = self._length(4, 2, self.longest, random)
            start = int(random.integers(blocks[place], blocks[place] + self.longest - length + 1))
            anchors.append((start, start + length))
            del blocks[max(0, place - 1) : place + 2]
        positives = [
            self._positive(anchor, words, random)
            for anchor in anchors
            for _ in range(self.positives)
        ]
        return anchors + positives

    def _positive(self, anchor: Span, words: int, random: Generator) -> Span:
        start, end = anchor
        if self.near == "subsumed":
            length = self._length(2, 4, end - start, random)
            first = int(random.integers(start, end - length + 1))
        elif self.near == "adjacent":
            room = max(start, words - end)
            length = self._length(2, 4, min(self.longest, room), random)
            beside = [
                place for place in (start - length, end) if place >= 0 and place + length <= words
            ]
            first = beside[int(random.integers(len(beside)))]
        else:
            length = self._length(2, 4, self.longest, random)
            first = int(random.integers(max(0, start - length), min(end, words - length) + 1))
        return first, first + length

    def _length(self, a: float, b: float, longest: int, random: Generator) -> int:
        """Beta(a, b), scaled to ``shortest`` or less, where there is no room, to ``longest``."""
        shortest = min(self.shortest, longest)
        return int(random.beta(a, b) * (longest - shortest) + shortest)


_MAY_END = re.compile(
    r"[.!?\u2026]+[\"')\]\u2019\u201d\u00bb]*\s+|[\u3002\uff01\uff1f]+[\u300d\u300f]*\s*"
)
_ABBREVIATED = (
    "mr mrs ms dr prof st sr jr rev gen col capt lt sgt sen rep gov hon vs etc cf al approx vol "
    "fig eq pp ed eds dept inc ltd co corp bros ave mt ft jan feb mar apr aug sept sep oct nov dec"
)
_LETTER = r"[^\W\d_]"
_ABBREVIATION = re.compile(
    rf"(?:^|[\W\d_])(?:{_LETTER}|(?:{_LETTER}\.)+{_LETTER}|{_ABBREVIATED.replace(' ', '|')})$",
    re.IGNORECASE,
)


def sentences_of(text: str) -> list[str]:
    """The sentences of a line of text, by its punctuation.

    None ends before a lower-case letter, unless the whole text is in lower case, nor at the full
    stop of a single letter or of a usual English abbreviation.
    """
    is_lower = text == text.lower()
    parts, start = [], 0
    for end in _MAY_END.finditer(text):
        following = next((letter for letter in text[end.end() :] if letter.isalnum()), "")
        goes_on = following.islower() and not is_lower
        stops_short = text[end.start()] == "." and _ABBREVIATION.search(text[start : end.start()])
        if not (goes_on or stops_short):
            parts.append(text[start : end.end()].strip())
            start = end.end()
    return [part for part in (*parts, text[start:].strip()) if part]


@dataclass(frozen=True, slots=True)
class Texts:
    """Documents that are long enough: lines ``starts`` to ``ends``, ``(N,)`` int64, of ``lines``.

    ``count`` documents were there, those that were too short among them.
    """

    lines: TextStore
    starts: IndexArray
    ends: IndexArray
    count: int

    def __len__(self) -> int:
        """N, the number of documents."""
        return len(self.starts)

    def parts(self, document: int, split: Callable[[str], list[str]]) -> list[str]:
        """The words or sentences of a document; no part of a sentence is on another line."""
        numbers = range(int(self.starts[document]), int(self.ends[document]))
        return [part for number in numbers for part in split(self.lines[number])]


def long_documents(
    examples: Examples,
    lines: TextStore,
    split: Callable[[str], list[str]],
    least: int,
    remedy: str,
) -> Texts:
    """The documents of ``least`` words or sentences, or more.

    Lines with a blank line between some of them are documents of several ``lines``; otherwise every
    line or row is a document. DataError if fewer than 2 documents are long enough.
    """
    if examples.views != 1:
        raise DataError(f"{examples.source} has {example_of(examples.views)}, not one document")
    lengths = document_lengths(examples) if examples.is_lines else np.ones(1, dtype=np.int64)
    by_line = len(lengths) < 2
    ends = np.arange(1, len(lines) + 1) if by_line else np.cumsum(lengths)
    every = Texts(lines, np.append(0, ends[:-1]), ends, len(ends))
    counts = np.array([len(every.parts(number, split)) for number in range(len(every))])
    chosen = counts >= least
    if chosen.sum() < 2:
        what = "every line is one" if by_line else "with a blank line between"
        unit = "words" if split is str.split else "sentences"
        found = f"{chosen.sum() or 'none'} of the {len(ends)} documents of {examples.source}"
        longest = f"and 2 are needed; the longest has {counts.max(initial=0)}"
        raise DataError(f"{found} ({what}) has {least} {unit}, {longest}; {remedy}")
    return Texts(lines, every.starts[chosen], ends[chosen], len(ends))
