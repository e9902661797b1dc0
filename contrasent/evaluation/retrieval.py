"""Retrieval: how far up an encoder ranks the documents that are to be found.

Shapes: Q queries, N documents, D embedding width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from contrasent.errors import ConfigError
from contrasent.evaluation.bootstrap import Ratio, intervals
from contrasent.evaluation.embed import (
    DescribedEncoder,
    Embeddings,
    distinct,
    encoded,
    of_encoder,
    require_usable,
)
from contrasent.evaluation.retrieval_data import RetrievalTask, read_retrieval, stsb_retrieval
from contrasent.evaluation.sts import Scores
from contrasent.evaluation.task_names import (
    ALL_SPLITS,
    RETRIEVE,
    STSB_RETRIEVAL,
    TaskName,
    joined_sources,
    known_tasks,
    require_source,
)
from contrasent.evaluation.task_types import EncoderUse, OneByOne, Options, TaskText
from contrasent.evaluation.vectors import Given, GivenRows, Side, Words
from contrasent.metrics import Vector, mrr_at_k, ndcg_at_k, recall_at_k, relevant_ranks
from contrasent.model.word_encoder import WordEncoder
from contrasent.records import Record

_QUERIES_AT_ONCE = 64
_BELOW = -2.0
_OF_WORDS = (Words, WordEncoder)

Rankings = list[tuple[Vector, Vector]]
"""For each query the places of its relevant documents, and their grades."""


def score_retrieval(task: RetrievalTask, use: EncoderUse, options: Options) -> Scores:
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


def embed(task: RetrievalTask, use: EncoderUse) -> tuple[Embeddings, Embeddings]:
    """Unit vectors of the queries ``(Q, D)`` and of the documents ``(N, D)``.

    Equal texts are embedded once, so that their cosines are equal to the last bit. A text without a
    word that a file of words has is left as a vector of zeros.

    Raises:
        CheckpointError: an embedding is zero or not finite.
    """
    encoder = use.encoder
    if isinstance(encoder, GivenRows) and encoder.apart:
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


class Retrieval(OneByOne[RetrievalTask]):
    """Rankings by cosine."""

    name = "retrieval"
    place = 30

    def names(self, asked: Sequence[str], options: Options) -> tuple[list[TaskName], list[str]]:
        """Pick the retrieval tasks out of what a user asked for.

        Args:
            asked: names of tasks: ``stsb-retrieval``, it with its split such as
                ``stsb-retrieval-dev``, a folder, or after
                :data:`contrasent.evaluation.task_names.RETRIEVE` anything that
                :func:`contrasent.evaluation.retrieval_data.read_retrieval` takes, and anything
                else.
            options: of the splits, ``all`` is none. Three files have no splits.

        Raises:
            ConfigError: no split of a retrieval task.
        """
        wanted = [split for split in ALL_SPLITS[::-1] if split in options.splits]
        found: list[TaskName] = []
        others: list[str] = []
        for text in asked:
            name, split = _understood(text)
            if name is None:
                others.append(text)
            elif split == "all" or not (split or wanted):
                raise ConfigError(
                    f"{text!r}: a retrieval task is scored on one split at a time: train, dev or "
                    "test"
                )
            else:
                found += [TaskName(name, chosen) for chosen in ([split] if split else wanted)]
        return list(dict.fromkeys(found)), others

    def load(self, names: Sequence[TaskName], options: Options) -> RetrievalTask:
        """Read one split."""
        (name,) = names
        if name.name == STSB_RETRIEVAL:
            return stsb_retrieval(name, options.data_dir)
        return read_retrieval(name)

    def score(self, task: RetrievalTask, use: EncoderUse, options: Options) -> Scores:
        """Every metric of the task."""
        return score_retrieval(task, use, options)

    def named(self, task: RetrievalTask) -> TaskName:
        """Its own name."""
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

    def given(self, task: RetrievalTask) -> Given:
        """All queries, those without a relevant document among them, then all documents."""
        sides = Side("queries", task.asked), Side("documents", task.corpus)
        return Given(task.name.heading, sides, apart=True)


TASK_TYPE = Retrieval()


def evaluate_retrieval(
    encoder: DescribedEncoder,
    tasks: Sequence[str] = (STSB_RETRIEVAL,),
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
        tasks: as :meth:`Retrieval.names` takes them.
        data_dir: as :func:`contrasent.evaluation.sts_suite.evaluate`.
        precision: ``fp32``, ``bf16``, or what the encoder's engine computes in.
        splits: splits of the tasks named without one.
        seed: the seed of the training run that made the encoder, for the records.
        show_progress: a progress bar while encoding.

    Raises:
        ConfigError: a name is no retrieval task, or a precision is unknown.
        DataError: a task's data is missing or damaged.
        CheckpointError: an embedding is zero or not finite.
    """
    use = EncoderUse(encoder, precision, seed, show_progress)
    return TASK_TYPE.evaluate(use, tasks, Options(data_dir, splits))


def _understood(text: str) -> tuple[str | None, str | None]:
    """The retrieval task that ``text`` names, None if it names none, and its split."""
    if text.strip().startswith(RETRIEVE):
        require_source(
            text.strip(), RETRIEVE, "QUERIES+DOCUMENTS+RELEVANCE, a folder or a data set"
        )
        joined = len(joined_sources(text.strip().removeprefix(RETRIEVE))) > 1
        return text.strip(), "test" if joined else None
    folder = Path(text.strip()).expanduser()
    # A folder named without a slash may only by chance be called as a task is.
    is_path = folder.name != text.strip() or any(folder.glob("corpus.*"))
    tasks, split = known_tasks(text)
    if tasks == (STSB_RETRIEVAL,):
        return STSB_RETRIEVAL, split
    if text.strip() and folder.is_dir() and is_path:
        return str(folder if folder.name else folder.resolve()), None
    return None, None
