"""Proxies: retrieval tasks made of text without labels, and the text that a run holds out for one.

The first half of a text is to find its second half among those of other texts, a sentence the one
after it in its document, or the anchor of an example its positive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, islice, pairwise
from pathlib import Path

from contrasent.data.documents import find_documents
from contrasent.data.examples import Examples, keep_rows, open_examples
from contrasent.errors import DataError
from contrasent.evaluation.retrieval import RetrievalTask
from contrasent.evaluation.task_names import HELD_OUT, NEXT, TaskName
from contrasent.search.words import UNSPACED

METRICS = ("mrr@10", "recall@1", "recall@10")
MOST, SHARE, FEWEST = 1000, 0.1, 50
"""Rows that a task is made of; what a run holds out at most; queries below which it does not."""

_FEWEST_WORDS, _FEWEST_LETTERS = 8, 16
_ENDS = (".", "?", "!", "\u3002", "\uff1f", "\uff01")

Example = tuple[str, ...]
Unit = tuple[Example, ...]
"""What is held out together: the sentences of a document, or one example."""


def halves(text: str) -> tuple[str, str] | None:
    """A text cut at a sentence's end near its middle, else in the middle; None of a short one."""
    parts, space = text.split(), " "
    if len(parts) < _FEWEST_WORDS:
        if len(UNSPACED.findall(text)) < _FEWEST_LETTERS:
            return None
        parts, space = list(" ".join(parts)), ""
    quarter, middle = len(parts) // 4, len(parts) // 2
    ends = [n for n in range(quarter, len(parts) - quarter + 1) if parts[n - 1].endswith(_ENDS)]
    cut = min(ends, key=lambda n: abs(n - middle), default=middle)
    return space.join(parts[:cut]).strip(), space.join(parts[cut:]).strip()


def crop_pairs(units: Iterable[Unit]) -> list[tuple[str, str]]:
    """The halves of every text that is long enough."""
    texts = (example[0] for unit in units for example in unit)
    return [pair for pair in map(halves, texts) if pair is not None]


def next_pairs(units: Iterable[Unit]) -> list[tuple[str, str]]:
    """Every sentence with the one after it in its document."""
    return [(first, second) for unit in units for (first, *_), (second, *_) in pairwise(unit)]


def _example_pairs(units: Iterable[Unit]) -> list[tuple[str, str]]:
    return [(example[0], example[1]) for unit in units for example in unit]


def _pairs_task(
    name: TaskName, pairs: Sequence[tuple[str, str]], summary: str, sha256: str
) -> RetrievalTask | None:
    """The first of each pair is to find the second among those of all; None of no pair."""
    places: dict[str, int] = {}
    for _, second in pairs:
        places.setdefault(second, len(places))
    wanted: dict[str, dict[int, float]] = {}
    for first, second in pairs:
        if first != second:
            wanted.setdefault(first, {})[places[second]] = 1
    if not wanted:
        return None
    return RetrievalTask(
        name=name,
        corpus=tuple(places),
        queries=tuple(wanted),
        relevant=tuple(wanted.values()),
        left_out=tuple(places.get(query) for query in wanted),
        metrics=METRICS,
        description=f"{summary}: {len(wanted):,} queries, {len(places):,} documents; no labels",
        sha256=sha256,
    )


def read_proxy(name: TaskName, columns: Sequence[str] | None = None) -> RetrievalTask:
    """A task of a file or data set, of at most a thousand of its rows, the last document cut."""
    kind, _, file = name.name.partition(":")
    documents = f"{kind}:" == NEXT
    source = str(Path(file).expanduser())
    examples = open_examples(source, columns, documents=documents or None)
    lengths = find_documents(examples).lengths if documents else None
    if documents and lengths is None:
        raise DataError(
            f"{name.name}: nothing tells where a document of {file} ends; give a .txt with a blank "
            "line between documents, or ask for crops:"
        )
    pairs = next_pairs if documents else crop_pairs
    smallest, count = _smallest(_units(examples, lengths), pairs)
    chosen, room = list[Unit](), MOST
    for unit, *_ in smallest.values():
        chosen.append(unit[:room])
        room -= len(chosen[-1])
    of = f"{MOST - room:,} of {count:,} {'sentences' if documents else 'texts'}"
    summary = f"{of}, {'each to find the next' if documents else 'one half to find the other'}"
    task = _pairs_task(name, pairs(chosen), summary, examples.sha256)
    if task is None:
        lacks = "document of two different sentences" if documents else "text of 8 words"
        raise DataError(f"{name.name}: {file} has no {lacks}, so there is nothing to find")
    return task


@dataclass(frozen=True, slots=True)
class HeldOutTask:
    """A part of the training text that is not trained on."""

    task: RetrievalTask  # what is made of it
    rest: Path  # the file of all other text
    texts: int  # how many lines or rows are held out


def hold_out(examples: Examples) -> HeldOutTask | None:
    """Keep a tenth of a text, a thousand rows at most, out of training, as a task.

    Those whose hashes are smallest, whatever their order, so that equal rows and all pairs of an
    anchor are on one side; whole documents. None of fewer than fifty queries.
    """
    lengths = find_documents(examples).lengths
    kind, pairs = "crops", crop_pairs
    if examples.views > 1:
        kind, pairs = "pairs", _example_pairs
    elif lengths is not None:
        kind, pairs = "next sentences", next_pairs
    smallest, count = _smallest(_units(examples, lengths), pairs)
    most, out, texts = min(MOST, int(SHARE * count)), dict[int, Counter[Unit]](), 0
    for number, units in smallest.items():
        rows = sum(len(unit) * times for unit, times in units.items())
        if texts + rows <= most:
            out[number] = units
            texts += rows
    summary = f"{texts:,} of {count:,} texts, held out of training"
    name = TaskName(f"{HELD_OUT} {kind}")
    task = _pairs_task(name, pairs(chain.from_iterable(out.values())), summary, examples.sha256)
    if task is None or len(task.queries) < FEWEST:
        return None

    def rest() -> Iterator[str | Example]:
        for unit in _units(examples, lengths):
            if _hash(unit) not in out:
                yield from (e[0] if examples.views == 1 else e for e in unit)
                yield from [""] * (lengths is not None)

    return HeldOutTask(task, keep_rows(rest()), texts)


def _units(examples: Examples, lengths: Iterable[int] | None) -> Iterator[Unit]:
    rows = iter(examples)
    if lengths is None:
        return ((row,) for row in rows)
    return (tuple(islice(rows, int(length))) for length in lengths)


def _smallest(
    units: Iterable[Unit], pairs: Callable[[Iterable[Unit]], list[tuple[str, str]]]
) -> tuple[dict[int, Counter[Unit]], int]:
    """The thousand smallest hashes of units that ``pairs`` can be made of, and the rows of all."""
    smallest: dict[int, Counter[Unit]] = {}
    count = 0
    for unit in units:
        count += len(unit)
        if pairs([unit]):
            smallest.setdefault(_hash(unit), Counter())[unit] += 1
        if len(smallest) > 4 * MOST:
            smallest = dict(sorted(smallest.items())[:MOST])
    return dict(sorted(smallest.items())[:MOST]), count


def _hash(unit: Unit) -> int:
    joined = "\n".join(first for first, *_ in unit)
    return int.from_bytes(blake2b(joined.encode(), digest_size=8).digest())
