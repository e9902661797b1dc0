"""Documents: where they end, spans of their words (Giorgi et al. 2021, DeCLUTR), and sentences.

Shapes: B documents, A anchors of each, P positives of each anchor.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from contrasent.data.examples import Examples, portions
from contrasent.data.loader import IndexArray, TokenStore, example_of
from contrasent.data.readers import CHARACTERS, Trouble, stop
from contrasent.errors import DataError, logger
from contrasent.files import cached

Span = tuple[int, int]  # numbers of the first word, and of the one after the last

_PAIRS, _FEWEST = 1000, 50  # of sentences that are compared, at most and at least
_DENSE, _SPARSE = 20, 100  # lines of a document, below and above which blank lines tell enough
_NEARER = 0.6  # share of comparisons; unrelated lines have 0.5, sentences of Wikipedia 0.8
_MOSTLY, _WORDLESS = 0.5, 0.3
_SHARED = re.compile(rf"[^\W\d_]{{3,}}|[{CHARACTERS}]")


@dataclass(frozen=True, slots=True)
class Documents:
    """Where the documents of a text end, or that every line or row is a text by itself."""

    blocks: IndexArray  # ``(blocks,)`` int64, the lines between blank ones
    is_split: bool  # blank lines end documents
    why: str

    @property
    def lengths(self) -> IndexArray | None:
        """``(documents,)`` int64, lines of each; None without documents."""
        return self.blocks if self.is_split else None


def document_lengths(examples: Examples, trouble: Trouble = stop) -> IndexArray:
    """``(documents,)`` int64: the lines of a ``.txt`` between blank ones; none of a table."""
    lengths, blank = [0], 0
    for _ in examples.read(trouble) if examples.is_lines else ():
        lengths += [0] * (examples.rows.blank > blank)
        lengths[-1] += 1
        blank = examples.rows.blank
    return np.array([length for length in lengths if length], dtype=np.int64)


def find_documents(examples: Examples, trouble: Trouble = stop) -> Documents:
    """Tell whether blank lines end documents, as asked for by :attr:`Examples.documents` or else.

    They do where they stand all over a text, and sentences share more words with the next one than
    with any other; where they are rare, also than across them.
    """
    lengths = document_lengths(examples, trouble)
    lines, count = int(lengths.sum()), len(lengths)
    if not examples.is_lines:
        return Documents(lengths, False, "every row is a text; only a .txt has documents")
    if examples.documents is False or count < 2:
        why = "no blank line stands between two" if count < 2 else "as asked for"
        return Documents(lengths, False, f"every line is a text: {why}")
    summary = f"{count:,} documents of {lines / count:.1f} lines in the mean"
    if examples.documents:
        return Documents(lengths, True, f"{summary}, as asked for")
    against, how = _evidence(examples, lengths, trouble)
    if against:
        return Documents(lengths, False, f"every line is a text: {against}")
    return Documents(lengths, True, summary + how)


def _evidence(examples: Examples, lengths: IndexArray, trouble: Trouble) -> tuple[str, str]:
    """Evidence against documents, empty without; else for them."""
    lines, blank = int(lengths.sum()), len(lengths) - 1
    sparse = lines > _DENSE * len(lengths)
    if (lengths == 1).sum() > _MOSTLY * lines:
        return "most lines stand between blank ones", ""
    if np.median(np.repeat(lengths, lengths)) > _SPARSE:
        return f"{blank:,} blank lines between {lines:,} are too few", ""
    ends, random = np.cumsum(lengths) - 1, np.random.default_rng(0)
    within = random.permutation(np.setdiff1d(np.arange(ends[-1]), ends))[:_PAIRS]
    across = random.permutation(ends[:-1])[:_PAIRS]
    others = random.integers(lines, size=len(within))
    wanted = {*within, *(within + 1), *across, *(across + 1), *others}
    rows = enumerate(examples.read(trouble))
    texts = {number: text for number, (_, (text, *_)) in rows if number in wanted}
    if np.mean([any(map(str.isalpha, text)) for text in texts.values()]) < 1 - _WORDLESS:
        return f"more than {_WORDLESS:.0%} of the lines hold no word", ""
    words = {n: frozenset(_SHARED.findall(text.lower())) for n, text in texts.items()}
    often = Counter(chain.from_iterable(words.values()))

    def measured(first: IndexArray, second: IndexArray) -> np.ndarray:
        """Words that two texts share, rare ones more, over the words that they have."""
        pairs = [(words[a], words[b]) for a, b in zip(first, second, strict=True)]
        shared = (sum(1 / often[it] for it in a & b) for a, b in pairs)
        sizes = ((1 + len(a) * len(b)) ** 0.5 for a, b in pairs)
        return np.array([it / size for it, size in zip(shared, sizes, strict=True)])

    following, other = measured(within, within + 1), measured(within, others)
    differ = following != other
    if differ.sum() < _FEWEST:
        return (f"{blank:,} blank lines between {lines:,} are few" if sparse else ""), ""
    nearer = float((following > other)[differ].mean())
    how = f"{nearer:.0%} of the lines are nearer to the next one than to another"
    if nearer < _NEARER:
        return f"{how}, about as by chance", ""
    parted = measured(across, across + 1)
    apart = (following[:, None] > parted).mean() + (following[:, None] == parted).mean() / 2
    if sparse and apart < _NEARER:
        return f"lines are as near across the {blank:,} blank lines as elsewhere", ""
    return "", f"; {how}"


def require_documents(examples: Examples, need: str) -> IndexArray:
    """:func:`document_lengths` of what must be text in documents, where ``need`` asks for them."""
    documents = find_documents(examples)
    lengths = documents.blocks
    followed = int((lengths - 1).sum())
    if len(lengths) < 2 or followed < 2:
        raise DataError(
            f"{need}: {examples.source} has {followed} of {lengths.sum()} sentences with another "
            f"after them, in {len(lengths)} documents; give a .txt (or .txt.gz) with the sentences "
            "of each document in order, one per line, and a blank line between documents"
        )
    if not documents.is_split:
        logger.warning("%s, but %s takes %s for documents", documents.why, need, examples.source)
    return lengths


def document_ends(lengths: IndexArray, store: TokenStore) -> IndexArray:
    """``(N,)`` int64: for each sentence of ``store`` the number after the last of its document."""
    owner = np.delete(np.repeat(np.arange(len(lengths)), lengths), store.tokenless())
    return np.searchsorted(owner, owner, side="right").astype(np.int64)


def positions(ends: IndexArray) -> IndexArray:
    """``(N,)`` int64 that grow by 1 within a document, and by more than N between two."""
    return np.arange(len(ends)) + np.unique(ends, return_inverse=True)[1] * len(ends)


@dataclass(frozen=True, slots=True)
class Spans:
    """The spans to draw from a document."""

    anchors: int = 2  # A, from each document; they do not overlap
    positives: int = 2  # P, near each anchor
    shortest: int = 32  # words of a span, at least
    longest: int = 512  # words of a span, at most; not below ``shortest``

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
        which has one neighbour. A positive touches or overlaps its anchor.
        """
        blocks = list(range(0, words - self.longest + 1, self.longest))
        anchors: list[Span] = []
        for left in range(self.anchors, 0, -1):
            count = len(blocks)
            scarce = count // left < left
            place = int(random.integers(2) * (count - 1) if scarce else random.integers(count))
            length = self._length(4, 2, random)
            start = int(random.integers(blocks[place], blocks[place] + self.longest - length + 1))
            anchors.append((start, start + length))
            del blocks[max(0, place - 1) : place + 2]
        positives = list[Span]()
        for start, end in (anchor for anchor in anchors for _ in range(self.positives)):
            length = self._length(2, 4, random)
            first = int(random.integers(max(0, start - length), min(end, words - length) + 1))
            positives.append((first, first + length))
        return anchors + positives

    def _length(self, a: float, b: float, random: Generator) -> int:
        shortest = min(self.shortest, self.longest)
        return int(random.beta(a, b) * (self.longest - shortest) + shortest)


