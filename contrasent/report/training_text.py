"""Training text: the facts of a check or a built file, and its overlap with evaluation text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from contrasent.data.check import plural
from contrasent.data.columns import view_names
from contrasent.progress import printable
from contrasent.report.table import ABSENT, Cell, Table

if TYPE_CHECKING:
    from contrasent.data.build import Built, DataKind
    from contrasent.evaluation.leaks import Leaks
    from contrasent.search.mining import Mined


_LEFT_OUT = {
    "unlabelled": ("row", "without a label"),
    "empty": ("row", "with an empty sentence"),
    "other": ("row", ""),
    "identical": ("row", "with the same sentence twice"),
    "contested": ("hard negative", "that the premise is also said to entail"),
    "incomplete": ("group", ""),
    "repeated": ("repeat", ""),
    "unsampled": ("example", "outside the sample"),
    "unreadable": ("row", "that cannot be read, first:"),
}
"""Words for the fields of Counts, where a kind has no other ones."""


def built_lines(built: Built, kind: DataKind) -> Iterator[str]:
    """The facts of a training file that was built, and its first examples."""
    counts, facts = built.counts, list[tuple[str, str]]()
    for source in built.sources:
        facts += [("source", source["name"] or ""), ("", source["columns"] or "")]
        facts += [("", f"labels: {source['labels']}")] if source["labels"] is not None else []
    labels = ", ".join(f"{count:,} {label}" for label, count in sorted(counts.labels.items()))
    facts.append(("rows", f"{counts.rows:,}{f': {labels}' if labels else ''}"))
    words = {**_LEFT_OUT, **{name: ("row", how) for name, how in kind.wording.items()}}
    words["incomplete"] = kind.wording.get("group", ""), kind.wording.get("incomplete", "")
    left_out = [(getattr(counts, name), *words[name]) for name in _LEFT_OUT]
    lines = [f"{plural(count, what)} {how}".rstrip() for count, what, how in left_out if count]
    facts += [("" if k else "left out", line) for k, line in enumerate(lines)]
    facts += [("", message) for message in counts.messages]
    labelled = "label" in built.header
    sentences = f"{len(built.header) - labelled} sentences{' and a label' if labelled else ''}"
    facts += [
        ("made", built.made),
        ("written", f"{plural(built.examples, 'example')} of {sentences} each"),
        ("", f"{built.output}: {', '.join(built.header)}"),
    ]
    if built.overlap is not None:
        shared = f"{built.overlap:.1%} of the words of anchor and positive (mean F1)"
        facts.append(("overlap", shared))
    yield from (_aligned(*fact) for fact in [*facts, ("sha256", built.sha256)])
    names = ["premise", "hypothesis", "label"] if labelled else view_names(len(built.header))
    yield from example_lines(names, built.shown)


def _aligned(name: str, value: str) -> str:
    return f"{name:<12}{printable(value)}"


def example_lines(names: Sequence[str], examples: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first examples of a source, a line for each sentence."""
    for number, sentences in enumerate(examples, start=1):
        yield f"example {number}"
        for name, sentence in zip(names, sentences, strict=True):
            yield f"  {name}: {_shortened(sentence)}"


def _shortened(sentence: str, longest: int = 100) -> str:
    line = " ".join(printable(sentence).split())
    return line if len(line) <= longest else f"{line[:longest]}..."


_LEAK_HEADINGS = ("sentences", "seen", "pairs", "both seen", "together")


def leaks_table(leaks: Leaks) -> Table:
    """A row for each task, the meaning of the columns, and where the first overlaps stand."""
    rows = []
    for overlap in leaks.tasks:
        pairs = (overlap.pairs, overlap.pairs_seen, overlap.pairs_together)
        cells = [f"{n:,}" for n in (overlap.sentences, overlap.seen)]
        cells += [f"{n:,}" if overlap.pairs else ABSENT for n in pairs]
        rows.append(tuple(map(Cell, (overlap.heading, *cells))))
    notes = [
        f"{leaks.source}: {leaks.examples:,} examples, {leaks.columns}.",
        "Sentences of each task that the training text has, by letters and digits in lower case, "
        "repeated ones counted each time; pairs of which it has both sentences anywhere, and pairs "
        "that are in one example of it, in either order.",
        *(
            f"{it.heading}: {where}: {_shortened(sentence, 80)}"
            for it in leaks.tasks
            for where, sentence in it.first
        ),
    ]
    return Table(("task", *_LEAK_HEADINGS), tuple(rows), tuple(notes))


def mined_table(mined: Mined) -> Table:
    """Similarities to the anchor of positives and negatives, and what was left out."""
    rows = []
    named = [("positive", mined.positives), *zip(mined.header[2:], mined.hardest.T, strict=True)]
    for name, scores in named:
        quantiles = np.quantile(scores, (0, 0.25, 0.5, 0.75, 1))
        rows.append((Cell(name), *(Cell(f"{it:.2f}", it) for it in quantiles.tolist())))
    notes = [
        f"{plural(len(mined.examples), 'example')} of {plural(mined.pairs, 'pair')}; "
        f"{'cosines' if mined.similarity == 'cosine' else mined.similarity + ' similarities'} with "
        f"the anchor; {plural(mined.corpus, 'different sentence')} to take negatives from.",
        f"Left out: {plural(mined.without, 'pair')} without enough sentences below the margin.",
        f"Passed over: {mined.within_margin:.1f} sentences in the mean over pairs, nearer than "
        "the margin lets a negative be.",
    ]
    return Table(("", "lowest", "25%", "median", "75%", "highest"), tuple(rows), tuple(notes))
