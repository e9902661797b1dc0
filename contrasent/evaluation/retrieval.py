"""Retrieval: queries, documents and relevance, and how far up an encoder ranks what is relevant.

Shapes: Q queries, N documents, D embedding width.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from contrasent.data.rows import as_text, open_rows_of, score_of
from contrasent.errors import ConfigError, DataError, shown
from contrasent.evaluation import embed, task_names
from contrasent.evaluation.embed import Embeddings, EncoderUse, Score, Scores
from contrasent.evaluation.intervals import Bootstrap, Ratio, intervals
from contrasent.evaluation.protocols import Options
from contrasent.evaluation.sts_data import load
from contrasent.evaluation.task_names import RETRIEVE, STSB_RETRIEVAL, TaskName, TaskText
from contrasent.metrics import Vector, all_similarities, relevant_ranks, retrieval_score
from contrasent.model.protocol import role_options, unit_rows


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
    note: str = ""

    def texts(self) -> Iterator[TaskText]:
        """Queries and documents; a query and what it is to find are a pair."""
        pairs = [
            (query, self.corpus[row])
            for query, rows in zip(self.queries, self.relevant, strict=True)
            for row in rows
        ]
        yield TaskText(self.name.name, self.name.split, [*self.queries, *self.corpus], pairs)


_SAME = 5.0


def stsb_retrieval(name: TaskName, data_dir: str | Path | None = None) -> RetrievalTask:
    """DiffCSE, section 6.2: one sentence of a pair rated 5 is to find the other.

    Both sentences of such a pair are queries: only then 78.87 % is a share (153 of 194). A sentence
    that is there twice is one document, and no query finds itself, as in the paper's Table 9.
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
    )


def read_texts(source: str) -> tuple[dict[str, str], dict[str, str], str]:
    """Texts by their ids in order, behind their titles and without them; the source's hash."""
    rows = open_rows_of(source, "texts")
    texts, bare = dict[str, str](), dict[str, str]()
    for where, (cell, text, *title) in rows.rows():
        number = _id(cell)
        if not number or number in texts:
            raise DataError(
                f"{where}: every text needs an id of its own, a text or a number, not {shown(cell)}"
            )
        bare[number] = as_text(text, where)
        texts[number] = f"{as_text(title[0] if title else None, where)} {bare[number]}".strip()
    return texts, bare, rows.sha256


def _id(cell: Any) -> str:
    return str(cell).strip() if isinstance(cell, str | int) and not isinstance(cell, bool) else ""


_METRICS = ("ndcg@10", "mrr@10", "recall@1", "recall@5", "recall@10", "recall@100")
_KINDS = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz", ".csv", ".csv.gz", ".parquet")


def read_retrieval(name: TaskName) -> RetrievalTask:
    """Read a user's own retrieval task.

    A folder as those of BEIR (Thakur et al. 2021), or three files or data sets of the hub,
    ``QUERIES+DOCUMENTS+RELEVANCE``. Relevance of 0 or less is that of a document that is not to be
    found. A query without a relevant document is not scored; one that is a document does not find
    itself.
    """
    sources = task_names.joined_sources(name.name.removeprefix(RETRIEVE))
    if len(sources) == 1 and Path(sources[0]).is_dir():
        folder, split = Path(sources[0]), name.split
        judgements = [f"qrels/{split}.tsv", *["qrels.tsv"] * (split == "test")]
        names = [[f"{stem}{kind}" for kind in _KINDS] for stem in ("queries", "corpus")]
        present = [[it for it in of_kind if (folder / it).is_file()] for of_kind in names]
        present.append([it for it in judgements if (folder / it).is_file()][:1])
        if [len(of_kind) for of_kind in present] != [1, 1, 1]:
            known = ", ".join(sorted(path.stem for path in (folder / "qrels").glob("*.tsv")))
            raise DataError(
                f"{folder} has {', '.join(chain(*present)) or 'nothing'}, where one of each is "
                "needed: queries, corpus (.jsonl with _id and text, or .tsv of id and text) and "
                f"{judgements[0]} of query, document, relevance; splits with one are "
                f"{known or 'none'} (--splits)"
            )
        sources = tuple(str(folder / it) for (it,) in present)
    if len(sources) != 3:
        what = f"{name.name} names {len(sources)} file{'s' * (len(sources) != 1)}; name three"
        form = "retrieve:QUERIES+DOCUMENTS+RELEVANCE"
        raise ConfigError(f"{what}, {form}, or a folder that holds them")
    (queries, _, *hashes), (corpus, bare, sha256) = (read_texts(it) for it in sources[:2])
    judged: dict[str, dict[str, float]] = {}
    relevant = open_rows_of(sources[2], "relevance")
    for where, (*cells, relevance) in relevant.rows():
        query, document = (_id(cell) for cell in cells)
        if query not in queries or document not in corpus:
            kind, cell = ("query", query) if query not in queries else ("document", document)
            raise DataError(
                f"{where}: there is no {kind} {shown(cell)}; a row is query, document, relevance"
            )
        grade = score_of(relevance, where)
        if (before := judged.setdefault(query, {}).setdefault(document, grade)) != grade:
            what = f"the relevance of {shown(document)} for {shown(query)}"
            raise DataError(f"{where}: {what} is {grade:g} here and {before:g} before")
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
        what = "no query has a relevant document, so there is nothing to find"
        raise DataError(f"{sources[2]}: {what}")
    hashes = [sha256, *hashes, relevant.sha256]
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
    )


