"""Training files made from labelled pairs, caption groups, duplicates and paraphrases."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, combinations, compress, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from contrasent import __version__
from contrasent.data import columns as specs
from contrasent.data.examples import (
    CONTRADICTION,
    ENTAILMENT,
    LABELS,
    NEUTRAL,
    NO_LABEL,
    Examples,
    NliLabels,
)
from contrasent.data.readers import Trouble, stop
from contrasent.data.rows import SourceRows, as_text, open_rows_of, score_of
from contrasent.errors import ConfigError, DataError, pick
from contrasent.files import refuse_existing_file, sha256_of, writing

Example = tuple[str, ...]
PAIR = ("sent0", "sent1")
TRIPLET = (*PAIR, "hard_neg")
_SHOWN = 3
_TOLD_EVERY = 1000
_KINDS = (".csv", ".tsv", ".jsonl")
_LEFT_OUT = ("unlabelled", "empty", "other", "identical", "incomplete", "unreadable")


@dataclass(slots=True)
class Counts:
    """How many rows were read, and how many of what were left out."""

    rows: int = 0
    labels: dict[str, int] = field(default_factory=dict)  # rows with each label
    unreadable: int = 0  # rows that were skipped, with the messages of the first in ``messages``
    messages: list[str] = field(default_factory=list)
    unlabelled: int = 0
    empty: int = 0
    other: int = 0  # rows that are not of the kind that was asked for
    identical: int = 0  # pairs of a sentence with itself
    contested: int = 0  # hypotheses that the same premise is said to entail, too
    incomplete: int = 0  # groups that lack what an example needs
    repeated: int = 0  # what was there already, letter by letter
    unsampled: int = 0

    def skip(self, error: DataError) -> None:
        """Count a row that cannot be read."""
        self.unreadable += 1
        self.messages += [str(error)] * (len(self.messages) < _SHOWN)


@dataclass(kw_only=True)
class DataKind:
    """Examples of one kind, made from the rows of its sources."""

    sources: Sequence[SourceRows]
    contents: str  # the kind of the examples, in words
    # of the cells of a row of a source: an example, or the key of a group and a member of it; of a
    # row that is not used, the field of `Counts` that counts it
    parse: Callable[[int, Sequence[Any], str, Counts], Any]
    # makes examples of all members of a group, which need not stand together
    group: Callable[[Any, list[Any], Counts], Iterator[Example]] | None = None
    header: tuple[str, ...] = PAIR  # names of the V sentences: anchor, positive, hard negatives
    labels: Sequence[str] = ()  # a line for each source on the meaning of its labels
    # the name of a group, and words for the fields of :class:`Counts`
    wording: Mapping[str, str] = field(default_factory=dict)
    _groups: dict[Any, list[Any]] | None = None

    def examples(
        self, counts: Counts, trouble: Trouble, progress: Callable[[int], None] | None = None
    ) -> Iterator[Example]:
        """Examples in the order of the sources, the same in every pass."""
        rows, group = self._rows(counts, trouble, progress), self.group
        if group is None:
            return rows
        if self._groups is None:
            self._groups = {}
            for key, member in rows:
                self._groups.setdefault(key, []).append(member)
        made = (group(key, members, counts) for key, members in self._groups.items())
        return chain.from_iterable(made)

    def _rows(
        self, counts: Counts, trouble: Trouble, progress: Callable[[int], None] | None
    ) -> Iterator[Any]:
        for number, source in enumerate(self.sources):
            for where, cells in source.rows(trouble):
                counts.rows += 1
                if progress is not None and not counts.rows % _TOLD_EVERY:
                    progress(_TOLD_EVERY)
                try:
                    value = self.parse(number, cells, where, counts)
                except DataError as error:
                    trouble(error)
                    continue
                if isinstance(value, str):
                    setattr(counts, value, getattr(counts, value) + 1)
                else:
                    yield value


def _pair(first: object, second: object, where: str) -> Example | str:
    """Two sentences that are there and differ; of others the field of `Counts`."""
    a, b = as_text(first, where), as_text(second, where)
    if not (a and b):
        return "empty"
    return "identical" if a == b else (a, b)


def draw_key(seed: int, *sentences: str) -> int:
    """64 bits that follow from seed and sentences alone; the lowest are a random sample's."""
    text = "\x1f".join(sentences).encode()
    digest = hashlib.blake2b(text, digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest, "little")


