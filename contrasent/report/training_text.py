"""Training text: the facts of a check or a built file, and its overlap with evaluation text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from contrasent.data.columns import view_names
from contrasent.progress import printable
from contrasent.report.table import ABSENT, Cell, Table

_ENCODER = "all-MiniLM-L6-v2"

if TYPE_CHECKING:
    from contrasent.data.build import Built, DataKind
    from contrasent.data.check import Report
    from contrasent.evaluation.leaks import Leaks
    from contrasent.search.mining import Mined


def survey_lines(report: Report) -> Iterator[str]:
    """The facts of a check, without its lengths and examples."""
    each = "" if report.views == 1 else " each"
    facts = [("file", report.source), ("columns", report.columns)]
    facts.append(("examples", f"{report.examples:,} of {plural(report.views, 'sentence')}{each}"))
    unused = plural(report.blank, "blank line")
    if report.classes is not None:
        of_class = ((name, n, n / max(report.examples, 1)) for name, n in report.classes.items())
        shares = ", ".join(f"{name} {n:,} ({share:.1%})" for name, n, share in of_class)
        facts.append(("classes", shares))
        unused = f"{plural(report.unlabelled, 'row')} without a label"
    skipped = f"{plural(report.skipped, 'row')} with an empty sentence"
    facts.append(("left out", f"{skipped}, {unused}"))
    if (length := report.documents) is not None:
        sizes = f"{length.minimum:,} to {length.maximum:,} sentences, {length.mean:.1f} in the mean"
        facts.append(("documents", f"{length.count:,} of {sizes}"))
    facts.append(("unreadable", plural(report.unreadable.count, "row")))
    facts += [("", message) for message in report.unreadable.first]
    share = f" ({report.repeated / report.examples:.1%})" if report.repeated else ""
    first, *others = _views(report)
    repeated = f"{plural(report.repeated, 'example')}{share} with an earlier one's {first}"
    facts.append(("repeated", repeated))
    for name, what, sign in (
        *([("identical", f"{first} and {others[0]} in", "identical")] if others else []),
        ("encoding", "U+FFFD in", "replaced"),
        ("", "control characters in", "control"),
        ("", "looks wrongly decoded, as Ã© for é, in", "mojibake"),
        ("HTML", "tags in", "tags"),
        ("", "entities, as &amp;, in", "entities"),
        ("no word", "in", "wordless"),
    ):
        finding = report.signs[sign]
        places = ", ".join(where.removeprefix(report.source) for where in finding.first)
        at = f", first at {places}" if places else ""
        facts.append((name, f"{what} {plural(finding.count, 'example')}{at}"))
    if report.cut is not None and report.examples:
        share = f"{report.cut / (report.examples * report.views):.1%}"
        cut = plural(report.cut, "sentence")
        facts.append(("cut", f"{cut} ({share}) longer than {report.max_tokens} tokens"))
    facts.append(("sha256", f"{report.sha256} (content and columns)"))
    return (_aligned(*fact) for fact in facts)


def survey_examples(report: Report) -> Iterator[str]:
    """The first examples that a check read."""
    return _examples(_views(report), report.shown)


def length_table(report: Report) -> Table:
    """Lengths of sentences, in words and, if they were counted, in tokens."""
    rows = []
    for unit, found in (("words", report.words), ("tokens", report.tokens or ())):
        for view, it in zip(_views(report), found, strict=False):
            numbers = (it.minimum, f"{it.median:g}", f"{it.mean:.1f}", it.p95, it.maximum)
            rows.append(tuple(Cell(str(cell)) for cell in (f"{view}, {unit}", *numbers)))
    return Table(("length", "min", "median", "mean", "p95", "max"), tuple(rows))


def _views(report: Report) -> list[str]:
    return view_names(report.views) if report.classes is None else ["premise", "hypothesis"]


def verdict_lines(
    report: Report, encoder: str | None = None, columns: str | None = None
) -> Iterator[str]:
    """The verdict on a source that can be used, and the command that trains on it.

    ``columns`` is the choice of the user, to be repeated.
    """
    cautions = list(report.cautions())
    yield ""
    yield "verdict: usable, but look at" if cautions else "verdict: ready"
    yield from (f"  {printable(caution)}" for caution in cautions)
    yield f"train with: {train_command(report, encoder, columns)}"


_FEWEST = 500
"""Different texts of which a part can be held out, to choose by."""


def train_command(report: Report, encoder: str | None, columns: str | None) -> str:
    """The command that trains on a source that was checked."""
    words, option = ["contrasent", "train"], "--columns"
    if report.classes is not None:
        words += ["nli-softmax", "--encoder", encoder or "bert-base-uncased"]
    elif report.views > 1:
        words += ["sup-adapt", "--encoder", encoder or _ENCODER]
    elif report.examples - report.repeated >= _FEWEST:
        words, option = ["contrasent", "adapt", encoder or _ENCODER], "--data.columns"
    else:
        words += ["unsup-simcse", "--encoder", encoder or _ENCODER]
    words += ["--data", report.source, *([] if columns is None else [option, columns])]
    usual = 128 if "sup-adapt" in words else 32
    if report.tokens_needed > usual:
        words += ["--data.max_tokens", str(report.tokens_needed)]
    return printable(shlex.join(words))


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
    yield from _examples(names, built.shown)


def plural(count: int, what: str) -> str:
    """A number of things."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _aligned(name: str, value: str) -> str:
    return f"{name:<12}{printable(value)}"


def _examples(names: Sequence[str], examples: Sequence[Sequence[str]]) -> Iterator[str]:
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
