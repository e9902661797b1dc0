"""Retrieval: how far up an encoder ranks the documents that are to be found.

Shapes: Q queries, N documents, D embedding width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np

from contrasent.errors import ConfigError, DataError
from contrasent.evaluation.embed import (
    Embeddings,
    EncoderUse,
    Score,
    Scores,
    distinct,
    require_usable,
)
from contrasent.evaluation.intervals import Ratio, intervals
from contrasent.evaluation.proxy import read_proxy
from contrasent.evaluation.retrieval_data import RetrievalTask, read_retrieval
from contrasent.evaluation.sts_data import load
from contrasent.evaluation.task_names import (
    ALL_SPLITS,
    CROPS,
    NEXT,
    RETRIEVE,
    STSB_RETRIEVAL,
    TaskName,
    joined_sources,
    known_tasks,
    require_source,
)
from contrasent.evaluation.task_types import Options, TaskText, TaskType
from contrasent.evaluation.vectors import MatrixEncoder, RowLayout
from contrasent.metrics import (
    Vector,
    all_similarities,
    mrr_at_k,
    ndcg_at_k,
    recall_at_k,
    relevant_ranks,
)
from contrasent.model.conventions import ROLES, role_options
from contrasent.model.static_encoder import LookupEncoder

_QUERIES_AT_ONCE = 64

Rankings = list[tuple[Vector, Vector]]
"""For each query the places of its relevant documents, and their grades."""

_SAME = 5.0


def stsb_retrieval(name: TaskName, data_dir: str | Path | None = None) -> RetrievalTask:
    """DiffCSE, section 6.2: one sentence of a pair rated 5 is to find the other.

    Both sentences of every such pair are queries: only then 78.87 % is a share (153 of 194), which
    it is not of 97. A sentence that is in the split more than once is one document, and no query
    finds itself: the top three of the paper's Table 9 hold neither the other two copies of the
    query nor a sentence twice. Other sentences than the pair's own do not count as found.
    MissingDataError if the split is not there; DataError if it is damaged, or has no pair of two
    different sentences rated 5.
    """
    source = load(TaskName("stsb", name.split), data_dir)
    (pairs,) = source.subsets
    corpus, _ = distinct(it for pair in zip(pairs.first, pairs.second, strict=True) for it in pair)
    places = {sentence: place for place, sentence in enumerate(corpus)}
    same = [
        (first, second)
        for first, second, rating in zip(pairs.first, pairs.second, pairs.gold, strict=True)
        if rating == _SAME and first != second
    ]
    if not same:
        raise DataError(
            f"{source.name.heading} has no pair of two different sentences rated 5, so there is "
            "nothing to retrieve"
        )
    both = [*same, *((second, first) for first, second in same)]
    queries = tuple(query for query, _ in both)
    return RetrievalTask(
        name=name,
        corpus=tuple(corpus),
        queries=queries,
        relevant=tuple({places[other]: 1} for _, other in both),
        left_out=tuple(places[query] for query, _ in both),
        metrics=("recall@1", "recall@5", "recall@10"),
        description=(
            f"{len(both):,} queries, both sentences of the {len(same)} pairs rated 5; "
            f"{len(corpus):,} documents, the different ones of {2 * len(pairs.gold):,} sentences, "
            "the query left out (DiffCSE, Table 10)"
        ),
        sha256=source.sha256,
        every_query=queries,
    )


def embed(task: RetrievalTask, use: EncoderUse) -> tuple[Embeddings, Embeddings]:
    """Vectors of the queries ``(Q, D)`` and of the documents ``(N, D)``, of length 1 for cosines.

    Equal texts are embedded once, so that their scores are equal to the last bit. A text without a
    known word or word piece is a vector of zeros; from an encoder that looks none up, zeros are a
    CheckpointError.
    """
    encoder = use.encoder
    sides: tuple[Embeddings, ...] = ()
    if isinstance(encoder, MatrixEncoder) and encoder.apart:
        sides = encoder.encode_side(1, task.corpus), encoder.encode_side(0, task.queries)
    elif any(any(role_options(encoder, role).values()) for role in ROLES):
        sides = _encode(use, task.corpus, "document"), _encode(use, task.queries, "query")
    if sides:
        texts, rows = [*task.corpus, *task.queries], np.concatenate(sides)
        places = np.arange(len(rows))
    else:
        texts, places = distinct((*task.corpus, *task.queries))
        rows = use.encode(texts)
    require_usable(encoder.name, texts, rows, zeros=isinstance(encoder, LookupEncoder))
    rows = rows.astype(np.float64)
    if use.similarity == "cosine":
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        norms[norms == 0] = 1
        rows /= norms
    rows = rows[places]
    return rows[len(task.corpus) :], rows[: len(task.corpus)]


def _encode(use: EncoderUse, texts: Sequence[str], role: str) -> Embeddings:
    once, places = distinct(texts)
    return use.encode(once, role)[places]


def _prompts(use: EncoderUse) -> dict[str, str]:
    """What is put before queries and documents; nothing for an encoder without prompts."""
    roles = {role: role_options(use.encoder, role) for role in ROLES}
    return {role: how["prompt"] for role, how in roles.items() if how}


def rankings(
    task: RetrievalTask, rows: tuple[Embeddings, Embeddings], similarity: str = "cosine"
) -> Rankings:
    """Where the relevant documents of every query stand, by the rows of :func:`embed`."""
    scores = _scores(*rows, similarity)
    return [
        relevant_ranks(of_query, [*wanted], [*wanted.values()], left_out)
        for of_query, wanted, left_out in zip(scores, task.relevant, task.left_out, strict=True)
    ]


def scores(task: RetrievalTask, rankings: Rankings) -> Mapping[str, Vector]:
    """The task's metrics of each query ``(Q,)``, in [0, 1]."""

    def score(metric: str, ranks: Vector, grades: Vector) -> float:
        kind, k = metric.split("@")
        if kind == "ndcg":
            return ndcg_at_k([ranks], [grades], int(k))
        return {"recall": recall_at_k, "mrr": mrr_at_k}[kind]([ranks], int(k))

    return {
        metric: np.array([score(metric, *of_query) for of_query in rankings])
        for metric in task.metrics
    }


