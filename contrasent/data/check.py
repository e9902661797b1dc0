"""Facts of a text: what it holds, and what about it would do harm."""

import random
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from contrasent.data.columns import view_names
from contrasent.data.documents import Documents, find_documents
from contrasent.data.examples import Examples, portions
from contrasent.data.readers import CONTROL, counted, n_words, without_markup
from contrasent.data.tokenizer import Tokenizer
from contrasent.progress import one_line, printable

_SHOWN, _TOLD_EVERY = 3, 1000
_SAMPLE = 2000  # texts whose language and words are looked at
_FEW, _MANY = 0.01, 0.1  # shares of the examples that are worth a word
_SHORT = 10  # characters
_WORD = re.compile(r"[^\W\d_]+")
# UTF-8 that was read as Latin-1 or Windows-1252: its two to four bytes as letters of their own.
_MOJIBAKE = re.compile(
    "[\u00c2-\u00c5\u00d0\u00d1][\u0080-\u00bf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc"
    "\u2018-\u2022\u2026\u2030\u2039\u203a\u20ac\u2122]"
    "|\u00e2(?:\u20ac|\u0080)|\u00ef\u00bb\u00bf|\u00f0[\u0178\u009f]"
)
_MARKDOWN = re.compile(
    r"^(?:#{1,6} |```|[*+-] (?=\w)|> |\|.*\|$)|\[[^\]]+\]\([^)]+\)|\*\*\w[^*]*\*\*|`[^`]+`"
)
_URL = re.compile(r"https?://|\bwww\.\w")
_ENDS = re.compile(r"[.!?:\u2026\u3002\uff01\uff1f][\W_]*$")
_LETTERS = "wrongly decoded letters (Ã© for é)"
_AS_UTF8, _CLEAN = "save the file as UTF-8", "leave them out, as --clean does"
# Each sign of harm: in words, what to do about it, from which share of examples, how it is seen.
_SIGNS: dict[str, tuple[str, str, float, Callable[[str], object]]] = {
    "replaced": ("U+FFFD", _AS_UTF8, _FEW, lambda text: "\ufffd" in text),
    "control": ("control characters", "", 0, CONTROL.search),
    "mojibake": (_LETTERS, _AS_UTF8, _FEW, lambda it: not it.isascii() and _MOJIBAKE.search(it)),
    "tags": ("HTML tags", _CLEAN, 0, lambda text: "<" in text and without_markup(text)[1]),
    "entities": ("HTML entities", _CLEAN, 0, lambda text: "&" in text and without_markup(text)[2]),
    "markdown": ("Markdown", "", 0, _MARKDOWN.search),
    "urls": ("addresses of the web", "", 0, _URL.search),
    "wordless": ("no word", "searches find them", 0, lambda it: not any(map(str.isalpha, it))),
    "short": (f"fewer than {_SHORT} characters", "", 0, lambda text: len(text) < _SHORT),
}
_FREQUENT = Path(__file__).with_name("frequent_words.txt").read_text(encoding="utf-8").splitlines()
_PROFILES = {name: {*words.split()} for name, words in (line.split(":") for line in _FREQUENT)}


