"""Nearest neighbours of a query in a corpus (SimCSE, Table 8), and what is searched for them.

Shapes: Q queries, N sentences of a block of the corpus, D embedding width.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from contrasent.data.examples import open_examples
from contrasent.errors import ConfigError
from contrasent.evaluation.embed import EncoderUse, distinct
from contrasent.evaluation.sts_data import load
from contrasent.evaluation.task_names import ROWS, STS_TASKS, known_tasks, task_names
from contrasent.model import unit_rows
from contrasent.records import Saved, Usage, fields_of_kind, read_lines
from contrasent.search.mining import letters
from contrasent.search.nearest import nearest


@dataclass(frozen=True, slots=True)
class Corpus:
    """N distinct sentences of a file, data set or task."""

    source: str
    columns: str  # how its columns were understood
    sentences: int  # how many it has, repeated ones counted each time
    texts: tuple[str, ...]  # in the order in which they first stand there
    rows: NDArray[np.int64]  # ``(N,)``, where that is, counted from 0 over all sentences
    sha256: str


@dataclass(frozen=True, slots=True)
class Queries:
    """One or more sentences to look for, and where they come from."""

    texts: tuple[str, ...]
    asked: str


PUBLISHED = TypeAdapter(dict[str, Queries]).validate_python(ROWS["queries"])
"""The queries of the papers' tables, as ``tasks.yaml`` has them."""

_SEED = 0


def read_corpus(
    source: str, columns: Sequence[str] | None = None, data_dir: str | Path | None = None
) -> Corpus:
    """Read every sentence of a source, all sentences of a row one after the other."""
    examples: Iterable[Sequence[str]]
    if not Path(source).exists() and STS_TASKS.keys() & known_tasks(source)[0]:
        names = task_names([source])
        if len(names) > 1:
            raise ConfigError(f"{source!r} is {len(names)} tasks; name one of them as the corpus")
        task = load(names[0], data_dir)
        examples = zip(*task.sides, strict=True)
        understood, sha256 = "both sentences of every pair", task.sha256
    else:
        examples = opened = open_examples(source, columns)
        understood, sha256 = opened.columns, opened.sha256
    texts, places = distinct(chain.from_iterable(examples))
    rows = np.unique(places, return_index=True)[1]
    return Corpus(source, understood, len(places), tuple(texts), rows, sha256)


def read_queries(
    source: str | None, given: Sequence[str], corpus: Corpus, sample: int = 3
) -> Queries:
    """The sentences that were given, and those of a source: one of :data:`PUBLISHED`, or a file.

    Without both, ``sample`` sentences of the corpus are drawn, as for SimCSE's Table 8.
    """
    if source is None and not given:
        order = np.random.default_rng(_SEED).permutation(len(corpus.texts))[:sample]
        drawn = tuple(corpus.texts[place] for place in order)
        return Queries(drawn, f"{len(drawn)} of the corpus, drawn with seed {_SEED}")
    texts: tuple[str, ...] = ()
    asked = [f"{len(given)} given"] if given else []
    if source in PUBLISHED:
        texts, asked = PUBLISHED[source].texts, [PUBLISHED[source].asked, *asked]
    elif source is not None:
        texts, asked = tuple(example[0] for example in open_examples(source)), [source, *asked]
    return Queries((*texts, *given), ", ".join(asked))


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbour(Saved):
    """A sentence of the corpus, its similarity to the query, and its first row there, from 0."""

    text: str
    score: float
    row: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Query(Saved):
    """A sentence and what is nearest, best first; ``left_out`` are the query itself."""

    text: str
    left_out: tuple[str, ...]
    nearest: tuple[Neighbour, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbours(Usage):
    """What one encoder finds in a corpus, with all that is needed to find it again."""

    corpus: str  # the file, data set or task
    columns: str  # how its columns were understood
    sentences: int  # how many it has, repeated ones counted each time
    distinct: int  # how many of them differ; a repeated sentence is found once
    without_vector: int = 0  # how many of these have a vector of zeros, which is near nothing
    corpus_sha256: str
    asked: str  # where the queries come from
    top_k: int
    queries: tuple[Query, ...]


def find_neighbours(
    use: EncoderUse, corpus: Corpus, queries: Queries, top_k: int = 3
) -> Neighbours:
    """The sentences nearest to every query, by the similarity that the encoder states, exactly.

    A repeated sentence is found once, a query never finds itself.
    """
    asked = replace(use, show_progress=False).embed(queries.texts, of="queries", role="query")
    rows = use.embed(corpus.texts, of=corpus.source, zeros=True, role="document")
    live: NDArray[np.bool_] = np.any(rows, axis=1)
    if use.similarity == "cosine":
        asked, rows = unit_rows(asked.copy()), unit_rows(rows.copy())
    forms = np.array([*map(letters, corpus.texts)], object)
    equal = [np.flatnonzero(forms == letters(query)).tolist() for query in queries.texts]
    most = top_k + max(map(len, equal))
    segment = np.ascontiguousarray(rows, dtype=np.float32)
    hits = nearest([segment], asked, most, live=live, similarity=use.similarity)
    answers = []
    for text, itself, of_query in zip(queries.texts, equal, hits, strict=True):
        near = (
            Neighbour(text=corpus.texts[place], score=score, row=int(corpus.rows[place]))
            for place, score in of_query
            if place not in itself
        )
        left_out = tuple(corpus.texts[place] for place in itself)
        answers.append(Query(text=text, left_out=left_out, nearest=tuple(islice(near, top_k))))
    return Neighbours(
        **use.record_fields(use.role_prompts()),
        corpus=corpus.source,
        columns=corpus.columns,
        sentences=corpus.sentences,
        distinct=len(corpus.texts),
        without_vector=int((~live).sum()),
        corpus_sha256=corpus.sha256,
        asked=queries.asked,
        top_k=top_k,
        queries=tuple(answers),
    )


KIND = "neighbours"


def read_neighbours(path: str | Path) -> list[Neighbours]:
    """Read what `lines_of_kind` wrote; a DataError names file and line of anything else."""
    validate = TypeAdapter(Neighbours).validate_python
    return read_lines(path, lambda it: validate(fields_of_kind(it, KIND)), "no nearest neighbours")
