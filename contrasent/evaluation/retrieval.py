"""Retrieval: queries, documents and relevance, and how far up an encoder ranks what is relevant.

Shapes: Q queries, N documents, D embedding width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from contrasent.data.columns import RELEVANCE, TEXTS
from contrasent.data.readers import Dataset, dataset_parts, retrieval_sources
from contrasent.data.rows import as_text, open_rows_of, score_of
from contrasent.errors import ConfigError, DataError, shown
from contrasent.evaluation.embed import (
    Embeddings,
    EncoderUse,
    Score,
    Scores,
    distinct,
    require_usable,
)
from contrasent.evaluation.intervals import Ratio, intervals
from contrasent.evaluation.sts_data import load
from contrasent.evaluation.task_names import (
    ALL_SPLITS,
    CROPS,
    NEXT,
    RETRIEVE,
    STSB_RETRIEVAL,
    RowLayout,
    TaskName,
    TaskText,
    joined_sources,
    known_tasks,
    require_source,
)
from contrasent.evaluation.task_types import Options, TaskType
from contrasent.evaluation.vectors import MatrixEncoder
from contrasent.files import sha256_of
from contrasent.metrics import (
    Vector,
    all_similarities,
    mrr_at_k,
    ndcg_at_k,
    recall_at_k,
    relevant_ranks,
)
from contrasent.model.conventions import ROLES, role_options
from contrasent.model.lookup_encoders import LookupEncoder


@dataclass(frozen=True, slots=True)
class RetrievalTask:
    """Queries, documents, and which of these are to be found."""

    name: TaskName
    corpus: tuple[str, ...]  # N documents
    queries: tuple[str, ...]  # Q texts
    # for each query the rows of the relevant documents with their grades above 0
    relevant: tuple[Mapping[int, float], ...]
    # for each query the row of the document that is the query itself; None if it is no document
    left_out: tuple[int | None, ...]
    metrics: tuple[str, ...]  # names such as ``recall@10``, in the order of the table
    description: str
    sha256: str
    every_query: tuple[str, ...]  # all that were read, those without a relevant document among them
    note: str = ""

    def texts(self) -> Iterator[TaskText]:
        """Queries and documents; a query and what it is to find are a pair."""
        pairs = [
            (query, self.corpus[row])
            for query, rows in zip(self.queries, self.relevant, strict=True)
            for row in rows
        ]
        sentences = [*self.queries, *self.corpus]
        yield TaskText(self.name.name, self.name.split, sentences, pairs)

    def row_layout(self) -> RowLayout:
        """All queries, those without a relevant document among them, then all documents."""
        sides = {"queries": self.every_query, "documents": self.corpus}
        return RowLayout(self.name.heading, sides, apart=True)


_SAME = 5.0


def stsb_retrieval(name: TaskName, data_dir: str | Path | None = None) -> RetrievalTask:
    """DiffCSE, section 6.2: one sentence of a pair rated 5 is to find the other.

    Both sentences of every such pair are queries: only then 78.87 % is a share (153 of 194), which
    it is not of 97. A sentence that is in the split more than once is one document, and no query
    finds itself: the top three of the paper's Table 9 hold neither the other two copies of the
    query nor a sentence twice. Other sentences than the pair's own do not count as found.
    """
    source = load(TaskName("stsb", name.split), data_dir)
    (pairs,) = source.subsets
    both = list(zip(pairs.first, pairs.second, strict=True))
    corpus = dict.fromkeys(sentence for pair in both for sentence in pair)
    rows = {sentence: row for row, sentence in enumerate(corpus)}
    rated = zip(both, pairs.gold, strict=True)
    same = [pair for pair, rating in rated if rating == _SAME and pair[0] != pair[1]]
    asked = [*same, *((second, first) for first, second in same)]
    queries = tuple(query for query, _ in asked)
    return RetrievalTask(
        name=name,
        corpus=tuple(corpus),
        queries=queries,
        relevant=tuple({rows[other]: 1} for _, other in asked),
        left_out=tuple(rows[query] for query in queries),
        metrics=("recall@1", "recall@5", "recall@10"),
        description=(
            f"{len(queries):,} queries, both sentences of the {len(same)} pairs rated 5; "
            f"{len(corpus):,} documents, the different ones of {2 * len(both):,} sentences, "
            "the query left out (DiffCSE, Table 10)"
        ),
        sha256=source.sha256,
        every_query=queries,
    )


def read_texts(source: str) -> tuple[dict[str, str], dict[str, str]]:
    """Texts by their ids in the order of the source, behind their titles and without them."""
    texts: dict[str, str] = {}
    bare: dict[str, str] = {}
    places: dict[str, str] = {}
    for where, (cell, text, *title) in open_rows_of(source, TEXTS).rows():
        number = _id(cell)
        if not number:
            raise DataError(f"{where}: the id must be a text or a number, not {shown(cell)}")
        if number in texts:
            raise DataError(f"{where}: the id {number!r} is that of {places[number]} too")
        bare[number], places[number] = as_text(text, where), where
        texts[number] = f"{as_text(title[0] if title else None, where)} {bare[number]}".strip()
    return texts, bare


def _id(cell: Any) -> str:
    """An id as text; empty if the cell holds neither text nor a whole number."""
    return str(cell).strip() if isinstance(cell, str | int) and not isinstance(cell, bool) else ""


_METRICS = ("ndcg@10", "mrr@10", "recall@1", "recall@5", "recall@10", "recall@100")
_KINDS = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz", ".csv", ".csv.gz", ".parquet")
_LAYOUT = (
    "a folder of retrieval data holds corpus and queries (.jsonl with _id and text, or .tsv of id "
    "and text) and qrels.tsv of query, document and relevance, or qrels/test.tsv"
)


def read_retrieval(name: TaskName) -> RetrievalTask:
    """Read a user's own retrieval task.

    It is a folder laid out as those of BEIR (Thakur et al. 2021), three files
    ``QUERIES+DOCUMENTS+RELEVANCE``, or a data set of the hub, each perhaps after :data:`RETRIEVE`.
    Relevance of 0 or less is that of a document that is not to be found. A query without a relevant
    document is not scored; one that is a document, by id and text, does not find itself.
    """
    sources = joined_sources(name.name.removeprefix(RETRIEVE))
    folder = Path(sources[0])
    if len(sources) == 1 and folder.is_dir():
        paths = _only(folder, "queries"), _only(folder, "corpus"), _qrels(folder, name.split)
        sources = tuple(map(str, paths))
    elif len(sources) == 1 and not folder.is_file():
        sources = retrieval_sources(sources[0], name.split)
    if len(sources) != 3:
        raise ConfigError(
            f"{name.name} names {len(sources)} file{'s' * (len(sources) != 1)}; name three, "
            "retrieve:QUERIES+DOCUMENTS+RELEVANCE, or a folder that holds them"
        )
    (queries, _), (corpus, bare) = (read_texts(source) for source in sources[:2])
    judged = _read_judgements(sources[2], queries, corpus)
    rows = {document: row for row, document in enumerate(corpus)}
    itself = {
        query: rows[query]
        for query in judged
        if query in corpus and queries[query] in (bare[query], corpus[query])
    }
    wanted: dict[str, dict[int, float]] = {}
    for query, grades in judged.items():
        graded = {rows[document]: grade for document, grade in grades.items() if grade > 0}
        graded.pop(itself.get(query, -1), None)
        if graded:
            wanted[query] = graded
    if not wanted:
        raise DataError(
            f"{sources[2]}: no query has a relevant document, so there is nothing to find"
        )
    hashes = []
    for source in (sources[1], sources[0], sources[2]):
        is_file = Path(source).is_file() or not dataset_parts(source)
        hashes.append(sha256_of(Path(source)) if is_file else Dataset(source).sha256(()))
    return RetrievalTask(
        name=name,
        corpus=tuple(corpus.values()),
        queries=tuple(queries[query] for query in wanted),
        relevant=tuple(wanted.values()),
        left_out=tuple(itself.get(query) for query in wanted),
        metrics=_METRICS,
        description=(
            f"{len(wanted):,} of {len(queries):,} queries, those with a relevant document; "
            f"{len(corpus):,} documents"
        ),
        sha256=hashlib.sha256(" ".join(hashes).encode()).hexdigest(),
        every_query=tuple(queries.values()),
    )


def _only(folder: Path, stem: str) -> Path:
    candidates = [path for kind in _KINDS if (path := folder / f"{stem}{kind}").is_file()]
    if len(candidates) != 1:
        names = " and ".join(path.name for path in candidates) or f"no {stem}.jsonl or {stem}.tsv"
        raise DataError(f"{folder} has {names}, where one is needed; {_LAYOUT}")
    return candidates[0]


def _qrels(folder: Path, split: str) -> Path:
    """The relevance file of a split."""
    file = folder / "qrels" / f"{split}.tsv"
    if file.is_file():
        return file
    if split == "test" and (folder / "qrels.tsv").is_file():
        return folder / "qrels.tsv"
    others = sorted(path.stem for path in (folder / "qrels").glob("*.tsv"))
    remedy = f"; there is one for {', '.join(others)}: choose with --splits" if others else ""
    raise DataError(
        f"{folder} has no relevance file qrels/{split}.tsv for its {split} split{remedy}; {_LAYOUT}"
    )


def _read_judgements(
    source: str, queries: Mapping[str, str], corpus: Mapping[str, str]
) -> dict[str, dict[str, float]]:
    """Relevance of documents by the id of the query, in the order of the source."""
    judged: dict[str, dict[str, float]] = {}
    for where, (*cells, relevance) in open_rows_of(source, RELEVANCE).rows():
        query, document = (_id(cell) for cell in cells)
        for kind, number, known, other in (
            ("query", query, queries, corpus),
            ("document", document, corpus, queries),
        ):
            if number not in known:
                swapped = "; a row is query, document, relevance" if number in other else ""
                raise DataError(f"{where}: there is no {kind} {shown(number)}{swapped}")
        grade = score_of(relevance, where)
        if judged.setdefault(query, {}).setdefault(document, grade) != grade:
            raise DataError(
                f"{where}: document {document!r} of query {query!r} has the relevance {grade:g} "
                f"here and {judged[query][document]:g} before"
            )
    return judged


_QUERIES_AT_ONCE = 64

Rankings = list[tuple[Vector, Vector]]
"""For each query the places of its relevant documents, and their grades."""


def embed(task: RetrievalTask, use: EncoderUse) -> tuple[Embeddings, Embeddings]:
    """Vectors of the queries ``(Q, D)`` and of the documents ``(N, D)``, of length 1 for cosines.

    Equal texts are embedded once, so that their scores are equal to the last bit. Zeros are a
    CheckpointError, except from an encoder that looks words up.
    """
    encoder, texts = use.encoder, [*task.corpus, *task.queries]

    def by_role(texts: Sequence[str], role: str | None) -> Embeddings:
        once, places = distinct(texts)
        return use.encode(once, role)[places]

    if isinstance(encoder, MatrixEncoder) and encoder.apart:
        sides = [encoder.encode_side(1, task.corpus), encoder.encode_side(0, task.queries)]
        rows = np.concatenate(sides)
    elif any(any(role_options(encoder, role).values()) for role in ROLES):
        sides = [by_role(task.corpus, "document"), by_role(task.queries, "query")]
        rows = np.concatenate(sides)
    else:
        rows = by_role(texts, None)
    require_usable(encoder.name, texts, rows, zeros=isinstance(encoder, LookupEncoder))
    rows = rows.astype(np.float64)
    if use.similarity == "cosine":
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        norms[norms == 0] = 1
        rows /= norms
    return rows[len(task.corpus) :], rows[: len(task.corpus)]


def rankings(
    task: RetrievalTask, rows: tuple[Embeddings, Embeddings], similarity: str = "cosine"
) -> Rankings:
    """Where the relevant documents of every query stand, by the rows of :func:`embed`.

    Products of equal rows may differ in the last bit, by where they stand, so each is made once.
    A document of zeros is below all others.
    """
    queries, corpus = rows
    blank = ~corpus.any(axis=1)
    _, places = distinct(hashlib.sha256(row.tobytes()).hexdigest() for row in corpus)
    once = corpus[np.unique(places, return_index=True)[1]]
    ranked = []
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        block = queries[start : start + _QUERIES_AT_ONCE]
        scores = all_similarities(similarity, block, once)[:, places]
        scores[:, blank] = -np.inf
        for query, of_query in enumerate(scores, start=start):
            wanted, left_out = task.relevant[query], task.left_out[query]
            ranked.append(relevant_ranks(of_query, [*wanted], [*wanted.values()], left_out))
    return ranked


def _score(metric: str, ranks: Vector, grades: Vector) -> float:
    kind, k = metric.split("@")
    if kind == "ndcg":
        return ndcg_at_k([ranks], [grades], int(k))
    return {"recall": recall_at_k, "mrr": mrr_at_k}[kind]([ranks], int(k))


class Retrieval(TaskType[RetrievalTask]):
    """Rankings by the similarity that the encoder states."""

    name = "retrieval"

    def names(self, text: str, options: Options) -> list[TaskName] | None:
        """DiffCSE's task, a folder, a proxy, or what :func:`read_retrieval` takes."""
        name = text.strip()
        tasks, split = known_tasks(name)
        folder = Path(name).expanduser()
        if name.startswith(RETRIEVE):
            require_source(name, RETRIEVE, "QUERIES+DOCUMENTS+RELEVANCE, a folder or a data set")
            # Three files have no splits.
            split = "test" if len(joined_sources(name.removeprefix(RETRIEVE))) > 1 else None
        elif name.startswith((CROPS, NEXT)):
            require_source(name, f"{name.partition(':')[0]}:", "FILE")
            split = "test"
        elif tasks == (STSB_RETRIEVAL,):
            name = STSB_RETRIEVAL
        # A folder named without a slash may only by chance be called as a task is.
        elif name and folder.is_dir() and (folder.name != name or any(folder.glob("corpus.*"))):
            name, split = str(folder if folder.name else folder.resolve()), None
        else:
            return None
        wanted = [split] if split else [it for it in ALL_SPLITS[::-1] if it in options.splits]
        if split == "all" or not wanted:
            raise ConfigError(
                f"{text!r}: a retrieval task is scored on one split at a time: train, dev or test"
            )
        return [TaskName(name, chosen) for chosen in wanted]

    def load(self, names: Sequence[TaskName], options: Options) -> RetrievalTask:
        from contrasent.evaluation.proxy import read_proxy

        (name,) = names
        if name.name == STSB_RETRIEVAL:
            return stsb_retrieval(name, options.data_dir)
        return read_proxy(name, options.columns) if name.is_proxy else read_retrieval(name)

    def score(self, task: RetrievalTask, use: EncoderUse, options: Options) -> Scores:
        """Every metric of the task; its intervals draw queries again, with the same documents."""
        rows = embed(task, use)
        ranked = rankings(task, rows, use.similarity)
        values = {
            metric: np.array([_score(metric, *of_query) for of_query in ranked])
            for metric in task.metrics
        }
        ratios = {}
        for metric, each in values.items():
            # The sentences of a pair look for one another, so their scores are drawn together.
            paired = task.name.name == STSB_RETRIEVAL
            drawn = each.reshape(2, -1).mean(axis=0) if paired else each
            ratios[metric] = Ratio(drawn, np.ones_like(drawn))
        sure = intervals(ratios, options.bootstrap, task.name.label)
        roles = {role: role_options(use.encoder, role) for role in ROLES}
        prompts = {role: how["prompt"] for role, how in roles.items() if how}
        records = tuple(
            Score(
                metric, float(each.mean()), len(task.queries), "mean", interval=sure.get(metric)
            ).record(task.name, task.sha256, use, prompts)
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


TASK_TYPE = Retrieval()