QUESTION = ("?", "\uff1f", "\u061f")
_MAY_END = re.compile(
    r"[.!?\u2026\u061f\u06d4\u0964\u0965]+[\"')\]\u2019\u201d\u00bb]*\s+|[\u3002\uff01\uff1f]+[\u300d\u300f]*\s*"
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


def split_sentences(text: str) -> list[str]:
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


_TEXT, _TEXTS_FORMAT = "texts.arrow", 2


def keep_texts(examples: Examples) -> Any:
    """Texts of ``examples`` of one sentence each, a column of Arrow, mapped from the cache."""
    from pyarrow import ipc, memory_map, record_batch, schema, string

    columns = schema({"text": string()})

    def write(folder: Path) -> None:
        with ipc.new_file(folder / _TEXT, columns) as file:
            for sentences in portions(examples):
                file.write(record_batch([sentences], schema=columns))

    def read(folder: Path) -> Any:
        return ipc.open_file(memory_map(str(folder / _TEXT))).read_all()[0]

    key = [_TEXTS_FORMAT, examples.sha256, examples.views]
    return cached("texts", "the texts", key, read, write)


class Texts(NamedTuple):
    """The documents that are long enough, each some numbers of ``lines``, of ``total``."""

    lines: Any
    documents: list[range]
    total: int
    split: Callable[[str], list[str]]

    def parts(self, numbers: range) -> list[str]:
        """The words or sentences of a document; none goes on in the next line."""
        return [part for number in numbers for part in self.split(self.lines[number].as_py())]


def long_documents(
    examples: Examples, split: Callable[[str], list[str]], least: int, remedy: str
) -> Texts:
    """The documents of ``least`` words or sentences, or more.

    They are those of :func:`find_documents`, or else every line or row; where no line is long
    enough, blank lines end documents whatever else says. DataError if fewer than 2 are long enough.
    """
    if examples.views != 1:
        raise DataError(f"{examples.source} has {example_of(examples.views)}, not one document")
    lines, blocks = keep_texts(examples), find_documents(examples)
    every = [range(number, number + 1) for number in range(len(lines))]
    ends = np.cumsum(blocks.blocks).tolist()
    between = [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    def measured(documents: list[range]) -> tuple[Texts, list[int], list[range]]:
        texts = Texts(lines, documents, len(documents), split)
        counts = [len(texts.parts(numbers)) for numbers in documents]
        return texts, counts, [it for it, n in zip(documents, counts, strict=True) if n >= least]

    texts, counts, chosen = measured(between if blocks.is_split else every)
    if not blocks.is_split and len(chosen) < 2 and len((by_blank := measured(between))[-1]) > 1:
        texts, counts, chosen = by_blank
    if len(chosen) < 2:
        what = "with a blank line between" if blocks.is_split else "every line is one"
        unit = "words" if split is str.split else "sentences"
        few = f"{len(chosen) or 'none'} of the {texts.total} documents of {examples.source}"
        longest = f"and 2 are needed; the longest has {max(counts, default=0)}"
        raise DataError(f"{few} ({what}) has {least} {unit}, {longest}; {remedy}")
    return texts._replace(documents=chosen)