@dataclass(slots=True)
class Finding:
    """How often something was found, and where first."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, where: str) -> None:
        """Count it once more."""
        self.count += 1
        self.first += [where] * (len(self.first) < _SHOWN)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Lengths of texts: in words, in tokens (with special ones), or in sentences."""

    count: int
    minimum: int
    median: float
    mean: float
    p95: int
    maximum: int

    @classmethod
    def of(cls, lengths: NDArray[Any]) -> Self:
        """The lengths of at least one text."""
        return cls(
            count=len(lengths),
            minimum=int(lengths.min()),
            median=float(np.median(lengths)),
            mean=float(lengths.mean()),
            p95=int(np.percentile(lengths, 95, method="inverted_cdf")),
            maximum=int(lengths.max()),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TextFacts:
    """The facts of a source of examples; `dataclasses.asdict` gives them for JSON."""

    source: str
    columns: str
    sha256: str
    layout: str  # how the source is read, where that was told by its content; else empty
    views: int
    examples: int  # rows of ``views`` sentences that training would use
    skipped: int
    blank: int
    cleaned: Mapping[str, int] | None  # examples with each kind of dirt that was taken out
    documents: Lengths | None  # in lines; None where every line or row is a text by itself
    documents_why: str
    unreadable: Finding  # rows at which training would stop; ``first`` holds the messages
    repeated: int  # examples whose first sentence an earlier example has, letter by letter
    identical: Finding  # examples whose first two sentences are the same
    signs: Mapping[str, Finding]  # examples with each sign of harm
    wrapped: int  # lines of which the next one goes on with the sentence
    scripts: Mapping[str, float]  # shares of a sample of the texts, the largest first
    languages: Mapping[str, float]
    words: tuple[Lengths, ...]  # of each view; empty if there is no example
    tokens: tuple[Lengths, ...] | None  # None without a tokenizer
    unknown: int | None  # sentences with words, none of which it knows; None without a tokenizer
    max_tokens: int | None
    cut: int | None  # sentences longer than ``max_tokens``; None without a tokenizer
    split_words: float | None  # share of a sample's words that are no single token
    shown: tuple[tuple[str, ...], ...]

    @property
    def names(self) -> list[str]:
        """What the sentences of an example are called."""
        return view_names(self.views)

    def lines(self) -> Iterator[str]:
        """The facts in lines."""
        of = max(self.examples, 1)
        each = "" if self.views == 1 else " each"
        yield aligned("file", self.source)
        yield aligned("columns", self.columns)
        yield aligned("examples", f"{self.examples:,} of {plural(self.views, 'sentence')}{each}")
        unused = f"{plural(self.skipped, 'row')} with an empty sentence"
        yield aligned("left out", f"{unused}, {plural(self.blank, 'blank line')}")
        if self.cleaned is not None:
            yield aligned("cleaned", counted(self.cleaned))
        yield aligned("documents", self.documents_why)
        yield aligned("unreadable", plural(self.unreadable.count, "row"))
        yield from (aligned("", message) for message in self.unreadable.first)
        share = f" ({self.repeated / of:.1%})" if self.repeated else ""
        repeated = f"{plural(self.repeated, 'example')}{share} with an earlier one's"
        yield aligned("repeated", f"{repeated} {self.names[0]}")
        findings = [(what, self.signs[name]) for name, (what, *_) in _SIGNS.items()]
        findings.append((f"{' and '.join(self.names[:2])} the same", self.identical))
        for what, finding in findings:
            if finding.count:
                places = ", ".join(where.removeprefix(self.source) for where in finding.first)
                share = f"{plural(finding.count, 'example')} ({finding.count / of:.1%})"
                yield aligned("dirt", f"{what} in {share}, first at {places}")
        if self.wrapped:
            yield aligned("wrapped", f"{plural(self.wrapped, 'line')} that the next one goes on")
        for name, shares in (("script", self.scripts), ("language", self.languages)):
            yield aligned(name, ", ".join(f"{it} {share:.0%}" for it, share in shares.items()))
        for unit, lengths in (("words", self.words), ("tokens", self.tokens or ())):
            for view, it in zip(self.names, lengths, strict=False):
                middle = f"{it.median:g} in the median, {it.mean:.1f} in the mean"
                edges = f"{it.minimum} to {it.maximum:,}, 95% up to {it.p95}"
                yield aligned(unit, f"{view}: {middle}, {edges}")
        if self.cut is not None:
            cut = f"{plural(self.cut, 'sentence')} ({self.cut / (of * self.views):.1%})"
            yield aligned("cut", f"{cut} longer than {self.max_tokens} tokens")
        if self.split_words is not None:
            yield aligned("pieces", f"{self.split_words:.0%} of the words are no single token")
        yield aligned("sha256", f"{self.sha256} (content and columns)")

    def cautions(self) -> Iterator[str]:
        """What may do harm in a source that can be used, and what to do about it."""
        of, views = max(self.examples, 1), " and ".join(self.names[:2])
        seen = [(self.signs[name].count, *row) for name, row in _SIGNS.items() if row[1]]
        if self.layout:
            yield f"{self.layout}, as its rows tell; see the examples above"
        for count, share, what in (
            (self.repeated * (self.views == 1), _MANY, f"repeats; {_CLEAN}"),
            (self.identical.count, 0, f"with {views} the same"),
            *((count, share, f"with {what}; {remedy}") for count, what, remedy, share, _ in seen),
            ((self.unknown or 0) / self.views, 0, "of words that the tokenizer does not know"),
            (self.wrapped, _MANY, "that end within a sentence; join the lines of a paragraph"),
            ((self.cut or 0) / self.views, _MANY, f"longer than {self.max_tokens} tokens"),
        ):
            if count > share * of:
                yield f"{count:,.0f} ({count / of:.0%}) {what}"


def describe(
    examples: Examples,
    tokenizer: Tokenizer | None = None,
    *,
    documents: Documents | None = None,
    max_tokens: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> TextFacts:
    """Read a whole source as training would, but go on after rows that cannot be read.

    ``tokenizer`` counts tokens, and the sentences that ``max_tokens`` would cut, by default its own
    limit; ``documents`` are those of :func:`find_documents`, if they are known.
    """
    limit = max_tokens or (None if tokenizer is None else tokenizer.max_tokens)
    unreadable, identical, signs = Finding(), Finding(), {name: Finding() for name in _SIGNS}
    first, sample = list[tuple[str, ...]](), list[str]()
    hashes, words, tokens = array("q"), array("I"), array("I")
    draw, wrapped, before, unknown = random.Random(0), 0, "", 0

    def read() -> Iterator[tuple[str, ...]]:
        nonlocal wrapped, before
        for where, sentences in examples.read(lambda error: unreadable.add(str(error))):
            hashes.append(hash(sentences[0]))
            first.extend([sentences] * (len(first) < _SHOWN))
            place = len(hashes) - 1 if len(sample) < _SAMPLE else draw.randrange(len(hashes))
            if place < _SAMPLE:
                sample[place : place + 1] = [sentences[0]]
            for name, (*_, has_sign) in _SIGNS.items():
                if any(has_sign(sentence) for sentence in sentences):
                    signs[name].add(where)
            if sentences[0] in sentences[1:2]:
                identical.add(where)
            if examples.is_lines:
                text, both = sentences[0], before + sentences[0]
                goes_on = len(before) > 4 * _SHORT and both != both.lower() and text[0].islower()
                wrapped, before = wrapped + (goes_on and not _ENDS.search(before)), text
            if not len(hashes) % _TOLD_EVERY:
                progress(_TOLD_EVERY)
            yield sentences

    for portion in portions(read()):
        words.extend(map(n_words, portion))
        if tokenizer is not None:
            ids, _ = tokenizer.ids(portion, None)
            tokens.extend(map(len, ids))
            unknown += tokenizer.wordless(ids)
    documents = documents or find_documents(examples, lambda _: None)

    def of_views(lengths: "array[int]") -> tuple[Lengths, ...]:
        views = range(examples.views if lengths else 0)
        return tuple(Lengths.of(np.array(lengths[view :: examples.views])) for view in views)

    return TextFacts(
        source=examples.source,
        columns=examples.columns,
        sha256=examples.sha256,
        layout=examples.rows.layout,
        views=examples.views,
        examples=len(hashes),
        skipped=examples.skipped,
        blank=examples.blank,
        cleaned=None if examples.cleaned is None else dict(examples.cleaned),
        documents=None if documents.lengths is None else Lengths.of(documents.lengths),
        documents_why=documents.why,
        unreadable=unreadable,
        repeated=len(hashes) - len(np.unique(hashes)),
        identical=identical,
        signs=signs,
        wrapped=wrapped,
        scripts=_shares(map(_script, sample)),
        languages=_shares(map(_language, sample)),
        words=of_views(words),
        tokens=None if tokenizer is None else of_views(tokens),
        unknown=None if tokenizer is None else unknown,
        max_tokens=limit,
        cut=None if limit is None or tokenizer is None else sum(it > limit for it in tokens),
        split_words=None if tokenizer is None else _split_words(sample, tokenizer),
        shown=tuple(first),
    )


def _shares(kinds: Iterator[str]) -> dict[str, float]:
    counts = Counter(kinds)
    return {name: count / counts.total() for name, count in counts.most_common()}


def _script(text: str) -> str:
    letters = (unicodedata.name(it, "other").split()[0] for it in text[:100] if it.isalpha())
    return next((name.capitalize() for name, _ in Counter(letters).most_common(1)), "none")


def _language(text: str) -> str:
    words = set(_WORD.findall(text.lower()))
    hits = {name: len(words & frequent) for name, frequent in _PROFILES.items()}
    best = max(hits, key=lambda name: hits[name])
    return best if hits[best] > 1 else "unknown"


def _split_words(sample: Sequence[str], tokenizer: Tokenizer) -> float | None:
    counts = Counter(word for text in sample for word in _WORD.findall(text))
    ids, _ = tokenizer.ids([*counts, *(f"a {word}" for word in counts), "a"], None)
    alone, behind, whole = ids[: len(counts)], ids[len(counts) : -1], len(ids[-1]) + 1
    rows = zip(alone, behind, counts.values(), strict=True)
    split = sum(n for own, row, n in rows if len(row) != whole or tokenizer.wordless([own]))
    return split / counts.total() if counts else None


def plural(count: int, what: str) -> str:
    """A number of things."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def aligned(name: str, value: str) -> str:
    """A fact in a line."""
    return f"{name:<12}{printable(value)}"


def example_lines(names: Sequence[str], examples: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first examples of a source, a line for each sentence."""
    for number, sentences in enumerate(examples, start=1):
        yield f"example {number}"
        for name, sentence in zip(names, sentences, strict=True):
            yield f"  {name}: {shortened(sentence)}"


def shortened(sentence: str, longest: int = 100) -> str:
    """The beginning of a sentence, in a line."""
    line = one_line(sentence)
    return line if len(line) <= longest else f"{line[:longest]}..."
