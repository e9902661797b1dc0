"""Queries, documents and relevance: DiffCSE's task, and a user's own data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrasent.data.columns import RELEVANCE, TEXTS
from contrasent.data.readers import (
    Dataset,
    dataset_parts,
    retrieval_sources,
    tab_rows,
)
from contrasent.data.rows import as_text, open_rows_of, score_of
from contrasent.errors import ConfigError, DataError, shown
from contrasent.evaluation.task_names import RETRIEVE, TaskName, joined_sources
from contrasent.files import sha256_of


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


Row = tuple[str, str, str, str]
"""Where a row stands (``path:line``), its id, its title and its text."""


def read_texts(source: str) -> tuple[dict[str, str], dict[str, str]]:
    """Texts by their ids in the order of the source, behind their titles and without them.

    The source is ``.jsonl`` of objects with id and text; ``.tsv``, ``.csv`` of id and text, with or
    without a header; each also ``.gz``; ``.parquet``; or a data set of the hub. DataError if there
    is no text, an id is empty or comes twice, or a row is not what it should be; the message names
    file and line.
    """
    texts: dict[str, str] = {}
    bare: dict[str, str] = {}
    lines: dict[str, str] = {}
    for where, number, title, text in _rows(source):
        if not number:
            raise DataError(f"{where}: the id is empty")
        if number in texts:
            raise DataError(f"{where}: the id {number!r} is that of {lines[number]} too")
        texts[number], bare[number], lines[number] = f"{title} {text}".strip(), text, where
    if not texts:
        raise DataError(f"{source} is empty; it needs an id and a text in every row")
    return texts, bare


def id_of(cell: Any) -> str | None:
    """An id as text; None if the cell holds neither text nor a whole number."""
    if isinstance(cell, bool) or not isinstance(cell, str | int):
        return None
    return str(cell).strip()


def _rows(source: str) -> Iterator[Row]:
    for where, (cell, text, *title) in open_rows_of(source, TEXTS).rows():
        number = id_of(cell)
        if number is None:
            raise DataError(f"{where}: the id must be a text or a number, not {shown(cell)}")
        yield where, number, as_text(title[0] if title else None, where), as_text(text, where)


_METRICS = ("ndcg@10", "mrr@10", "recall@1", "recall@5", "recall@10", "recall@100")
_KINDS = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz", ".csv", ".csv.gz", ".parquet")
_LAYOUT = (
    "a folder of retrieval data holds corpus and queries (.jsonl with _id and text, or .tsv of id "
    "and text) and qrels.tsv of query, document and relevance, or qrels/test.tsv"
)
_THREE = "name three, retrieve:QUERIES+DOCUMENTS+RELEVANCE, or a folder that holds them"
Judgement = tuple[str, str, str, Any]  # ``path:line``, ids of query and document, relevance


def read_retrieval(name: TaskName) -> RetrievalTask:
    """Read a user's own retrieval task.

    It is a folder laid out as those of BEIR (Thakur et al. 2021), three files
    ``QUERIES+DOCUMENTS+RELEVANCE``, or a data set of the hub, each perhaps after :data:`RETRIEVE`.
    Queries and documents have an id, a text and perhaps a title; relevance has the ids of a query
    and of a document and a number, of which 0 or less is that of a document that is not to be
    found. Columns are known by name, or by this order without a header; a file of relevance that is
    not ``.csv``, ``.jsonl`` or ``.parquet`` may have TREC's four columns too. A query without a
    relevant document is not scored; one that is a document, by id and text, does not find itself.
    ConfigError if another number of files is named. DataError if a file is missing or empty, or a
    row is not what it should be; the message names file and line. MissingExtraError if a data set
    is asked for, but ``datasets`` is not installed.
    """
    sources = joined_sources(name.name.removeprefix(RETRIEVE))
    if len(sources) == 1:
        folder = Path(sources[0])
        if folder.is_dir():
            paths = _only(folder, "queries"), _only(folder, "corpus"), _qrels(folder, name.split)
            sources = tuple(map(str, paths))
        elif folder.is_file():
            raise ConfigError(f"{name.name} names one file; {_THREE}")
        else:
            sources = retrieval_sources(sources[0], name.split)
    if len(sources) != 3:
        raise ConfigError(f"{name.name} names {len(sources)} files; {_THREE}")
    (queries, _), corpus = (read_texts(source) for source in sources[:2])
    return _assemble(name, sources, queries, *corpus)


def _assemble(
    name: TaskName,
    sources: Sequence[str],
    queries: Mapping[str, str],
    corpus: Mapping[str, str],
    bare: Mapping[str, str],
) -> RetrievalTask:
    judged = _read_judgements(sources[2], queries, corpus)
    hashes = [_hash(sources[which]) for which in (1, 0, 2)]
    rows = {document: row for row, document in enumerate(corpus)}
    same = {q for q in judged if q in corpus and queries[q] in (bare[q], corpus[q])}
    itself = {q: rows[q] if q in same else None for q in judged}
    wanted: dict[str, dict[int, float]] = {}
    for query, grades in judged.items():
        graded = {rows[document]: grade for document, grade in grades.items() if grade > 0}
        kept = {row: grade for row, grade in graded.items() if row != itself[query]}
        if kept:
            wanted[query] = kept
    if not wanted:
        raise DataError(
            f"{sources[2]}: no query has a relevant document, so there is nothing to find"
        )
    return RetrievalTask(
        name=name,
        corpus=tuple(corpus.values()),
        queries=tuple(queries[query] for query in wanted),
        relevant=tuple(wanted.values()),
        left_out=tuple(itself[query] for query in wanted),
        metrics=_METRICS,
        description=(
            f"{len(wanted):,} of {len(queries):,} queries, those with a relevant document; "
            f"{len(corpus):,} documents"
        ),
        sha256=hashlib.sha256(" ".join(hashes).encode()).hexdigest(),
        every_query=tuple(queries.values()),
    )


def _hash(source: str) -> str:
    """Of a file's bytes, or of a data set's revision."""
    path = Path(source)
    is_file = path.is_file() or not dataset_parts(source)
    return sha256_of(path) if is_file else Dataset(source).sha256(())


def _only(folder: Path, stem: str) -> Path:
    candidates = [path for kind in _KINDS if (path := folder / f"{stem}{kind}").is_file()]
    if not candidates:
        raise DataError(f"{folder} has no {stem}.jsonl or {stem}.tsv; {_LAYOUT}")
    if len(candidates) > 1:
        names = " and ".join(path.name for path in candidates)
        raise DataError(f"{folder} has {names}; leave the one that is to be read")
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
    for where, query, document, relevance in _judgements(source):
        for kind, number, known, other in (
            ("query", query, queries, corpus),
            ("document", document, corpus, queries),
        ):
            if number not in known:
                swapped = "; a row is query, document, relevance" if number in other else ""
                raise DataError(f"{where}: there is no {kind} {number!r}{swapped}")
        if not queries[query]:
            raise DataError(f"{where}: the text of query {query!r} is empty")
        grade = score_of(relevance, where)
        if judged.setdefault(query, {}).setdefault(document, grade) != grade:
            raise DataError(
                f"{where}: document {document!r} of query {query!r} has the relevance {grade:g} "
                f"here and {judged[query][document]:g} before"
            )
    return judged


def _judgements(source: str) -> Iterator[Judgement]:
    path = Path(source)
    kind = Path(path.name.lower().removesuffix(".gz")).suffix
    if path.is_file() and kind not in (".csv", ".jsonl", ".parquet") and not _is_named(path):
        yield from _tab_judgements(path)
        return
    for where, (query, document, relevance) in open_rows_of(source, RELEVANCE).rows():
        query_id, document_id = id_of(query), id_of(document)
        if query_id is None or document_id is None:
            wrong = query if query_id is None else document
            raise DataError(f"{where}: an id must be a text or a number, not {wrong!r}")
        yield where, query_id, document_id, relevance


def _is_named(path: Path) -> bool:
    """Whether the first row names all three columns, in whatever order."""
    _, cells = next(tab_rows(path), (0, []))
    names = {cell.strip().lower() for cell in cells}
    return all(names & set(known) for known in RELEVANCE.names)


def _tab_judgements(path: Path) -> Iterator[Judgement]:
    for line, cells in tab_rows(path):
        where = f"{path}:{line}"
        row = [cell.strip() for cell in (cells if len(cells) > 1 else cells[0].split())]
        if not any(row):
            continue
        if len(row) == 4:
            del row[1]
        if len(row) != 3:
            raise DataError(
                f"{where}: {len(row)} columns instead of 3: query, document and relevance"
            )
        if line > 1 or row[2].lower() not in RELEVANCE.names[2]:
            yield where, row[0], row[1], row[2]
