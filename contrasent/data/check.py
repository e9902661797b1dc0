"""What a file holds, and what about it would make training worse than it could be."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contrasent.data.batch import Need
from contrasent.data.documents import document_lengths
from contrasent.data.examples import (
    NliClasses,
    PairExamples,
    open_examples,
    open_pairs,
    portions,
    require_classes,
)
from contrasent.data.tokenizer import Tokenizer
from contrasent.errors import DataError, pick

_SHOWN = 3
_TOLD_EVERY = 1000
_FEW, _MANY = 0.01, 0.1  # shares of the examples that are worth a word
# C0 and C1 without tab and line ends. C1 usually is Windows-1252 that was read as Latin-1.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# UTF-8 that was read as Latin-1 or Windows-1252: its two to four bytes as letters of their own.
_MOJIBAKE = re.compile(
    "[\u00c2-\u00c5\u00d0\u00d1][\u0080-\u00bf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc"
    "\u2018-\u2022\u2026\u2030\u2039\u203a\u20ac\u2122]"
    "|\u00e2(?:\u20ac|\u0080)|\u00ef\u00bb\u00bf|\u00f0[\u0178\u009f]"
)
_TAG = re.compile(r"</?[a-z][a-z0-9]*(?:\s[^<>]*)?/?>|<!--|<!doctype\s", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:[a-z][a-z0-9]{1,30}|#[0-9]{1,7}|#x[0-9a-f]{1,6});", re.IGNORECASE)
# Signs of harm, in the sentences of an example and in their text.
_SIGNS: dict[str, Callable[[str, tuple[str, ...]], object]] = {
    "identical": lambda _, sentences: len(sentences) > 1 and sentences[0] == sentences[1],
    "replaced": lambda text, _: "\ufffd" in text,
    "control": lambda text, _: _CONTROL.search(text),
    "mojibake": lambda text, _: not text.isascii() and _MOJIBAKE.search(text),
    "tags": lambda text, _: "<" in text and _TAG.search(text),
    "entities": lambda text, _: "&" in text and _ENTITY.search(text),
    "wordless": lambda _, sentences: not all(any(map(str.isalnum, it)) for it in sentences),
}


@dataclass(slots=True)
class Finding:
    """How often something was found, and where first."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, where: str) -> None:
        """Count it once more."""
        self.count += 1
        if len(self.first) < _SHOWN:
            self.first.append(where)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Lengths of texts: in words, in tokens (with special ones), or in sentences."""

    count: int
    minimum: int
    median: float
    mean: float
    p95: int
    maximum: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What was found in a source of examples."""

    source: str
    columns: str
    sha256: str
    views: int
    examples: int  # rows of ``views`` sentences that training would use
    # how many of them are of each class, by its name, or by its number where the source does not
    # name it; None if labels were not asked for
    classes: Mapping[str, int] | None
    unlabelled: int
    skipped: int
    blank: int
    # parts of a ``.txt`` with blank lines between them; None if there are not two
    documents: Lengths | None
    unreadable: Finding  # rows at which training would stop; ``first`` holds the messages
    repeated: int  # examples whose first sentence an earlier example has, letter by letter
    signs: Mapping[str, Finding]  # examples with each sign of harm
    words: tuple[Lengths, ...]  # of each view; empty if there is no example
    tokens: tuple[Lengths, ...] | None  # None without a tokenizer
    max_tokens: int
    cut: int | None  # sentences longer than ``max_tokens``; None without a tokenizer
    shown: tuple[tuple[str, ...], ...]
    layout: str  # how the source is read, where that was told by its content; else empty

    def cautions(self) -> Iterator[str]:
        """What may do harm in a source that can be used, and what to do about it."""
        of = max(self.examples, 1)
        found = {name: sign.count for name, sign in self.signs.items()}
        broken, tags, entities = (
            found["replaced"] + found["mojibake"],
            found["tags"],
            found["entities"],
        )
        cut, first = (self.cut or 0) / (of * self.views), "".join(self.signs["wordless"].first[:1])
        identical, wordless = found["identical"], found["wordless"]
        rows = (
            (self.layout, f"{self.layout}, as its rows tell; see the examples above"),
            (self.repeated > _MANY * of, f"{self.repeated / of:.0%} are repeats; leave them out"),
            (identical, f"in {identical:,} anchor and positive are the same sentence"),
            (broken > _FEW * of, f"{broken:,} look wrongly decoded; save the file as UTF-8"),
            (
                tags or entities,
                f"{tags:,} hold HTML tags, {entities:,} entities; they are embedded as letters",
            ),
            (wordless, f"{wordless:,} hold no word, first {first}; searches would find them"),
            (cut > _MANY, f"{cut:.0%} of the sentences would be cut at {self.max_tokens} tokens"),
        )
        return (text for applies, text in rows if applies)

    @property
    def tokens_needed(self) -> int:
        """A limit on tokens that cuts hardly any sentence: 32, 64, 128, ..., 512."""
        of_words = (round(1.4 * length.p95) + 2 for length in self.words)
        longest = max([length.p95 for length in self.tokens or ()] or of_words, default=0)
        return next((limit for limit in (32, 64, 128, 256) if longest <= limit), 512)

    def require_usable(self) -> None:
        """Make sure that training can use the source."""
        problem = ""
        if count := self.unreadable.count:
            rows = "1 row" if count == 1 else f"{count} rows"
            first = self.unreadable.first[0]
            problem = (
                f"{rows} of {self.source} cannot be read, at which training would stop: {first}"
            )
        elif self.examples < 2:
            few = f"{self.examples} example{'s' if self.examples != 1 else ''}"
            problem = (
                f"{self.source} holds {few} without an empty sentence, but at least 2 are needed"
            )
        if problem:
            raise DataError(problem)
        if self.classes is not None:
            counts = enumerate(self.classes.values())
            require_classes(self.source, [number for number, count in counts if count])


