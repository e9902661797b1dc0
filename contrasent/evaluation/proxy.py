"""Proxies: retrieval tasks made of text without labels, and the text that a run holds out for one.

The first half of a text is to find its second half among those of other texts, a sentence the one
after it in its document, or the anchor of an example its positive. To judge an encoder, first
sentences, headings, questions and rare words ask as well, and what would give a query away is taken
out of the text that it is to find.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import NamedTuple

from contrasent.data.documents import QUESTION, find_documents, split_sentences
from contrasent.data.examples import Examples, keep_rows
from contrasent.data.readers import CHARACTERS, first_words, n_words
from contrasent.evaluation.retrieval import RetrievalTask
from contrasent.evaluation.task_names import HELD_OUT, TaskName
from contrasent.search.words import words

METRICS = ("mrr@10", "recall@1", "recall@10")
MOST, SHARE, FEWEST = 1000, 0.1, 50
"""Rows that a task is made of; what a run holds out at most; queries below which it does not."""

_FEWEST_WORDS, _FEWEST_LETTERS = 8, 16
_ENDS = (*QUESTION, ".", "!", "\u3002", "\uff01", "\u06d4", "\u0964", "\u0965")

Example = tuple[str, ...]
Unit = tuple[Example, ...]
"""What is held out together: the sentences of a document, or one example."""


def halves(text: str) -> tuple[str, str] | None:
    """A text cut at a sentence's end near its middle, else in the middle; None of a short one."""
    parts, space = text.split(), " "
    if len(parts) < _FEWEST_WORDS:
        if len(re.findall(f"[{CHARACTERS}]", text)) < _FEWEST_LETTERS:
            return None
        parts, space = list(" ".join(parts)), ""
    quarter, middle = len(parts) // 4, len(parts) // 2
    ends = [n for n in range(quarter, len(parts) - quarter + 1) if parts[n - 1].endswith(_ENDS)]
    cut = min(ends, key=lambda n: abs(n - middle), default=middle)
    return space.join(parts[:cut]).strip(), space.join(parts[cut:]).strip()


def _pairs_of(kind: str, unit: Unit) -> list[tuple[str, str]]:
    if kind == "crops":
        return [pair for text, *_ in unit if (pair := halves(text))]
    if kind == "pairs":
        return [(first, second) for first, second, *_ in unit]
    return [(first, second) for (first, *_), (second, *_) in pairwise(unit)]


@dataclass(frozen=True, slots=True)
class HeldOutTask:
    """A part of the training text that is not trained on."""

    task: RetrievalTask | None  # what is made of it; None, and nothing held out, of too little
    rest: Callable[..., Path]  # writes all other text, without what other sources hold out
    texts: int  # how many lines or rows are held out
    long_texts: frozenset[str]  # of these, those that can be known again in other sources


def hold_out(examples: Examples, named: str = "") -> HeldOutTask:
    """Keep a tenth of a text, a thousand rows at most, out of training, as a task.

    Those whose hashes are smallest, whatever their order, so that equal rows and all pairs of an
    anchor are on one side; whole documents. Nothing if that makes fewer than fifty queries.
    ``named`` is what the task's name ends with.
    """
    lengths = find_documents(examples).lengths
    of_lines = "crops" if lengths is None else "next sentences"
    pairs = partial(_pairs_of, kind := "pairs" if examples.views > 1 else of_lines)
    smallest, count = _smallest(units_of(examples, lengths), pairs)
    most, out, texts = min(MOST, int(SHARE * count)), dict[int, Counter[Unit]](), 0
    for number, units in smallest.items():
        rows = sum(len(unit) * times for unit, times in units.items())
        if texts + rows <= most:
            out[number] = units
            texts += rows
    places, wanted = dict[str, int](), dict[str, dict[int, float]]()
    for first, second in chain.from_iterable(map(pairs, chain.from_iterable(out.values()))):
        row = places.setdefault(second, len(places))
        if first != second:
            wanted.setdefault(first, {})[row] = 1
    if len(wanted) < FEWEST:
        out, texts = {}, 0
    task = RetrievalTask(
        name=TaskName(f"{HELD_OUT} {kind}{named}"),
        corpus=tuple(places),
        queries=tuple(wanted),
        relevant=tuple(wanted.values()),
        left_out=tuple(places.get(query) for query in wanted),
        metrics=METRICS,
        description=(
            f"{texts:,} of {count:,} texts, held out of training: {len(wanted):,} queries, "
            f"{len(places):,} documents; no labels"
        ),
        sha256=examples.sha256,
    )

    def remaining(others: Set[str]) -> Iterator[str | Example]:
        for unit in units_of(examples, lengths):
            if _hash(unit) not in out and others.isdisjoint(chain.from_iterable(unit)):
                yield from (e[0] if examples.views == 1 else e for e in unit)
                yield from [""] * (lengths is not None)

    def rest(others: Set[str] = frozenset()) -> Path:
        return keep_rows(remaining(others))

    cells = (text for units in out.values() for unit in units for row in unit for text in row)
    return HeldOutTask(task if out else None, rest, texts, frozenset(filter(halves, cells)))


