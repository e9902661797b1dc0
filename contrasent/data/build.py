"""Training files made from labelled pairs, caption groups, duplicates and paraphrases."""

import csv
import hashlib
import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, compress, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from contrasent import __version__
from contrasent.data.check import aligned, example_lines
from contrasent.data.columns import view_names
from contrasent.data.examples import LABELS, NO_LABEL, Examples, NliLabels
from contrasent.data.readers import Trouble, stop
from contrasent.data.rows import SourceRows, as_text
from contrasent.errors import ConfigError, DataError
from contrasent.files import refuse_existing_file, require_place, sha256_of, writing

Example = tuple[str, ...]
ENTAILMENT, NEUTRAL, CONTRADICTION = LABELS
PAIR = ("sent0", "sent1")
_SHOWN = 3
_TOLD_EVERY = 1000
_KINDS = (".csv", ".tsv", ".jsonl")
_LEFT_OUT = {
    "unlabelled": "rows without a label",
    "empty": "rows with an empty sentence",
    "other": "rows with another label",
    "identical": "rows with the same sentence twice",
    "contested": "hard negatives that the premise is also said to entail",
    "incomplete": "premises or images without all that an example needs",
    "repeated": "repeats",
    "unsampled": "examples outside the sample",
    "unreadable": "rows that cannot be read",
}


@dataclass(slots=True)
class Counts:
    """How many rows were read, and how many of what were left out."""

    rows: int = 0
    labels: dict[str, int] = field(default_factory=dict)  # rows with each label
    left_out: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_LEFT_OUT, 0))
    messages: list[str] = field(default_factory=list)  # of the first rows that were skipped

    def skip(self, error: DataError) -> None:
        """Count a row that cannot be read."""
        self.left_out["unreadable"] += 1
        self.messages += [str(error)] * (len(self.messages) < _SHOWN)


@dataclass(kw_only=True)
class DataKind:
    """Examples of one kind, made from the rows of its sources."""

    sources: Sequence[SourceRows]
    contents: str  # the kind of the examples, in words
    # of the cells of a row of a source: an example, or the key of a group and a member of it; of a
    # row that is not used, the name of its count
    parse: Callable[[int, Sequence[Any], str, Counts], Any]
    # makes examples of all members of a group, which need not stand together
    group: Callable[[Any, list[Any], Counts], Iterator[Example]] | None = None
    header: tuple[str, ...] = PAIR  # names of the V sentences: anchor, positive, hard negatives
    labels: Sequence[str] = ()  # a line for each source on the meaning of its labels

    def examples(
        self, counts: Counts, trouble: Trouble, progress: Callable[[int], None] = lambda _: None
    ) -> Iterator[Example]:
        """Examples in the order of the sources, the same in every pass."""
        groups: dict[Any, list[Any]] = {}
        for number, source in enumerate(self.sources):
            for where, cells in source.rows(trouble):
                counts.rows += 1
                if not counts.rows % _TOLD_EVERY:
                    progress(_TOLD_EVERY)
                try:
                    value = self.parse(number, cells, where, counts)
                except DataError as error:
                    trouble(error)
                    continue
                if isinstance(value, str):
                    counts.left_out[value] += 1
                elif self.group is None:
                    yield value
                else:
                    key, member = value
                    groups.setdefault(key, []).append(member)
        if self.group is not None:
            for key, members in groups.items():
                yield from self.group(key, members, counts)


def _pair(first: object, second: object, where: str) -> Example | str:
    """Two sentences that are there and differ; of others the name of their count."""
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


