"""Queries, documents and what is to be found: DiffCSE's task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contrasent.errors import DataError
from contrasent.evaluate.read import load
from contrasent.evaluate.tasks import TaskName

_SAME = 5.0


@dataclass(frozen=True, slots=True)
class RetrievalTask:
    """Queries, documents, and which of these are to be found.

    Attributes:
        name: which task and split.
        corpus: N documents.
        queries: Q texts.
        relevant: for each query the rows of the relevant documents with their grades above 0.
        left_out: for each query the row of the document that is the query itself; None if it is no
            document.
        metrics: names such as ``recall@10``, in the order of the table.
        said: one line on what the queries and documents are.
        sha256: hash of the bytes of its file, or of the hashes of several.
        asked: all queries that were read, those without a relevant document among them.
    """

    name: TaskName
    corpus: tuple[str, ...]
    queries: tuple[str, ...]
    relevant: tuple[Mapping[int, float], ...]
    left_out: tuple[int | None, ...]
    metrics: tuple[str, ...]
    said: str
    sha256: str
    asked: tuple[str, ...]


def stsb_retrieval(name: TaskName, data_dir: str | Path | None = None) -> RetrievalTask:
    """DiffCSE, section 6.2: one sentence of a pair rated 5 is to find the other.

    Both sentences of every such pair are queries: only then 78.87 % is a share (153 of 194), which
    it is not of 97. A sentence that is in the split more than once is one document, and no query
    finds itself: the top three of the paper's Table 9 hold neither the other two copies of the
    query nor a sentence twice. Other sentences than the pair's own do not count as found.

    Raises:
        MissingDataError: the split is not there.
        DataError: it is damaged, or has no pair of two different sentences rated 5.
    """
    source = load(TaskName("stsb", name.split), data_dir)
    (pairs,) = source.subsets
    places: dict[str, int] = {}
    for first, second in zip(pairs.first, pairs.second, strict=True):
        places.setdefault(first, len(places))
        places.setdefault(second, len(places))
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
        corpus=tuple(places),
        queries=queries,
        relevant=tuple({places[other]: 1} for _, other in both),
        left_out=tuple(places[query] for query, _ in both),
        metrics=("recall@1", "recall@5", "recall@10"),
        said=(
            f"{len(both):,} queries, both sentences of the {len(same)} pairs rated 5; "
            f"{len(places):,} documents, the different ones of {2 * len(pairs.gold):,} sentences, "
            "the query left out (DiffCSE, Table 10)"
        ),
        sha256=source.sha256,
        asked=queries,
    )
