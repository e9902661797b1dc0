"""Spans of the words of documents: anchors, and positives near them (Giorgi et al. 2021, DeCLUTR).

Shapes: B documents, A anchors of each, P positives of each anchor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.random import Generator
from typing_extensions import override

from contrasent.data.examples import Examples
from contrasent.data.token_store import IndexArray, TextStore
from contrasent.data.tokenizer import Tokenizer
from contrasent.data.view_sources import (
    Draws,
    Packed,
    ViewSource,
    document_lengths,
    end_to_end,
    example_of,
    has_lines,
)
from contrasent.errors import DataError

Near = Literal["any", "adjacent", "subsumed"]
Span = tuple[int, int]
"""Numbers of the first word, and of the one after the last."""

_TRIES = 100


@dataclass(frozen=True, slots=True)
class Spans:
    """The spans to draw from a document.

    Attributes:
        anchors: A, from each document; they do not overlap.
        positives: P, near each anchor.
        shortest: words of a span, at least.
        longest: words of a span, at most; not below ``shortest``.
        near: where positives lie: ``adjacent`` to their anchor, ``subsumed`` by it, or ``any``
            place where they touch or overlap it.
    """

    anchors: int = 2
    positives: int = 2
    shortest: int = 32
    longest: int = 512
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

        A document of at least :attr:`words` words is blocks of ``longest`` words, and an anchor
        lies anywhere within one. The block and its neighbours are then taken, so that later anchors
        are elsewhere; where they would run out, a block at an end is chosen, which has one
        neighbour.
        """
        blocks = list(range(0, words - self.longest + 1, self.longest))
        anchors: list[Span] = []
        for left in range(self.anchors, 0, -1):
            scarce = len(blocks) // left < left
            place = int(random.integers(2) * (len(blocks) - 1) if scarce else _of(blocks, random))
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
            first = beside[_of(beside, random)]
        else:
            length = self._length(2, 4, self.longest, random)
            first = int(random.integers(max(0, start - length), min(end, words - length) + 1))
        return first, first + length

    def _length(self, a: float, b: float, longest: int, random: Generator) -> int:
        """Beta(a, b), scaled to ``shortest`` or less, where there is no room, to ``longest``."""
        shortest = min(self.shortest, longest)
        return int(random.beta(a, b) * (longest - shortest) + shortest)


@dataclass(frozen=True, slots=True)
class Texts:
    """Documents that are long enough: lines ``starts`` to ``ends``, ``(N,)`` int64, of ``lines``.

    ``left_out`` documents were too short.
    """

    lines: TextStore
    starts: IndexArray
    ends: IndexArray
    left_out: int

    def __len__(self) -> int:
        """N, the number of documents."""
        return len(self.starts)

    def words(self, document: int) -> list[str]:
        """The words of a document, split at white space."""
        lines = range(int(self.starts[document]), int(self.ends[document]))
        return [word for line in lines for word in self.lines[line].split()]


def long_enough(examples: Examples, lines: TextStore, spans: Spans) -> Texts:
    """The documents that ``spans`` can be drawn from.

    Lines with a blank line between some of them are documents of several ``lines``; otherwise every
    line or row is a document.

    Raises:
        DataError: an example has several texts; fewer than 2 documents are long enough.
    """
    if examples.views != 1:
        raise DataError(
            f"spans are drawn from documents, but {examples.source} has "
            f"{example_of(examples.views)}; choose one of its columns with data.columns"
        )
    lengths = document_lengths(examples) if has_lines(examples) else np.ones(1, dtype=np.int64)
    by_line = len(lengths) < 2
    ends = np.arange(1, len(lines) + 1) if by_line else np.cumsum(lengths)
    counts = np.array([len(lines[number].split()) for number in range(len(lines))])
    starts = np.append(0, ends[:-1])
    words = np.add.reduceat(counts, starts)
    chosen = words >= spans.words
    count = int(chosen.sum())
    if count < 2:
        what = "every line is one" if by_line else "with a blank line between"
        raise DataError(
            f"{count or 'none'} of the {len(ends)} documents of {examples.source} ({what}) has the "
            f"{spans.words} words that {spans.anchors} anchors of up to {spans.longest} words need "
            f"(2 x {spans.anchors} x {spans.longest}); the longest has {words.max()}. Give longer "
            "documents, with a blank line between them or one per line, or lower "
            "objective.max_words or objective.anchors"
        )
    return Texts(lines, starts[chosen], ends[chosen], len(ends) - count)


@dataclass(frozen=True, slots=True)
class SpansOfDocuments(ViewSource):
    """Spans of a document, drawn anew every epoch.

    The words of a span are made tokens by themselves. What has more than ``max_tokens``, special
    ones included, is cut. V is :attr:`Spans.views`.
    """

    documents: Texts
    tokenizer: Tokenizer
    spans: Spans
    max_tokens: int
    views: int

    @override
    def __len__(self) -> int:
        return len(self.documents)

    @override
    def gather(self, examples: IndexArray, draws: Draws) -> Packed:
        drawn = [self._tokens(int(example), draws) for example in examples]
        return end_to_end([row for view in zip(*drawn, strict=True) for row in view])

    def _tokens(self, document: int, draws: Draws) -> list[np.ndarray]:
        """The tokens of all spans of a document; spans without a token are drawn again."""
        words, random = self.documents.words(document), draws.of(document, 0)
        for _ in range(_TRIES):
            spans = self.spans.draw(len(words), random)
            texts = [" ".join(words[start:end]) for start, end in spans]
            rows, _ = self.tokenizer.ids(texts, self.max_tokens)
            if all(len(row) for row in rows):
                return list(rows)
        raise DataError(
            f"in {_TRIES} draws, some span of the document that begins with "
            f"{' '.join(words[:8])!r} had no token each time; leave it out of the data, or raise "
            "objective.min_words"
        )


def _of(choices: list[int], random: Generator) -> int:
    """The number of one of ``choices``, each as likely."""
    return int(random.integers(len(choices)))