def nli(
    sources: Sequence[SourceRows],
    make: str = "triplets",
    *,
    per: str = "entailment",
    contradictions: int = 1,
    labels: Sequence[str] | None = None,
    seed: int = 0,
) -> DataKind:
    """SNLI, MultiNLI, ANLI and their like (SimCSE, section 4 and tables 4 and 7).

    ``make`` is ``triplets`` of premise, entailment and contradiction; ``triplets+neutral``, with a
    neutral hypothesis as second hard negative; pairs of the premise with hypotheses of one label,
    or of ``all``; or ``labelled`` pairs. Triplets are made ``per`` entailment, as in the paper's
    text, or premise; of so many ``contradictions``, one in the paper (footnote 7). ``labels`` names
    those that are numbers, from 0.
    """
    negatives = _NEGATIVES.get(make, ())
    if not negatives and (per, contradictions) != ("entailment", 1):
        raise ConfigError(f"--per and --contradictions are for triplets, not for --make {make}")
    known = [NliLabels(it.source, it.label_names, labels) for it in sources]
    wanted = (ENTAILMENT, *negatives) if negatives else (make,) if make in LABELS else LABELS
    header: Example = (*PAIR, "label") if make == "labelled" else PAIR
    contents = f"pairs of premise and hypothesis, labels: {', '.join(wanted)}"
    if negatives:
        header = sentence_header(1 + contradictions + len(negatives))
        contents = f"premise, {', '.join(wanted)}; one of these for each {per}"

    def parse(source: int, cells: Sequence[Any], where: str, counts: Counts) -> Any:
        first, second, mark = cells
        label = known[source].understood(mark, where)
        if label is None:
            return "unlabelled"
        counts.labels[label] = counts.labels.get(label, 0) + 1
        pair = _pair(first, second, where) if label in wanted else "other"
        if isinstance(pair, str):
            return pair
        premise, hypothesis = pair
        return (premise, (label, hypothesis)) if negatives else (*pair, label)[: len(header)]

    def shuffled(label: str, premise: str, hypotheses: list[str]) -> list[str]:
        return sorted(hypotheses, key=lambda it: draw_key(seed, label, premise, it))

    def triplets(premise: str, members: list[tuple[str, str]], counts: Counts) -> Iterator[Example]:
        unique = dict.fromkeys(members)
        counts.left_out["repeated"] += len(members) - len(unique)
        entailed = [hypothesis for label, hypothesis in unique if label == ENTAILMENT]
        drawn = []
        for negative in negatives:
            matching = [hypothesis for label, hypothesis in unique if label == negative]
            fit = [hypothesis for hypothesis in matching if hypothesis not in entailed]
            counts.left_out["contested"] += len(matching) - len(fit)
            drawn.append(shuffled(negative, premise, fit))
        if not (entailed and all(drawn) and len(drawn[0]) >= contradictions):
            counts.left_out["incomplete"] += 1
            return
        if per == "premise":
            entailed = shuffled(ENTAILMENT, premise, entailed)[:1]
        first, *others = drawn
        for number, positive in enumerate(entailed):
            start = number * contradictions
            own = (first[(start + k) % len(first)] for k in range(contradictions))
            yield (premise, positive, *own, *(these[number % len(these)] for these in others))

    return DataKind(
        sources=sources,
        contents=contents,
        parse=parse,
        group=triplets if negatives else None,
        header=header,
        labels=[it.described for it in known],
    )


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
        counts.left_out["repeated"] += len(members) - len(unique)
        counts.left_out["incomplete"] += len(unique) < 2
        return combinations(unique, 2)

    what = "pairs of captions of one image"
    return DataKind(sources=sources, contents=what, parse=parse, group=any_two)


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

    labels = ["1 = duplicate, 0 = not"] * len(sources)
    return DataKind(sources=sources, contents="pairs of duplicates", parse=parse, labels=labels)


def paraphrases(sources: Sequence[SourceRows]) -> DataKind:
    """Sentences with their paraphrases (ParaNMT)."""
    how: Any = {"parse": lambda _, it, at, __: _pair(it[0], it[1], at)}
    return DataKind(sources=sources, contents="pairs of sentence and paraphrase", **how)


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

    def lines(self) -> Iterator[str]:
        """What was read, left out and written, and the first examples."""
        for source in self.sources:
            yield aligned("source", source["name"] or "")
            yield aligned("", source["columns"] or "")
            if source["labels"] is not None:
                yield aligned("", f"labels: {source['labels']}")
        labels = (f"{count:,} {label}" for label, count in sorted(self.counts.labels.items()))
        yield aligned("rows", ": ".join(filter(None, (f"{self.counts.rows:,}", ", ".join(labels)))))
        for name, count in self.counts.left_out.items():
            if count:
                yield aligned("left out", f"{count:,} {_LEFT_OUT[name]}")
        yield from (aligned("", message) for message in self.counts.messages)
        yield aligned("made", self.made)
        yield aligned("written", f"{self.examples:,} of {', '.join(self.header)}: {self.output}")
        if self.overlap is not None:
            shared = f"{self.overlap:.1%} of the words of anchor and positive (mean F1)"
            yield aligned("overlap", shared)
        yield aligned("sha256", self.sha256)
        labelled = "label" in self.header
        names = ["premise", "hypothesis", "label"] if labelled else view_names(len(self.header))
        yield from example_lines(names, self.shown)


