"""Retrieval: how far up an encoder ranks the documents that are to be found.

Shapes: Q queries, N documents, D embedding width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from contrasent.evaluate.described import Embeddings, of_encoder
from contrasent.evaluate.embedded import distinct, encoded, require_usable
from contrasent.evaluate.kinds.base import Options, Use
from contrasent.evaluate.retrieval_read import RetrievalTask
from contrasent.evaluate.statistics import Ratio, intervals
from contrasent.evaluate.sts import Scores
from contrasent.evaluate.tasks import STSB_RETRIEVAL
from contrasent.evaluate.vectors import Rows, Words
from contrasent.metrics import Vector, mrr_at_k, ndcg_at_k, recall_at_k, relevant_ranks
from contrasent.model.words import WordEncoder
from contrasent.records import Record

_QUERIES_AT_ONCE = 64
_BELOW = -2.0
_OF_WORDS = (Words, WordEncoder)

Rankings = list[tuple[Vector, Vector]]
"""For each query the places of its relevant documents, and their grades."""


def score_retrieval(task: RetrievalTask, use: Use, options: Options) -> Scores:
    """Every metric of a task.

    Args:
        task: what was read.
        use: the encoder.
        options: how intervals are computed: by drawing queries again, the documents as they are.

    Raises:
        CheckpointError: an embedding is zero or not finite.
    """
    unit = embed(task, use)
    found = scores(task, rankings(task, unit))
    ratios = {metric: _ratio(task, each) for metric, each in found.items()}
    sure = intervals(ratios, options.bootstrap, task.name.label)
    records = [
        Record(
            task=task.name.name,
            split=task.name.split,
            metric=metric,
            aggregation="mean",
            value=float(each.mean()),
            pairs=len(task.queries),
            interval=sure.get(metric),
            data_sha256=task.sha256,
            **of_encoder(use.encoder, use.precision, use.seed),
        )
        for metric, each in found.items()
    ]
    columns = {(task.name, metric): ratio for metric, ratio in ratios.items()}
    notes = tuple(f"{task.name.heading}: {note}" for note in _blank(unit))
    return Scores(tuple(records), (), ratios=columns, notes=notes)


def embed(task: RetrievalTask, use: Use) -> tuple[Embeddings, Embeddings]:
    """Unit vectors of the queries ``(Q, D)`` and of the documents ``(N, D)``.

    Equal texts are embedded once, so that their cosines are equal to the last bit. A text without a
    word that a file of words has is left as a vector of zeros.

    Raises:
        CheckpointError: an embedding is zero or not finite.
    """
    encoder = use.encoder
    if isinstance(encoder, Rows) and encoder.apart:
        sides = encoder.encode_side(1, task.corpus), encoder.encode_side(0, task.queries)
        texts, found = [*task.corpus, *task.queries], np.concatenate(sides)
        places = np.arange(len(found))
    else:
        texts, places = distinct((*task.corpus, *task.queries))
        found = encoded(encoder, texts, precision=use.precision, show_progress=use.show_progress)
    require_usable(encoder.name, texts, found, zeros=isinstance(encoder, _OF_WORDS))
    norms = np.linalg.norm(found.astype(np.float64), axis=1, keepdims=True)
    norms[norms == 0] = 1
    unit = (found / norms)[places]
    return unit[len(task.corpus) :], unit[: len(task.corpus)]


def rankings(task: RetrievalTask, unit: tuple[Embeddings, Embeddings]) -> Rankings:
    """Where the relevant documents of every query stand, by cosine.

    Args:
        task: what is to be found.
        unit: as :func:`embed` returns them.
    """
    return [
        relevant_ranks(cosines, [*wanted], [*wanted.values()], left_out)
        for cosines, wanted, left_out in zip(
            _cosines(*unit), task.relevant, task.left_out, strict=True
        )
    ]


def scores(task: RetrievalTask, found: Rankings) -> Mapping[str, Vector]:
    """The task's metrics of each query ``(Q,)``, in [0, 1]."""

    def score(metric: str, ranks: Vector, grades: Vector) -> float:
        kind, k = metric.split("@")
        if kind == "ndcg":
            return ndcg_at_k([ranks], [grades], int(k))
        return {"recall": recall_at_k, "mrr": mrr_at_k}[kind]([ranks], int(k))

    return {
        metric: np.array([score(metric, *of_query) for of_query in found])
        for metric in task.metrics
    }


def _ratio(task: RetrievalTask, each: Vector) -> Ratio:
    """The mean over queries, as sums over what is drawn again."""
    if task.name.name == STSB_RETRIEVAL:
        # The sentences of a pair look for one another, so their two scores are drawn together.
        each = each.reshape(2, -1).mean(axis=0)
    return Ratio(each, np.ones_like(each))


def _cosines(queries: Embeddings, corpus: Embeddings) -> Iterator[Embeddings]:
    """``(N,)`` for one query after the other; below all cosines for a document of zeros."""
    blank = ~corpus.any(axis=1)
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        found = queries[start : start + _QUERIES_AT_ONCE] @ corpus.T
        found[:, blank] = _BELOW
        yield from found


def _blank(unit: tuple[Embeddings, Embeddings]) -> tuple[str, ...]:
    """How many texts have no known word."""
    queries, corpus = (int((~side.any(axis=1)).sum()) for side in unit)
    if not queries and not corpus:
        return ()
    return (
        f"{queries} of {len(unit[0])} queries and {corpus} of {len(unit[1])} documents have no "
        "known word: such a query finds its documents last, such a document comes last",
    )
