"""Retrieval: how far up an encoder ranks the documents that are to be found.

Shapes: Q queries, N documents, D embedding width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from contrasent.errors import CheckpointError, ConfigError, DataError, pick
from contrasent.evaluate.described import PRECISIONS, Embeddings, Encoder, of_encoder
from contrasent.evaluate.read import how_to_get_data
from contrasent.evaluate.retrieval_read import RetrievalTask
from contrasent.evaluate.retrieval_tasks import (
    LoadedRetrieval,
    load_retrievals,
    retrieval_names,
)
from contrasent.evaluate.sts import Problem, Scores
from contrasent.metrics import Vector, mrr_at_k, ndcg_at_k, recall_at_k, relevant_ranks
from contrasent.records import Record

_QUERIES_AT_ONCE = 64

Rankings = list[tuple[Vector, Vector]]
"""For each query the places of its relevant documents, and their grades."""


class RetrievalTasks:
    """Tasks read once, to be scored as often as one likes."""

    def __init__(self, tasks: Sequence[RetrievalTask]) -> None:
        self.tasks = tuple(tasks)

    def records(
        self,
        encoder: Encoder,
        *,
        precision: str = "fp32",
        seed: int | None = None,
        show_progress: bool = False,
    ) -> Scores:
        """Every metric of every task; a task whose embeddings cannot be ranked is a problem.

        Args:
            encoder: what is measured.
            precision: ``fp32``, ``bf16``, or what the encoder's engine computes in.
            seed: the seed of the training run that made the encoder, for the records.
            show_progress: a progress bar while encoding.

        Raises:
            ConfigError: no such precision.
            CheckpointError: in every task an embedding is zero or not finite.
        """
        pick("precision", precision, PRECISIONS)
        records: list[Record] = []
        problems: list[Problem] = []
        failed: list[CheckpointError] = []
        for task in self.tasks:
            try:
                unit = embed(task, encoder, precision, show_progress)
            except CheckpointError as error:
                failed.append(error)
                problems.append(Problem(task.name.label, f"{task.name.heading}: {error}"))
                continue
            scored = scores(task, rankings(task, unit))
            records += [
                _record(encoder, task, metric, value, (precision, seed))
                for metric, value in scored.items()
            ]
        if failed and len(failed) == len(self.tasks):
            raise failed[0]
        return Scores(tuple(records), tuple(problems))


def embed(
    task: RetrievalTask, encoder: Encoder, precision: str, show_progress: bool
) -> tuple[Embeddings, Embeddings]:
    """Unit vectors of the queries ``(Q, D)`` and of the documents ``(N, D)``.

    Equal texts are embedded once, so that their cosines are equal to the last bit.

    Raises:
        CheckpointError: an embedding is zero or not finite.
    """
    places: dict[str, int] = {}
    for text in (*task.corpus, *task.queries):
        places.setdefault(text, len(places))
    texts = list(places)
    found = encoder.encode(texts, precision=precision, show_progress=show_progress)
    if found.ndim != 2 or len(found) != len(texts):
        raise CheckpointError(f"{encoder.name} gave a matrix {found.shape} for {len(texts)} texts")
    usable = np.isfinite(found).all(axis=1) & found.any(axis=1)
    if not usable.all():
        raise CheckpointError(
            f"{encoder.name} gives {int((~usable).sum())} of {len(texts)} texts an embedding of "
            "zeros or with NaN or infinite numbers, so there is no ranking; the first is "
            f"{texts[int(np.argmin(usable))]!r}"
        )
    unit = found / np.linalg.norm(found.astype(np.float64), axis=1, keepdims=True)
    queries, corpus = (
        unit[[places[text] for text in side]] for side in (task.queries, task.corpus)
    )
    return queries, corpus


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


def scores(task: RetrievalTask, found: Rankings) -> Mapping[str, float]:
    """The task's metrics, in [0, 1]."""
    ranks, grades = [places for places, _ in found], [grade for _, grade in found]

    def score(metric: str) -> float:
        kind, k = metric.split("@")
        if kind == "ndcg":
            return ndcg_at_k(ranks, grades, int(k))
        return {"recall": recall_at_k, "mrr": mrr_at_k}[kind](ranks, int(k))

    return {metric: score(metric) for metric in task.metrics}


def evaluate_retrieval(
    encoder: Encoder,
    tasks: Sequence[str] = ("stsb-retrieval",),
    data_dir: str | Path | None = None,
    *,
    precision: str = "fp32",
    splits: Sequence[str] = ("test",),
    seed: int | None = None,
    show_progress: bool = False,
) -> list[Record]:
    """Score an encoder on retrieval tasks.

    Args:
        encoder: what is measured; the mode it is in (training or not) stays as it is.
        tasks: as :func:`contrasent.evaluate.retrieval_tasks.retrieval_names` takes them.
        data_dir: as :func:`contrasent.evaluate.run.evaluate`.
        precision: ``fp32``, ``bf16``, or what the encoder's engine computes in.
        splits: splits of the tasks named without one.
        seed: the seed of the training run that made the encoder, for the records.
        show_progress: a progress bar while encoding.

    Raises:
        ConfigError: a name is no retrieval task, or a precision is unknown.
        DataError: a task's data is missing or damaged.
        CheckpointError: an embedding is zero or not finite.
    """
    names, others = retrieval_names(tasks, splits)
    if others or not names:
        raise ConfigError(f"no retrieval task: {', '.join(others) or 'an empty list'}")
    loaded = load_retrievals(names, data_dir)
    _require_all(loaded)
    found = RetrievalTasks(loaded.tasks).records(
        encoder, precision=precision, seed=seed, show_progress=show_progress
    )
    if found.problems:
        raise CheckpointError("; ".join(problem.message for problem in found.problems))
    return list(found.records)


def _require_all(loaded: LoadedRetrieval) -> None:
    if loaded.problems:
        remedy = [how_to_get_data()] if any(problem.missing for problem in loaded.problems) else []
        raise DataError("; ".join([*(p.message for p in loaded.problems), *remedy]))


def _cosines(queries: Embeddings, corpus: Embeddings) -> Iterator[Embeddings]:
    """``(N,)`` for one query after the other."""
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        yield from queries[start : start + _QUERIES_AT_ONCE] @ corpus.T


def _record(
    encoder: Encoder,
    task: RetrievalTask,
    metric: str,
    value: float,
    how: tuple[str, int | None],
) -> Record:
    return Record(
        task=task.name.name,
        split=task.name.split,
        metric=metric,
        aggregation="mean",
        value=value,
        pairs=len(task.queries),
        data_sha256=task.sha256,
        **of_encoder(encoder, *how),
    )
