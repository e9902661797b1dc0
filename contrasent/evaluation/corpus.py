"""What is searched for nearest neighbours, and what is looked for in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from contrasent.data.examples import open_examples
from contrasent.errors import ConfigError, DataError
from contrasent.evaluation.sts_data import load
from contrasent.evaluation.task_names import STS_TASKS, TaskName, task_names


@dataclass(frozen=True, slots=True)
class Corpus:
    """N distinct sentences.

    Attributes:
        source: the file, data set or task.
        columns: how its columns were understood.
        sentences: how many it has, repeated ones counted each time.
        texts: in the order in which they first stand there.
        rows: ``(N,)``, where that is, counted from 0 over all sentences.
        sha256: hash of content and columns.
    """

    source: str
    columns: str
    sentences: int
    texts: tuple[str, ...]
    rows: NDArray[np.int64]
    sha256: str


@dataclass(frozen=True, slots=True)
class Queries:
    """One or more sentences to look for, and where they come from."""

    texts: tuple[str, ...]
    asked: str


PUBLISHED = {
    "simcse-table8": Queries(
        (
            "A man riding a small boat in a harbor.",
            "A dog runs on the green grass near a wooden fence.",
        ),
        "Gao et al. 2021 (SimCSE), Table 8",
    ),
    "diffcse-table9": Queries(
        (
            "you can do it, too.",
            "this is not a problem.",
            "i think that is not a bad idea.",
        ),
        "Chuang et al. 2022 (DiffCSE), Table 9",
    ),
}
"""The queries of the papers' tables. SimCSE looks in the captions of Flickr30k, DiffCSE in the
sentences of STS-B's test split."""

_SEED = 0


def read_corpus(
    source: str, columns: Sequence[str] | None = None, data_dir: str | Path | None = None
) -> Corpus:
    """Read every sentence of a source, all sentences of a row one after the other.

    It is an STS task such as ``stsb`` or ``stsb-dev``, or what
    :func:`contrasent.data.examples.open_examples` takes.

    Raises:
        DataError: the source is missing or damaged, or has no sentence.
        ConfigError: ``columns`` does not fit it.
    """
    name = _task(source)
    examples: Iterable[Sequence[str]]
    if name:
        task = load(name, data_dir)
        examples = zip(*task.sides, strict=True)
        understood, sha256 = "both sentences of every pair", task.sha256
    else:
        examples = opened = open_examples(source, columns)
        understood, sha256 = opened.columns, opened.sha256
    places: dict[str, int] = {}
    count = 0
    for sentence in chain.from_iterable(examples):
        places.setdefault(sentence, count)
        count += 1
    if not count:
        raise DataError(f"{source} holds no sentence; a corpus needs at least one")
    rows = np.fromiter(places.values(), np.int64, len(places))
    return Corpus(source, understood, count, tuple(places), rows, sha256)


def read_queries(
    source: str | None, given: Sequence[str], corpus: Corpus, sample: int = 3
) -> Queries:
    """What to look for: sentences that were given, and those of a source.

    The source is a name in :data:`PUBLISHED`, or a file or data set with a sentence in every row.
    Without both, ``sample`` sentences of the corpus are drawn, as for SimCSE's Table 8.

    Raises:
        DataError: a sentence is empty, or the source is missing, damaged or without a sentence.
        ConfigError: a row of the source has several sentences, or ``sample`` is below 1.
    """
    if source is None and not given:
        if sample < 1:
            raise ConfigError(f"sample must be 1 or more, not {sample}")
        order = np.random.default_rng(_SEED).permutation(len(corpus.texts))[:sample]
        drawn = tuple(corpus.texts[place] for place in order)
        return Queries(drawn, f"{len(drawn)} of the corpus, drawn with seed {_SEED}")
    empty = next((text for text in given if not text.strip()), None)
    if empty is not None:
        raise DataError(f"the query {empty!r} is empty; there is nothing to look for")
    if source is None:
        return Queries(tuple(given), f"{len(given)} given")
    read = _read_queries(source)
    asked = f"{read.asked}, {len(given)} given" if given else read.asked
    return Queries((*read.texts, *given), asked)


def _read_queries(source: str) -> Queries:
    if source in PUBLISHED:
        return PUBLISHED[source]
    try:
        examples = open_examples(source)
    except DataError as error:
        if Path(source).exists():
            raise
        raise DataError(f"{error}; or name {' or '.join(PUBLISHED)}") from error
    if examples.views > 1:
        raise ConfigError(
            f"{source} has {examples.views} sentences in a row ({examples.columns}); a file of "
            "queries has one in each"
        )
    texts = tuple(example[0] for example in examples)
    if not texts:
        raise DataError(f"{source} holds no query; it needs at least one")
    return Queries(texts, source)


def _task(source: str) -> TaskName | None:
    """The STS task of that name; None where it is a file or data set."""
    names: list[TaskName] = []
    if not Path(source).exists():
        with suppress(ConfigError):
            names = [name for name in task_names([source]) if name.name in STS_TASKS]
    if len(names) > 1:
        raise ConfigError(f"{source!r} is {len(names)} tasks; name one of them as the corpus")
    return names[0] if names else None
