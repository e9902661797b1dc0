"""A user's own queries, documents and relevance: a folder, three files, a data set of the hub."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from contrasent.data.build.columns import Wanted
from contrasent.data.build.records import open_records
from contrasent.data.hub import Dataset, dataset_parts
from contrasent.data.hub_layout import retrieval_sources
from contrasent.data.readers import tab_rows
from contrasent.errors import ConfigError, DataError
from contrasent.evaluate.own_names import RETRIEVE, joined_sources
from contrasent.evaluate.pairs import is_number, score_of
from contrasent.evaluate.retrieval_read import RetrievalTask
from contrasent.evaluate.retrieval_texts import id_of, read_texts
from contrasent.evaluate.tasks import TaskName
from contrasent.files import sha256_of

_METRICS = ("ndcg@10", "mrr@10", "recall@1", "recall@5", "recall@10", "recall@100")
_KINDS = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz", ".csv", ".csv.gz", ".parquet")
_LAYOUT = (
    "a folder of retrieval data holds corpus and queries (.jsonl with _id and text, or .tsv of id "
    "and text) and qrels.tsv of query, document and relevance, or qrels/test.tsv"
)
_TEXTS = "a file of queries or documents has an id and a text in every row"
_RELEVANCE = Wanted(
    roles=("query's id", "document's id", "relevance"),
    names=(
        ("query-id", "query_id", "queryid", "qid", "query"),
        (
            *("corpus-id", "corpus_id", "document_id", "document-id", "doc_id", "docid"),
            *("passage_id", "pid", "did", "document", "passage"),
        ),
        ("score", "relevance", "rel", "grade", "label"),
    ),
    ranked=("query's id", "document's id", "relevance"),
    bare=(3,),
    mend="mend the row or take it out",
)

Judgement = tuple[str, str, str, Any]
"""Where it stands (``path:line``), the ids of query and document, and the relevance."""


def read_retrieval(name: TaskName) -> RetrievalTask:
    """Read a user's own retrieval task.

    Queries and documents have an id, a text and, if there is one, a title, which is put before the
    text; relevance has the ids of a query and of a document and a number, of which 0 or less is
    that of a document that is not to be found. Columns are known by name, or by this order without
    a header; a file of relevance that is not ``.csv``, ``.jsonl`` or ``.parquet`` may have TREC's
    four columns too. A query without a relevant document is not scored; one that is a document, by
    id and text, does not find itself.

    Args:
        name: named by a folder laid out as those of BEIR (Thakur et al. 2021), by three files
            ``QUERIES+DOCUMENTS+RELEVANCE``, or by a data set of the hub, each perhaps after
            :data:`RETRIEVE`.

    Raises:
        ConfigError: another number of files is named.
        DataError: a file is missing or empty, or a row is not what it should be; the message names
            file and line.
        MissingExtraError: a data set is asked for, but ``datasets`` is not installed.
    """
    sources = joined_sources(name.name.removeprefix(RETRIEVE))
    layout = _TEXTS
    if len(sources) == 1:
        folder = Path(sources[0])
        if folder.is_dir():
            layout = _LAYOUT
            paths = _only(folder, "queries"), _only(folder, "corpus"), _qrels(folder, name.split)
            sources = tuple(map(str, paths))
        elif folder.is_file():
            raise ConfigError(f"{name.name} names one file; {_three()}")
        else:
            sources = retrieval_sources(sources[0], name.split)
    if len(sources) != 3:
        raise ConfigError(f"{name.name} names {len(sources)} files; {_three()}")
    queries, corpus = (read_texts(source, layout) for source in sources[:2])
    return _assembled(name, sources, queries, corpus)


def _three() -> str:
    return "name three, retrieve:QUERIES+DOCUMENTS+RELEVANCE, or a folder that holds them"


def _assembled(
    name: TaskName, sources: Sequence[str], queries: Mapping[str, str], corpus: Mapping[str, str]
) -> RetrievalTask:
    judged = _judged(sources[2], queries, corpus)
    hashes = [_hash(sources[which]) for which in (1, 0, 2)]
    rows = {document: row for row, document in enumerate(corpus)}
    own = {q: rows[q] if corpus.get(q) == queries[q] else None for q in judged}
    wanted: dict[str, dict[int, float]] = {}
    for query, grades in judged.items():
        graded = {rows[document]: grade for document, grade in grades.items() if grade > 0}
        kept = {row: grade for row, grade in graded.items() if row != own[query]}
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
        left_out=tuple(own[query] for query in wanted),
        metrics=_METRICS,
        said=(
            f"{len(wanted):,} of {len(queries):,} queries, those with a relevant document; "
            f"{len(corpus):,} documents"
        ),
        sha256=hashlib.sha256(" ".join(hashes).encode()).hexdigest(),
        asked=tuple(queries.values()),
    )


def _hash(source: str) -> str:
    """Of a file's bytes, or of a data set's revision."""
    path = Path(source)
    parts = None if path.is_file() else dataset_parts(source)
    return sha256_of(path) if parts is None else Dataset(source, parts).sha256(())


def _only(folder: Path, stem: str) -> Path:
    found = [path for kind in _KINDS if (path := folder / f"{stem}{kind}").is_file()]
    if not found:
        raise DataError(f"{folder} has no {stem}.jsonl or {stem}.tsv; {_LAYOUT}")
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise DataError(f"{folder} has {names}; leave the one that is to be read")
    return found[0]


def _qrels(folder: Path, split: str) -> Path:
    """The relevance file of a split."""
    found = folder / "qrels" / f"{split}.tsv"
    if found.is_file():
        return found
    if split == "test" and (folder / "qrels.tsv").is_file():
        return folder / "qrels.tsv"
    others = sorted(path.stem for path in (folder / "qrels").glob("*.tsv"))
    there = f"; there is one for {', '.join(others)}: choose with --splits" if others else ""
    raise DataError(
        f"{folder} has no relevance file qrels/{split}.tsv for its {split} split{there}; {_LAYOUT}"
    )


def _judged(
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
    for where, (query, document, relevance) in open_records(source, _RELEVANCE).rows():
        query_id, document_id = id_of(query), id_of(document)
        if query_id is None or document_id is None:
            wrong = query if query_id is None else document
            raise DataError(f"{where}: an id must be a text or a number, not {wrong!r}")
        yield where, query_id, document_id, relevance


def _is_named(path: Path) -> bool:
    """Whether the first row names all three columns, in whatever order."""
    _, cells = next(tab_rows(path), (0, []))
    names = {cell.strip().lower() for cell in cells}
    return all(names & set(known) for known in _RELEVANCE.names)


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
        if line > 1 or is_number(row[2]):
            yield where, row[0], row[1], row[2]