_NEGATIVES = {"triplets": (CONTRADICTION,), "triplets+neutral": (CONTRADICTION, NEUTRAL)}
_PAIRS = {**{label: (label,) for label in LABELS}, "all": LABELS, "labelled": LABELS}


def nli(
    sources: Sequence[SourceRows],
    make: str = "triplets",
    *,
    per: str = "entailment",
    contradictions: int = 1,
    order: Sequence[str] | None = None,
    seed: int = 0,
) -> DataKind:
    """SNLI, MultiNLI, ANLI and their like (SimCSE, section 4 and tables 4 and 7).

    ``make`` is ``triplets`` of premise, entailment and contradiction; ``triplets+neutral``, with a
    neutral hypothesis as second hard negative; pairs of the premise with hypotheses of one label,
    or of ``all``; or ``labelled`` pairs. There is a triplet ``per`` entailment, as the paper's text
    has it, among which the contradictions are dealt out, or ``per`` premise. Each has so many
    ``contradictions``: one in the paper, which found no difference with more (footnote 7).
    ``order`` names labels that are numbers, from 0.
    """
    pick("value of --make", make, (*_NEGATIVES, *_PAIRS))
    pick("value of --per", per, ("entailment", "premise"))
    negatives, labelled = _NEGATIVES.get(make, ()), make == "labelled"
    for option, given in (("--per", per != "entailment"), ("--contradictions", contradictions > 1)):
        if given and not negatives:
            raise ConfigError(f"{option} is for triplets, not for --make {make}; leave it out")
    labels = [NliLabels(it.source, it.label_names, order) for it in sources]
    wanted = (ENTAILMENT, *negatives) if negatives else _PAIRS[make]

    def parse(source: int, cells: Sequence[Any], where: str, counts: Counts) -> Any:
        first, second, mark = cells
        label = labels[source].understood(mark, where)
        if label is None:
            return "unlabelled"
        counts.labels[label] = counts.labels.get(label, 0) + 1
        found = _pair(first, second, where) if label in wanted else "other"
        if isinstance(found, str):
            return found
        premise, hypothesis = found
        if negatives:
            return premise, (label, hypothesis)
        return (premise, hypothesis, *([label] if labelled else []))

    header: Example = (*PAIR, "label") if labelled else PAIR
    contents = f"pairs of premise and hypothesis, labels: {', '.join(wanted)}"
    if negatives:
        count = contradictions + len(negatives) - 1
        header = TRIPLET if count == 1 else (*PAIR, *(f"hard_neg_{k + 1}" for k in range(count)))
        contents = f"premise, {', '.join(wanted)}; one of these for each {per}"
    fewer = f", or with fewer than {contradictions} contradictions" * (contradictions > 1)
    return DataKind(
        sources=sources,
        contents=contents,
        parse=parse,
        group=_triplets(negatives, per, contradictions, seed) if negatives else None,
        header=header,
        labels=[it.described for it in labels],
        wording={
            "unlabelled": "without a gold label",
            "other": "with another label",
            "group": "premise",
            "incomplete": f"without each of {', '.join((ENTAILMENT, *negatives))}{fewer}",
        },
    )


def _triplets(
    negatives: Sequence[str], per: str, contradictions: int, seed: int
) -> Callable[[str, list[tuple[str, str]], Counts], Iterator[Example]]:
    """Make triplets of a premise, from its hypotheses with their labels."""

    def triplets(premise: str, members: list[tuple[str, str]], counts: Counts) -> Iterator[Example]:
        def shuffled(label: str, hypotheses: list[str]) -> list[str]:
            return sorted(hypotheses, key=lambda it: draw_key(seed, label, premise, it))

        unique = dict.fromkeys(members)
        counts.repeated += len(members) - len(unique)
        entailed = [hypothesis for label, hypothesis in unique if label == ENTAILMENT]
        drawn = []
        for wanted in negatives:
            matching = [hypothesis for label, hypothesis in unique if label == wanted]
            fit = [hypothesis for hypothesis in matching if hypothesis not in entailed]
            counts.contested += len(matching) - len(fit)
            drawn.append(shuffled(wanted, fit))
        if not (entailed and all(drawn) and len(drawn[0]) >= contradictions):
            counts.incomplete += 1
            return
        if per == "premise":
            entailed = shuffled(ENTAILMENT, entailed)[:1]
        first, *others = drawn
        for number, positive in enumerate(entailed):
            start = number * contradictions
            own = (first[(start + k) % len(first)] for k in range(contradictions))
            rest = (these[number % len(these)] for these in others)
            yield (premise, positive, *own, *rest)

    return triplets