_QUERIES_AT_ONCE = 64


def embed_sides(
    queries: Sequence[str], corpus: Sequence[str], use: EncoderUse
) -> tuple[Embeddings, Embeddings]:
    """Vectors of Q queries ``(Q, D)`` and of N documents ``(N, D)``, of length 1 for cosines.

    Equal texts are embedded once, so that their scores are equal to the last bit.
    """
    encoder, texts = use.encoder, [*corpus, *queries]

    def by_role(texts: Sequence[str], role: str) -> Embeddings:
        once, places = embed.distinct(texts)
        return use.encode(once, role)[places]

    if role_options(encoder, "query") != role_options(encoder, "document"):
        rows = np.concatenate([by_role(corpus, "document"), by_role(queries, "query")])
    else:
        rows = by_role(texts, "query")
    embed.require_usable(encoder.name, texts, rows, zeros=getattr(encoder, "gives_zeros", False))
    rows = rows.astype(np.float64)
    if use.similarity == "cosine":
        unit_rows(rows)
    return rows[len(corpus) :], rows[: len(corpus)]


def similarities(
    rows: tuple[Embeddings, Embeddings], similarity: str = "cosine"
) -> Iterator[Vector]:
    """Scores ``(N,)`` of each query, by the rows of :func:`embed_sides`.

    Products of equal rows may differ in the last bit, so each is made once; zeros are last.
    """
    queries, corpus = rows
    blank = ~corpus.any(axis=1)
    _, places = embed.distinct(hashlib.sha256(row.tobytes()).hexdigest() for row in corpus)
    once = corpus[np.unique(places, return_index=True)[1]]
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        block = queries[start : start + _QUERIES_AT_ONCE]
        scores = all_similarities(similarity, block, once)[:, places]
        scores[:, blank] = -np.inf
        yield from scores


def names(text: str, options: Options) -> list[TaskName] | None:
    """DiffCSE's task, a folder, or what :func:`read_retrieval` takes."""
    name, folder = text.strip(), Path(text.strip()).expanduser()
    public = task_names.public_names(name, options.splits, {STSB_RETRIEVAL: task_names.ALL_SPLITS})
    if public is not None:
        return public
    # A folder named without a slash may only by chance be called as a task is.
    if name and folder.is_dir() and (folder.name != name or any(folder.glob("corpus.*"))):
        name = str(folder if folder.name else folder.resolve())
    elif not name.startswith(RETRIEVE):
        return None
    elif len(task_names.joined_sources(name.removeprefix(RETRIEVE))) > 1:
        return [TaskName(name)]  # three files have no splits
    return [TaskName(name, split) for split in options.splits if split in task_names.ALL_SPLITS]


def load_task(names: Sequence[TaskName], options: Options) -> RetrievalTask:
    """Read a task of one split."""
    (name,) = names
    if name.name == STSB_RETRIEVAL:
        return stsb_retrieval(name, options.data_dir)
    return read_retrieval(name)


def score(tasks: Sequence[RetrievalTask], use: EncoderUse, options: Options) -> Scores:
    """Every metric of the tasks; its intervals draw queries again, with the same documents."""
    return embed.score_each((task.name, partial(_score, task, use, options)) for task in tasks)


def query_scores(task: RetrievalTask, scores: Iterable[Vector]) -> dict[str, Vector]:
    """Scores ``(Q,)`` by metric, of what each query is said to have in common ``(N,)``."""
    queries = zip(scores, task.relevant, task.left_out, strict=True)
    ranked = [relevant_ranks(row, [*of], [*of.values()], itself) for row, of, itself in queries]
    return {it: np.array([retrieval_score(it, *one) for one in ranked]) for it in task.metrics}


def mean_scores(
    task: RetrievalTask, values: Mapping[str, Vector], use: EncoderUse, bootstrap: Bootstrap | None
) -> Scores:
    """Means of :func:`query_scores` as records, with intervals, and what comparisons draw."""
    ratios = {}
    for metric, each in values.items():
        # The sentences of a pair look for one another, so their scores are drawn together.
        drawn = each.reshape(2, -1).mean(axis=0) if task.name.name == STSB_RETRIEVAL else each
        ratios[metric] = Ratio(drawn, np.ones_like(drawn))
    sure = intervals(ratios, bootstrap, task.name.label)
    records = tuple(
        Score(
            metric, float(each.mean()), len(task.queries), "mean", interval=sure.get(metric)
        ).record(task.name, task.sha256, use, use.role_prompts())
        for metric, each in values.items()
    )
    return Scores(records, ratios={(task.name, it): ratio for it, ratio in ratios.items()})


def _score(task: RetrievalTask, use: EncoderUse, options: Options) -> Scores:
    rows = embed_sides(task.queries, task.corpus, use)
    values = query_scores(task, similarities(rows, use.similarity))
    scores = mean_scores(task, values, use, options.bootstrap)
    queries, corpus = (int((~side.any(axis=1)).sum()) for side in rows)
    note = (
        f"{task.name.heading}: {queries} of {len(rows[0])} queries and {corpus} of "
        f"{len(rows[1])} documents have no known word: such a query finds its documents last, "
        "such a document comes last"
    )
    return replace(scores, notes=(note,) if queries or corpus else ())