def _ratio(task: RetrievalTask, each: Vector) -> Ratio:
    """The mean over queries, as sums over what is drawn again."""
    if task.name.name == STSB_RETRIEVAL:
        # The sentences of a pair look for one another, so their two scores are drawn together.
        each = each.reshape(2, -1).mean(axis=0)
    return Ratio(each, np.ones_like(each))


def _scores(queries: Embeddings, corpus: Embeddings, similarity: str) -> Iterator[Embeddings]:
    """``(N,)`` for one query after the other; below all others for a document of zeros.

    Products of equal rows may differ in the last bit, by where they stand, so each is made once.
    """
    blank = ~corpus.any(axis=1)
    _, places = distinct(sha256(row.tobytes()).hexdigest() for row in corpus)
    once = corpus[np.unique(places, return_index=True)[1]]
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        block = queries[start : start + _QUERIES_AT_ONCE]
        scores = all_similarities(similarity, block, once)[:, places]
        scores[:, blank] = -np.inf
        yield from scores


class Retrieval(TaskType[RetrievalTask]):
    """Rankings by the similarity that the encoder states."""

    name = "retrieval"

    def names(self, text: str, options: Options) -> list[TaskName] | None:
        """DiffCSE's task, a folder, a proxy, or what :func:`read_retrieval` takes.

        Three files have no splits, and of the others' splits ``all`` is none.
        """
        name, split = _parse(text)
        if name is None:
            return None
        wanted = [split] if split else [it for it in ALL_SPLITS[::-1] if it in options.splits]
        if split == "all" or not wanted:
            raise ConfigError(
                f"{text!r}: a retrieval task is scored on one split at a time: train, dev or test"
            )
        return [TaskName(name, chosen) for chosen in wanted]

    def load(self, names: Sequence[TaskName], options: Options) -> RetrievalTask:
        """Read one split."""
        (name,) = names
        if name.name == STSB_RETRIEVAL:
            return stsb_retrieval(name, options.data_dir)
        if name.is_proxy:
            return read_proxy(name, options.columns)
        return read_retrieval(name)

    def score(self, task: RetrievalTask, use: EncoderUse, options: Options) -> Scores:
        """Every metric of the task; its intervals draw queries again, with the same documents."""
        rows = embed(task, use)
        values = scores(task, rankings(task, rows, use.similarity))
        ratios = {metric: _ratio(task, each) for metric, each in values.items()}
        sure = intervals(ratios, options.bootstrap, task.name.label)
        records = tuple(
            Score(
                metric, float(each.mean()), len(task.queries), "mean", interval=sure.get(metric)
            ).record(task.name, task.sha256, use, _prompts(use))
            for metric, each in values.items()
        )
        columns = {(task.name, metric): ratio for metric, ratio in ratios.items()}
        queries, corpus = (int((~side.any(axis=1)).sum()) for side in rows)
        note = (
            f"{task.name.heading}: {queries} of {len(rows[0])} queries and {corpus} of "
            f"{len(rows[1])} documents have no known word: such a query finds its documents last, "
            "such a document comes last"
        )
        return Scores(records, ratios=columns, notes=(note,) if queries or corpus else ())

    def named(self, task: RetrievalTask) -> TaskName:
        """Its name and split."""
        return task.name

    def texts(self, task: RetrievalTask) -> Iterator[TaskText]:
        """Queries and documents; a query and what it is to find are a pair."""
        pairs = [
            (query, task.corpus[row])
            for query, rows in zip(task.queries, task.relevant, strict=True)
            for row in rows
        ]
        sentences = [*task.queries, *task.corpus]
        yield TaskText(task.name.name, task.name.split, sentences, pairs)

    def row_layout(self, task: RetrievalTask) -> RowLayout:
        """All queries, those without a relevant document among them, then all documents."""
        sides = {"queries": task.every_query, "documents": task.corpus}
        return RowLayout(task.name.heading, sides, apart=True)


TASK_TYPE = Retrieval()


def _parse(text: str) -> tuple[str | None, str | None]:
    """The retrieval task that ``text`` names, None if it names none, and its split."""
    text = text.strip()
    if text.startswith(RETRIEVE):
        require_source(text, RETRIEVE, "QUERIES+DOCUMENTS+RELEVANCE, a folder or a data set")
        joined = len(joined_sources(text.removeprefix(RETRIEVE))) > 1
        return text, "test" if joined else None
    for prefix in (CROPS, NEXT):
        if text.startswith(prefix):
            require_source(text, prefix, "FILE")
            return text, "test"
    folder = Path(text).expanduser()
    # A folder named without a slash may only by chance be called as a task is.
    is_path = folder.name != text or any(folder.glob("corpus.*"))
    tasks, split = known_tasks(text)
    if tasks == (STSB_RETRIEVAL,):
        return STSB_RETRIEVAL, split
    if text and folder.is_dir() and is_path:
        return str(folder if folder.name else folder.resolve()), None
    return None, None