def captions(sources: Sequence[SourceRows]) -> DataKind:
    """Any two captions of an image (SimCSE, section 4), of which Flickr's files add ``#k``."""

    def parse(source: int, cells: Sequence[Any], where: str, _: Counts) -> Any:
        image, caption = str("" if cells[0] is None else cells[0]).strip(), as_text(cells[1], where)
        if not (image and caption):
            return "empty"
        numbered = re.fullmatch(r"(.+)#\d+", image, re.DOTALL)
        return (source, numbered[1] if numbered else image), caption

    def any_two(_: object, members: list[str], counts: Counts) -> Iterator[Example]:
        unique = list(dict.fromkeys(members))
        counts.repeated += len(members) - len(unique)
        counts.incomplete += len(unique) < 2
        return combinations(unique, 2)

    return DataKind(
        sources=sources,
        contents="pairs of captions of one image",
        parse=parse,
        group=any_two,
        wording={"group": "image", "incomplete": "with fewer than two captions"},
    )


_YES_OR_NO = {"1": True, "true": True, "1.0": True, "0": False, "false": False, "0.0": False}


def duplicates(sources: Sequence[SourceRows]) -> DataKind:
    """Questions, or any two sentences, that are said to mean the same (Quora's, MRPC, PAWS)."""

    def parse(_: int, cells: Sequence[Any], where: str, counts: Counts) -> Any:
        first, second, mark = cells
        word = "" if mark is None else str(mark).strip().lower()
        if word in NO_LABEL:
            return "unlabelled"
        if word not in _YES_OR_NO:
            raise DataError(f"{where}: unknown label {mark!r}; known are 1, true, 0 and false")
        name = "duplicate" if _YES_OR_NO[word] else "not"
        counts.labels[name] = counts.labels.get(name, 0) + 1
        return _pair(first, second, where) if _YES_OR_NO[word] else "other"

    return DataKind(
        sources=sources,
        contents="pairs of duplicates",
        parse=parse,
        labels=["1 = duplicate, 0 = not"] * len(sources),
        wording={"other": "whose sentences are no duplicates"},
    )


def paraphrases(
    sources: Sequence[SourceRows], min_score: float | None = None, max_score: float | None = None
) -> DataKind:
    """Sentences with their paraphrases (ParaNMT), all or those of a range of scores."""
    low = float("-inf") if min_score is None else min_score
    high = float("inf") if max_score is None else max_score
    scored = not (min_score is None and max_score is None)
    without = [source.source for source in sources if scored and source.width < 3]
    if without:
        raise ConfigError(f"{without[0]} has no column of scores; name it with --columns")

    def parse(_: int, cells: Sequence[Any], where: str, __: Counts) -> Any:
        first, second, *score = cells
        if scored and (score[0] is None or not str(score[0]).strip()):
            return "unlabelled"
        if scored and not low <= score_of(score[0], where) <= high:
            return "other"
        return _pair(first, second, where)

    within = f" with scores from {low:g} to {high:g}" if scored else ""
    return DataKind(
        sources=sources,
        contents=f"pairs of sentence and paraphrase{within}",
        parse=parse,
        wording={"unlabelled": "without a score", "other": "with another score"},
    )


def f1(first: str, second: str) -> float | None:
    """``2 |A & B| / (|A| + |B|)`` of the bags of words A and B; None if both are empty.

    The lexical overlap of SimCSE, section 4; a word is a run of letters and digits in lower case.
    """
    words, others = (Counter(re.findall(r"\w+", text.lower())) for text in (first, second))
    total = words.total() + others.total()
    return 2 * (words & others).total() / total if total else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """A file that was written, and its sources."""

    made: str
    output: str
    sha256: str  # of the bytes of ``output``
    header: tuple[str, ...]
    examples: int
    # name, columns and hash of each, and its labels as they were understood
    sources: tuple[dict[str, str | None], ...]
    counts: Counts
    # mean of `f1` of anchor and positive, over pairs with words; None without
    overlap: float | None
    sample: int | None  # how many examples were asked for; None for all
    seed: int  # of the sample, and of what else is drawn
    shown: tuple[Example, ...]
    version: str = __version__


def open_sources(
    kind: str, sources: Sequence[str], columns: Sequence[str] | None = None
) -> list[SourceRows]:
    """Open files or data sets of a kind, ``nli``, ``captions``, ``duplicates``, ``paraphrases``."""
    return [open_rows_of(it, getattr(specs, kind.upper()), columns) for it in sources]