def units_of(examples: Examples, lengths: Iterable[int] | None) -> Iterator[Unit]:
    """The documents of some lengths, or every example by itself."""
    rows = iter(examples)
    if lengths is None:
        return ((row,) for row in rows)
    return (tuple(islice(rows, int(length))) for length in lengths)


def _smallest(
    units: Iterable[Unit], pairs: Callable[[Unit], list[tuple[str, str]]]
) -> tuple[dict[int, Counter[Unit]], int]:
    """The thousand smallest hashes of units that ``pairs`` can be made of, and the rows of all."""
    smallest: dict[int, Counter[Unit]] = {}
    count = 0
    for unit in units:
        count += len(unit)
        if pairs(unit):
            smallest.setdefault(_hash(unit), Counter())[unit] += 1
        if len(smallest) > 4 * MOST:
            smallest = dict(sorted(smallest.items())[:MOST])
    return dict(sorted(smallest.items())[:MOST]), count


def _hash(unit: Unit) -> int:
    return digest("\n".join(first for first, *_ in unit))


def digest(text: str) -> int:
    """64 bits that follow from a text, to draw by."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


MOST_QUERIES = 400
_LONGEST, _SECTION, _KEYWORDS = 50, 10, 4


@dataclass(frozen=True, slots=True)
class TextSample:
    """N distinct texts of a source, those of the documents or rows with the smallest hashes."""

    source: str
    sha256: str
    texts: tuple[str, ...]
    documents: tuple[tuple[int, ...], ...]  # rows of the texts of each; none without documents
    pairs: tuple[tuple[str, int], ...]  # of a source of pairs each anchor and its positive's row
    in_documents: bool = False  # lines of two documents do not follow each other


def sample_texts(
    examples: Examples, lengths: Iterable[int] | None, texts: int, most_words: int, longest: int
) -> TextSample:
    """Take the first fifty lines of documents, or rows, until there are so many ``texts`` or words.

    A text of more than ``longest`` words is cut. Of a source of pairs the positives are the texts.
    """
    smallest = dict[int, Unit]()
    for unit in units_of(examples, lengths):
        smallest.setdefault(_hash(unit), unit[:_LONGEST])
        if len(smallest) > 2 * texts:
            smallest = dict(sorted(smallest.items())[:texts])
    places, documents, pairs = dict[str, int](), list[tuple[int, ...]](), list[tuple[str, int]]()
    for _, unit in sorted(smallest.items()):
        if len(places) >= texts or most_words <= 0:
            break
        known = [[first_words(side, longest) for side in example[:2]] for example in unit]
        most_words -= sum(n_words(example[-1]) for example in known)
        documents.append(tuple(places.setdefault(it[-1], len(places)) for it in known))
        pairs += [(it[0], places[it[-1]]) for it in known]
    sections = () if lengths is None else tuple(documents)
    positives = tuple(pairs) if examples.views > 1 else ()
    return TextSample(examples.source, examples.sha256, tuple(places), sections, positives)


class Ask(NamedTuple):
    """A query, the rows that it is to find, and their text without what gives it away."""

    query: str
    wanted: tuple[int, ...]
    masked: Mapping[int, str] = {}
    itself: int | None = None  # the row of the query


def _halves(sample: TextSample) -> Iterator[Ask]:
    for row, text in enumerate(sample.texts):
        if len(words(text)) >= 2 * _FEWEST_WORDS and (parts := halves(text)):
            yield Ask(parts[0], (row,), {row: parts[1]})


def _rest(sample: TextSample) -> Iterator[Ask]:
    for row, text in enumerate(sample.texts):
        first, *rest = split_sentences(text)
        if len(rest) > 1:
            yield Ask(first, (row,), {row: " ".join(rest)})


def _next(sample: TextSample) -> Iterator[Ask]:
    for row, following in chain.from_iterable(map(pairwise, sample.documents)):
        yield Ask(sample.texts[row], (following,), {}, row)


def _answers(sample: TextSample) -> Iterator[Ask]:
    for ask in _next(sample):
        if ask.query.endswith(QUESTION) > sample.texts[ask.wanted[0]].endswith(QUESTION):
            yield ask


def is_title(text: str) -> bool:
    """True if a line is short, begins with a word, and does not end as a sentence does."""
    title = text.strip("#= ")
    ends = title.endswith((*_ENDS, ",", ";", ":"))
    return title[:1].isalnum() and not ends and len(title.split()) < _FEWEST_WORDS


def _titles(sample: TextSample) -> Iterator[Ask]:
    for row, *rows in (it for it in sample.documents if len(it) > 1):
        title = sample.texts[row].strip("#= ")
        if is_title(title) and len(sample.texts[rows[0]]) > 2 * len(title):
            known = re.compile(re.escape(title), re.IGNORECASE)
            section = {it: known.sub("", sample.texts[it]).strip() for it in rows[:_SECTION]}
            section = {it: text for it, text in section.items() if text}
            yield Ask(title, tuple(section), section, row)


def _keywords(sample: TextSample) -> Iterator[Ask]:
    of_text = [list(dict.fromkeys(words(text))) for text in sample.texts]
    often = Counter(chain.from_iterable(of_text))
    for row, known in enumerate(of_text):
        if len(known) > _KEYWORDS + 1:
            rare = sorted(known, key=lambda word: (often[word], word))[:_KEYWORDS]
            yield Ask(" ".join(sorted(rare, key=digest)), (row,))


def _pairs(sample: TextSample) -> Iterator[Ask]:
    return (Ask(anchor, (row,)) for anchor, row in sample.pairs)


MAKERS = {
    "pairs": (_pairs, "the first column finds the second"),
    "halves": (_halves, "one half of a text finds the other"),
    "rest": (_rest, "the first of three or more sentences finds the others"),
    "next": (_next, "a line finds the one after it in its document"),
    "answers": (_answers, "a question finds the line after it"),
    "titles": (_titles, "the heading of a document finds its lines"),
    "keywords": (_keywords, "the four rarest words of a text find it"),
}


def queries_of(sample: TextSample, kind: str) -> Iterator[Ask]:
    """The queries of a kind of :data:`MAKERS`; a text that equals one is no answer to it."""
    places = {text: row for row, text in enumerate(sample.texts)}
    for ask in MAKERS[kind][0](sample):
        itself = places.get(ask.query) if ask.itself is None else ask.itself
        if wanted := tuple(row for row in ask.wanted if row != itself):
            yield ask._replace(wanted=wanted, itself=itself)


def text_tasks(sample: TextSample) -> tuple[list[RetrievalTask], dict[str, str]]:
    """The tasks that can be made of a text, and why others cannot."""
    tasks, lacking = list[RetrievalTask](), dict[str, str]()
    for kind, (_, what) in MAKERS.items():
        asks, masked = dict[str, Ask](), dict[int, str]()
        for ask in sorted(queries_of(sample, kind), key=lambda it: digest(it.query)):
            full = len(asks) == MOST_QUERIES or ask.query in asks
            if not full and masked.keys().isdisjoint(ask.masked):
                asks[ask.query] = ask
                masked |= ask.masked
        if len(asks) < FEWEST:
            lacking[kind] = f"{what}: {len(asks)} queries, fewer than {FEWEST}"
            continue
        task = RetrievalTask(
            name=TaskName(f"{kind} of {Path(sample.source).name}"),
            corpus=tuple(masked.get(row, text) for row, text in enumerate(sample.texts)),
            queries=tuple(asks),
            relevant=tuple(dict.fromkeys(ask.wanted, 1.0) for ask in asks.values()),
            left_out=tuple(ask.itself for ask in asks.values()),
            metrics=("ndcg@10", "mrr@10"),
            description=what,
            sha256=sample.sha256,
        )
        tasks.append(task)
    return tasks, lacking
