"""Spans of documents: of their words (Giorgi et al. 2021, DeCLUTR), or of whole sentences.

Shapes: B documents, A anchors of each, P positives of each anchor.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np
from numpy.random import Generator

from contrasent.data.augment import crop
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
)
from contrasent.errors import DataError

Near = Literal["any", "adjacent", "subsumed"]
Span = tuple[int, int]
"""Numbers of the first word, and of the one after the last."""

_TRIES = 100


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

        A document of at least :attr:`words` words is blocks of ``longest`` words, and an anchor
        lies anywhere within one. The block and its neighbours are then taken, so that later anchors
        are elsewhere; where they would run out, a block at an end is chosen, which has one
        neighbour.
        """
        blocks = list(range(0, words - self.longest + 1, self.longest))
        anchors: list[Span] = []
        for left in range(self.anchors, 0, -1):
            scarce = len(blocks) // left < left
            drawn = (
                random.integers(2) * (len(blocks) - 1) if scarce else random.integers(len(blocks))
            )
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
        numbers = range(int(self.starts[document]), int(self.ends[document]))
        return [word for number in numbers for word in self.lines[number].split()]

    def sentences(self, document: int) -> list[str]:
        """The sentences of a document, of which a line may hold several, but not a part of one."""
        numbers = range(int(self.starts[document]), int(self.ends[document]))
        return [it for number in numbers for it in sentences_of(self.lines[number])]


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

    A sentence ends with ``.``, ``!``, ``?`` or an ellipsis, and quotes or brackets that close
    there, before white space; or with their full-width forms. Not where a lower-case letter
    follows, unless the whole text is in lower case, nor at the full stop of a single letter or of
    a usual English abbreviation.
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


def long_documents(
    examples: Examples,
    lines: TextStore,
    unit: Literal["words", "sentences"],
    least: int,
    remedy: str,
) -> Texts:
    """The documents of ``least`` words or sentences, or more.

    Lines with a blank line between some of them are documents of several ``lines``; otherwise every
    line or row is a document. DataError if an example has several texts, or fewer than 2 documents
    are long enough.
    """
    if examples.views != 1:
        raise DataError(
            f"spans are drawn from documents, but {examples.source} has "
            f"{example_of(examples.views)}; choose one of its columns with data.columns"
        )
    lengths = document_lengths(examples) if examples.is_lines else np.ones(1, dtype=np.int64)
    by_line = len(lengths) < 2
    ends = np.arange(1, len(lines) + 1) if by_line else np.cumsum(lengths)
    starts = np.append(0, ends[:-1])
    every = Texts(lines, starts, ends, 0)
    parts = every.words if unit == "words" else every.sentences
    counts = np.array([len(parts(number)) for number in range(len(every))])
    chosen = counts >= least
    count = int(chosen.sum())
    if count < 2:
        what = "every line is one" if by_line else "with a blank line between"
        raise DataError(
            f"{count or 'none'} of the {len(ends)} documents of {examples.source} ({what}) has "
            f"{least} {unit}, and 2 are needed; the longest has {counts.max(initial=0)}; {remedy}"
        )
    return Texts(lines, starts[chosen], ends[chosen], len(ends) - count)


@dataclass(frozen=True, slots=True)
class PartsOfDocuments(ViewSource):
    """Parts of a document, drawn anew every epoch.

    A part is made tokens by itself. What has more than ``max_tokens``, special ones included, is
    cut. V is the number of parts of each document.
    """

    documents: Texts
    tokenizer: Tokenizer
    max_tokens: int
    views: int

    @abstractmethod
    def draw(self, document: int, draws: Draws) -> Iterator[list[str]]:
        """Without end, V parts of a document."""

    def __len__(self) -> int:
        return len(self.documents)

    def gather(self, examples: IndexArray, draws: Draws) -> Packed:
        drawn = [self._tokens(int(example), draws) for example in examples]
        return end_to_end([row for view in zip(*drawn, strict=True) for row in view])

    def _tokens(self, document: int, draws: Draws) -> list[np.ndarray]:
        """The tokens of all parts of a document; parts without a token are drawn again."""
        for parts in islice(self.draw(document, draws), _TRIES):
            rows, _ = self.tokenizer.ids(parts, self.max_tokens)
            if all(len(row) for row in rows):
                return list(rows)
        raise DataError(
            f"in {_TRIES} draws, some span of the document that begins with "
            f"{' '.join(self.documents.words(document)[:8])!r} had no token each time; leave it "
            "out of the data, or draw longer spans"
        )


@dataclass(frozen=True, slots=True)
class SpansOfDocuments(PartsOfDocuments):
    """Spans of the words of a document; V is :attr:`Spans.views`, anchors before positives."""

    spans: Spans  # what is drawn

    def draw(self, document: int, draws: Draws) -> Iterator[list[str]]:
        words, random = self.documents.words(document), draws.of(document, 0)
        while True:
            spans = self.spans.draw(len(words), random)
            yield [" ".join(words[start:end]) for start, end in spans]


@dataclass(frozen=True, slots=True)
class CropsOfDocuments(PartsOfDocuments):
    """Consecutive sentences from anywhere in a document, for each view by itself."""

    share: float  # of the sentences, that is left out; one always stays
    anchors: bool  # crop the first view too; otherwise it is the whole document

    def draw(self, document: int, draws: Draws) -> Iterator[list[str]]:
        sentences = self.documents.sentences(document)
        randoms = [draws.of(document, view) for view in range(self.views)]
        while True:
            crops = [crop(sentences, random, self.share) for random in randoms]
            parts = crops if self.anchors else [sentences, *crops[1:]]
            yield [" ".join(part) for part in parts]