def require_output(
    output: Path, sources: Sequence[str], overwrite: bool, kinds: Sequence[str] = _KINDS
) -> None:
    """Make sure that a file may be written."""
    problem = ""
    if output.suffix.lower() not in kinds:
        problem = f"unknown kind of file to write; end its name in {', '.join(kinds)}"
    elif any(Path(it).exists() and output.exists() and output.samefile(it) for it in sources):
        problem = "is one of the sources; name another file to write"
    if problem:
        raise ConfigError(f"{output}: {problem}")
    refuse_existing_file(output, overwrite=overwrite)


def build(
    kind: DataKind,
    output: Path,
    *,
    sample: int | None = None,
    seed: int = 0,
    skip_unreadable: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Built:
    """Write the examples of a kind, in the order of their sources, each once.

    The sources are read twice: to know which examples repeat and which the ``sample`` holds, in
    memory of 8 bytes per example, and to write them. ``progress`` is told how many further rows
    were read. DataError if a row cannot be read, or no example is left.
    """
    counts = Counts()
    read = kind.examples(counts, counts.skip if skip_unreadable else stop, progress)
    keys = array("Q", (draw_key(seed, *example) for example in read))
    # Sorted by their keys, which are random: so the first ones are a sample.
    unique, places = np.unique(np.frombuffer(keys, dtype=np.uint64), return_index=True)
    counts.repeated += len(keys) - len(unique)
    if not len(unique):
        found = {**counts.labels, **{it: getattr(counts, it) for it in _LEFT_OUT}}
        said = ", ".join(f"{count} {name}" for name, count in found.items() if count)
        raise DataError(
            f"no example is left of {counts.rows} row{'s' * (counts.rows != 1)} ({said}); look at "
            f"what was asked for and at the columns{'; '.join(['', *counts.messages[:1]])}"
        )
    counts.unsampled = 0 if sample is None else max(0, len(unique) - sample)
    written = np.zeros(len(keys), dtype=np.bool_)
    written[places[:sample]] = True

    overlaps = array("d")
    examples: list[Example] = []
    with writing(output) as part:
        with example_writer(part, output.suffix.lower(), kind.header) as write:
            again = kind.examples(Counts(), lambda _: None)
            for example in compress(again, written):
                write(example)
                examples += [example] * (len(examples) < _SHOWN)
                if (overlap := f1(*example[:2])) is not None:
                    overlaps.append(overlap)
        sha256 = sha256_of(part)
    return Built(
        made=kind.contents,
        output=str(output),
        sha256=sha256,
        header=kind.header,
        examples=int(written.sum()),
        sources=tuple(
            {"name": it.source, "columns": it.described, "labels": labels, "sha256": it.sha256}
            for it, labels in zip_longest(kind.sources, kind.labels)
        ),
        counts=counts,
        overlap=sum(overlaps) / len(overlaps) if overlaps else None,
        sample=sample,
        seed=seed,
        shown=tuple(examples),
    )


@contextmanager
def example_writer(
    path: Path, kind: str, header: Sequence[str]
) -> Iterator[Callable[[Example], object]]:
    """A function that writes an example to ``path``, in the form of ``.csv``, ``.tsv`` ..."""
    with path.open("w", encoding="utf-8", newline="") as file:
        if kind == ".jsonl":
            yield lambda example: file.write(
                json.dumps(dict(zip(header, example, strict=True)), ensure_ascii=False) + "\n"
            )
        elif kind == ".csv":
            table = csv.writer(file, lineterminator="\n")
            table.writerow(header)
            yield table.writerow
        else:
            file.write("" if kind == ".txt" else "\t".join(header) + "\n")
            yield lambda example: file.write("\t".join(example) + "\n")


def write_examples(examples: Examples, output: Path, documents: bool, overwrite: bool) -> None:
    """Write examples as they are read; in a ``.txt``, a blank line ends each of ``documents``."""
    kind = output.suffix.lower()
    kinds = _KINDS if examples.views > 1 else (".txt", *_KINDS)
    require_output(output, [examples.source], overwrite, kinds)
    header = ("text",) if examples.views == 1 else (*PAIR, "hard_neg")[: examples.views]
    with writing(output) as part, example_writer(part, kind, header) as write:
        blank = 0
        for example in examples:
            if documents and kind == ".txt" and examples.rows.blank > blank:
                write(("",))
            blank = examples.rows.blank
            write(example)