def check(
    source: str,
    columns: Sequence[str] | None = None,
    tokenizer: Tokenizer | None = None,
    max_tokens: int = 32,
    progress: Callable[[int], None] | None = None,
    *,
    labels: str = "none",
) -> Report:
    """Read a whole source as training would, but go on after rows that cannot be read.

    With ``labels`` as ``nli``, premise, hypothesis and label are read. ``tokenizer`` counts tokens,
    and the sentences that ``max_tokens`` would cut.
    """
    of_nli = pick("kind of labels", labels, ("nli", "none")) == "nli"
    examples = open_pairs(source, "nli", columns) if of_nli else open_examples(source, columns)
    unreadable, signs = Finding(), {name: Finding() for name in _SIGNS}
    sample: list[tuple[str, ...]] = []
    hashes, words, tokens = array("q"), array("I"), array("I")

    def read() -> Iterator[tuple[str, ...]]:
        for where, sentences in examples.read(lambda error: unreadable.add(str(error))):
            hashes.append(hash(sentences[0]))
            sample.extend([sentences] * (len(sample) < _SHOWN))
            text = "\t".join(sentences)
            for name, has_sign in _SIGNS.items():
                if has_sign(text, sentences):
                    signs[name].add(where)
            if progress is not None and not len(hashes) % _TOLD_EVERY:
                progress(_TOLD_EVERY)
            yield sentences

    for portion in portions(read()):
        words.extend(len(sentence.split()) for sentence in portion)
        if tokenizer is not None:
            tokens.extend(map(len, tokenizer.ids(portion, None)[0]))
    documents = None
    if examples.is_lines and examples.blank:
        sizes = document_lengths(examples, lambda _: None)
        documents = _lengths(sizes) if len(sizes) > 1 else None
    classes = None
    if isinstance(examples, PairExamples) and isinstance(examples.parse, NliClasses):
        counts = Counter(examples.numbers[Need.LABELS])
        classes = {name: counts[number] for number, name in enumerate(examples.parse.names)}

    def lengths_of_views(lengths: array[int]) -> tuple[Lengths, ...]:
        views = range(examples.views if lengths else 0)
        return tuple(_lengths(np.array(lengths[view :: examples.views])) for view in views)

    return Report(
        source=source,
        columns=examples.columns,
        sha256=examples.sha256,
        views=examples.views,
        examples=len(hashes),
        classes=classes,
        unlabelled=examples.unlabelled,
        skipped=examples.skipped,
        blank=examples.blank,
        documents=documents,
        unreadable=unreadable,
        repeated=len(hashes) - len(np.unique(hashes)),
        signs=signs,
        words=lengths_of_views(words),
        tokens=None if tokenizer is None else lengths_of_views(tokens),
        max_tokens=max_tokens,
        cut=None if tokenizer is None else sum(length > max_tokens for length in tokens),
        shown=tuple(sample),
        layout=examples.rows.layout,
    )


def _lengths(lengths: NDArray[Any]) -> Lengths:
    return Lengths(
        count=len(lengths),
        minimum=int(lengths.min()),
        median=float(np.median(lengths)),
        mean=float(lengths.mean()),
        p95=int(np.percentile(lengths, 95, method="inverted_cdf")),
        maximum=int(lengths.max()),
    )
