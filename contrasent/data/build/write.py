"""Training files: written without repeats, whole or sampled, the same every time."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import IO, TYPE_CHECKING, TextIO, cast

from contrasent import __version__
from contrasent.data.build.base import Counts, DataKind, Example, Reading, draw_key
from contrasent.data.readers import stop
from contrasent.errors import ConfigError, DataError
from contrasent.files import refuse_existing, sha256_of, writing

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_WORD = re.compile(r"\w+")


def f1(first: str, second: str) -> float | None:
    """``2 |A & B| / (|A| + |B|)`` of the bags of words A and B; None if both are empty.

    The lexical overlap of SimCSE, section 4. The paper does not say what a word is; here it is a
    run of letters and digits, in lower case.
    """
    words, others = (Counter(_WORD.findall(text.lower())) for text in (first, second))
    total = words.total() + others.total()
    return 2 * (words & others).total() / total if total else None


_KINDS = (".csv", ".tsv", ".jsonl")
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Source:
    """A file or data set that was read, its ``labels`` as they were understood."""

    name: str
    columns: str
    labels: str | None
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """What was written, and from what.

    Attributes:
        sha256: of the bytes of ``output``.
        overlap: mean of :func:`f1` of anchor and positive, over pairs with words; None without.
        sample: how many examples were asked for; None for all.
        seed: of the sample, and of what else is drawn.
    """

    made: str
    output: str
    sha256: str
    header: tuple[str, ...]
    examples: int
    sources: tuple[Source, ...]
    counts: Counts
    overlap: float | None
    sample: int | None
    seed: int
    shown: tuple[Example, ...]
    version: str = __version__


def require_output(output: Path, sources: Sequence[str], overwrite: bool) -> None:
    """Make sure that a file may be written."""
    if Path(output.name.lower().removesuffix(".gz")).suffix not in _KINDS:
        raise ConfigError(
            f"{output}: unknown kind of file to write; end its name in {', '.join(_KINDS)}, "
            "each also with .gz"
        )
    if output.is_dir():
        raise ConfigError(f"{output} is a folder; name a file in it")
    if any(
        output.exists() and Path(source).exists() and output.samefile(source) for source in sources
    ):
        raise ConfigError(f"{output} is one of the sources; name another file to write")
    if not overwrite:
        refuse_existing(output, "name another file, or replace it with --overwrite")


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

    The sources are read twice: to know which examples repeat and which the sample holds, in memory
    of 8 bytes per example, and to write them. ``sample`` draws so many, all equally likely;
    ``skip_unreadable`` leaves rows out that cannot be read; ``progress`` is
    told now and then how many further rows were read.

    Raises:
        DataError: a row cannot be read, no example is left, or a source changed meanwhile.
        ConfigError: there are fewer examples than ``sample``.
    """
    counts = Counts()
    reading = Reading(counts, counts.skip if skip_unreadable else stop, progress)
    keys = array("Q", (draw_key(seed, *example) for example in kind.examples(reading)))
    written = _chosen(keys, sample, counts)
    overlaps = array("d")
    shown: list[Example] = []
    with writing(output) as partial:
        with example_writer(partial, output.name, kind.header) as write:
            for example in _kept(kind, written):
                write(example)
                if (overlap := f1(*example[:2])) is not None:
                    overlaps.append(overlap)
                if len(shown) < _SHOWN:
                    shown.append(example)
        sha256 = sha256_of(partial)
    return Built(
        made=kind.made,
        output=str(output),
        sha256=sha256,
        header=kind.header,
        examples=int(written.sum()),
        sources=tuple(
            Source(source.source, source.described, labels, source.sha256)
            for source, labels in zip_longest(kind.sources, kind.labels)
        ),
        counts=counts,
        overlap=sum(overlaps) / len(overlaps) if overlaps else None,
        sample=sample,
        seed=seed,
        shown=tuple(shown),
    )


def _chosen(keys: array[int], sample: int | None, counts: Counts) -> NDArray[np.bool_]:
    """For each example whether it is written: the first of its like, and in the sample."""
    import numpy as np

    # Sorted by their keys, which are random: so the first ones are a sample.
    unique, first = np.unique(np.frombuffer(keys, dtype=np.uint64), return_index=True)
    counts.repeated += len(keys) - len(unique)
    if not len(unique):
        raise DataError(_nothing(counts))
    if sample is not None:
        if sample > len(unique):
            raise ConfigError(
                f"--sample {sample} is more than the {len(unique)} different examples there are; "
                "ask for fewer, or give more sources"
            )
        counts.unsampled = len(unique) - sample
        first = first[:sample]
    written = np.zeros(len(keys), dtype=np.bool_)
    written[first] = True
    return written


def _nothing(counts: Counts) -> str:
    labels = ", ".join(f"{count} {label}" for label, count in sorted(counts.labels.items()))
    with_labels = f" ({labels})" if labels else ""
    first = f"; the first that cannot be read: {counts.messages[0]}" if counts.messages else ""
    return (
        f"no example is left of {counts.rows} row{'s' if counts.rows != 1 else ''}{with_labels}: "
        f"{counts.unlabelled} without label or score, {counts.empty} with an empty sentence, "
        f"{counts.other} of another kind, {counts.identical} with two equal sentences, "
        f"{counts.incomplete} incomplete groups, {counts.unreadable} that cannot be read; "
        f"look at what was asked for and at the columns{first}"
    )


def _kept(kind: DataKind, written: NDArray[np.bool_]) -> Iterator[Example]:
    again = Reading(Counts(), lambda _: None)
    count = 0
    for example in kind.examples(again):
        if count < len(written) and written[count]:
            yield example
        count += 1
    if count != len(written):
        names = ", ".join(source.source for source in kind.sources)
        raise DataError(f"{names} changed while being read; run the command again")


@contextmanager
def example_writer(
    path: Path, name: str, header: Sequence[str]
) -> Iterator[Callable[[Example], object]]:
    """A function that writes an example to ``path``, in the form that ``name`` ends in."""
    kind = Path(name.lower().removesuffix(".gz")).suffix
    with _text(path, zipped=name.lower().endswith(".gz")) as file:
        if kind == ".jsonl":
            yield lambda example: file.write(
                json.dumps(dict(zip(header, example, strict=True)), ensure_ascii=False) + "\n"
            )
        elif kind == ".csv":
            table = csv.writer(file, lineterminator="\n")
            table.writerow(header)
            yield table.writerow
        else:
            file.write("\t".join(header) + "\n")
            yield lambda example: file.write("\t".join(example) + "\n")


@contextmanager
def _text(path: Path, *, zipped: bool) -> Iterator[TextIO]:
    if not zipped:
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file
        return
    # Neither name nor time go into the file, so that equal content is equal bytes.
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        io.TextIOWrapper(cast("IO[bytes]", packed), encoding="utf-8", newline="") as text,
    ):
        yield text