def require_output(
    output: Path, overwrite: bool, views: int = 2, sources: Sequence[str] = ()
) -> None:
    """Make sure that a file of so many sentences a row may be written."""
    problem, kinds = "", _KINDS if views > 1 else (".txt", *_KINDS)
    if output.suffix.lower() not in kinds:
        problem = f"is an unknown kind of file to write; end its name in {', '.join(kinds)}"
    require_place(output, problem, sources)
    refuse_existing_file(output, overwrite=overwrite)


def build(
    kind: DataKind,
    output: Path,
    *,
    sample: int | None = None,
    seed: int = 0,
    skip_unreadable: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> Built:
    """Write the examples of a kind, in the order of their sources, each once.

    The sources are read twice: to know which examples repeat and which the ``sample`` holds, and to
    write them. DataError if a row cannot be read, or no example is left.
    """
    counts = Counts()
    read = kind.examples(counts, counts.skip if skip_unreadable else stop, progress)
    keys = array("Q", (draw_key(seed, *example) for example in read))
    # Sorted by their keys, which are random: so the first ones are a sample.
    unique, places = np.unique(np.frombuffer(keys, dtype=np.uint64), return_index=True)
    counts.left_out["repeated"] += len(keys) - len(unique)
    if not len(unique):
        kinds = {**counts.labels, **counts.left_out}
        kept = ", ".join(f"{count} {name}" for name, count in kinds.items() if count)
        raise DataError(
            f"no example is left of {counts.rows} row{'s' * (counts.rows != 1)} ({kept}); look at "
            f"what was asked for and at the columns{'; '.join(['', *counts.messages[:1]])}"
        )
    counts.left_out["unsampled"] = 0 if sample is None else max(0, len(unique) - sample)
    written = np.zeros(len(keys), dtype=np.bool_)
    written[places[:sample]] = True

    overlaps, examples = array("d"), list[Example]()

    def rows() -> Iterator[Example]:
        for example in compress(kind.examples(Counts(), lambda _: None), written):
            examples.extend([example] * (len(examples) < _SHOWN))
            if (overlap := f1(*example[:2])) is not None:
                overlaps.append(overlap)
            yield example

    write_rows(output, kind.header, rows())
    return Built(
        made=kind.contents,
        output=str(output),
        sha256=sha256_of(output),
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


def sentence_header(views: int) -> Example:
    """Names of the columns of so many sentences, as SimCSE's files have them."""
    hard = ["hard_neg"] if views == 3 else [f"hard_neg_{k}" for k in range(1, views - 1)]
    return ("text",) if views == 1 else (*PAIR, *hard)


def write_rows(output: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write rows to a file of its name's kind, whole; where no quotes are, a tab is a space."""
    kind = output.suffix.lower()
    with writing(output) as part, part.open("w", encoding="utf-8", newline="") as file:
        if kind == ".csv":
            csv.writer(file, lineterminator="\n").writerows(chain([header], rows))
        elif kind == ".jsonl":
            named = (dict(zip(header, row, strict=True)) for row in rows)
            file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in named)
        else:
            for row in rows if kind == ".txt" else chain([header], rows):
                file.write("\t".join(re.sub(r"[\t\r\n]+", " ", str(it)) for it in row) + "\n")


def write_examples(examples: Examples, output: Path, documents: bool) -> None:
    """Write examples as they are read; in a ``.txt``, a blank line ends each of ``documents``."""

    def rows() -> Iterator[Example]:
        blank, ends = 0, documents and output.suffix.lower() == ".txt"
        for example in examples:
            yield from [("",)] * (ends and examples.rows.blank > blank)
            blank = examples.rows.blank
            yield example

    write_rows(output, sentence_header(examples.views), rows())
