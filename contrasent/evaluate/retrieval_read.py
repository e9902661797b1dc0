"""Queries, documents and what is to be found: DiffCSE's task, and a user's own folder."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrasent.data.build.records import as_text
from contrasent.data.readers import json_rows, tab_rows
from contrasent.errors import DataError
from contrasent.evaluate.pairs import is_number, score_of
from contrasent.evaluate.read import load
from contrasent.evaluate.tasks import TaskName
from contrasent.files import sha256_of

_SAME = 5.0
_OF_FOLDERS = ("ndcg@10", "mrr@10", "recall@1", "recall@5", "recall@10", "recall@100")
_KINDS = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz")
_IDS = ("_id", "id")
_LAYOUT = (
    "a folder of retrieval data holds corpus and queries (.jsonl with _id and text, or .tsv of id "
    "and text) and qrels.tsv of query, document and relevance, or qrels/test.tsv"
)

Row = tuple[str, str, str]
"""Where a row stands (``path:line``), its id and its text."""


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
    """

    name: TaskName
    corpus: tuple[str, ...]
    queries: tuple[str, ...]
    relevant: tuple[Mapping[int, float], ...]
    left_out: tuple[int | None, ...]
    metrics: tuple[str, ...]
    said: str
    sha256: str


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
    return RetrievalTask(
        name=name,
        corpus=tuple(places),
        queries=tuple(query for query, _ in both),
        relevant=tuple({places[other]: 1} for _, other in both),
        left_out=tuple(places[query] for query, _ in both),
        metrics=("recall@1", "recall@5", "recall@10"),
        said=(
            f"{len(both):,} queries, both sentences of the {len(same)} pairs rated 5; "
            f"{len(places):,} documents, the different ones of {2 * len(pairs.gold):,} sentences, "
            "the query left out (DiffCSE, Table 10)"
        ),
        sha256=source.sha256,
    )


def read_folder(name: TaskName) -> RetrievalTask:
    """Read a user's folder, laid out as those of BEIR (Thakur et al. 2021).

    ``corpus`` and ``queries`` are ``.jsonl`` with ``_id``, ``text`` and, if there is one,
    ``title``, which is put before the text; or ``.tsv`` of id and text, with or without a header
    that names these three. ``qrels/SPLIT.tsv``, or ``qrels.tsv`` for the test split, has the
    columns query, document, relevance, or the four of TREC; a relevance of 0 or less is that of a
    document that is not to be found. A query without a relevant document is not scored; one that is
    a document, by id and text, does not find itself.

    Raises:
        DataError: a file is missing or empty, or a row is not what it should be; the message names
            file and line.
    """
    folder = Path(name.name)
    paths = [_only(folder, "corpus"), _only(folder, "queries"), _qrels(folder, name.split)]
    corpus, queries = (_texts(path) for path in paths[:2])
    judged = _judged(paths[2], queries, corpus)
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
            f"{paths[2]}: no query has a relevant document, so there is nothing to find"
        )
    digest = hashlib.sha256(" ".join(map(sha256_of, paths)).encode())
    return RetrievalTask(
        name=name,
        corpus=tuple(corpus.values()),
        queries=tuple(queries[query] for query in wanted),
        relevant=tuple(wanted.values()),
        left_out=tuple(own[query] for query in wanted),
        metrics=_OF_FOLDERS,
        said=(
            f"{len(wanted):,} of {len(queries):,} queries, those with a relevant document; "
            f"{len(corpus):,} documents"
        ),
        sha256=digest.hexdigest(),
    )


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


def _texts(path: Path) -> dict[str, str]:
    """Texts by their ids, in the order of the file."""
    found: dict[str, str] = {}
    lines: dict[str, str] = {}
    is_json = path.name.removesuffix(".gz").endswith(".jsonl")
    for where, number, text in _json_texts(path) if is_json else _tab_texts(path):
        if not number:
            raise DataError(f"{where}: the id is empty")
        if number in found:
            raise DataError(f"{where}: the id {number!r} is that of {lines[number]} too")
        found[number], lines[number] = text, where
    if not found:
        raise DataError(f"{path} is empty; {_LAYOUT}")
    return found


def _json_texts(path: Path) -> Iterator[Row]:
    for line, value in json_rows(path):
        where = f"{path}:{line}"
        if not isinstance(value, dict):
            raise DataError(f"{where}: expected an object with _id and text")
        number = next((value[name] for name in _IDS if name in value), None)
        if isinstance(number, bool) or not isinstance(number, str | int) or "text" not in value:
            raise DataError(f"{where}: expected an object with _id, a text or a number, and text")
        yield where, str(number).strip(), _joined(value.get("title"), value["text"], where)


def _tab_texts(path: Path) -> Iterator[Row]:
    columns: tuple[int, int, int | None] = (0, 1, None)
    width = 2
    for line, cells in tab_rows(path):
        where = f"{path}:{line}"
        names = [cell.strip().lower() for cell in cells]
        if line == 1 and "text" in names and any(name in names for name in _IDS):
            number = next(names.index(name) for name in _IDS if name in names)
            title = names.index("title") if "title" in names else None
            columns, width = (number, names.index("text"), title), len(cells)
        elif any(names):
            if len(cells) != width:
                raise DataError(
                    f"{where}: {len(cells)} tab-separated columns instead of {width}; a row is an "
                    "id and a text, unless a header names _id, text and title"
                )
            title_cell = None if columns[2] is None else cells[columns[2]]
            text = _joined(title_cell, cells[columns[1]], where)
            yield where, cells[columns[0]].strip(), text


def _joined(title: Any, text: Any, where: str) -> str:
    """Title and text as one, as BEIR joins them; may be empty, as some documents of BEIR are."""
    return f"{as_text(title, where)} {as_text(text, where)}".strip()


def _judged(
    path: Path, queries: Mapping[str, str], corpus: Mapping[str, str]
) -> dict[str, dict[str, float]]:
    """Relevance of documents by the id of the query, in the order of the file."""
    judged: dict[str, dict[str, float]] = {}
    for where, cells in _judgements(path):
        query, document, relevance = cells
        for kind, number, known in (("query", query, queries), ("document", document, corpus)):
            if number not in known:
                raise DataError(f"{where}: there is no {kind} {number!r}")
        if not queries[query]:
            raise DataError(f"{where}: the text of query {query!r} is empty")
        grade = score_of(relevance, where)
        if judged.setdefault(query, {}).setdefault(document, grade) != grade:
            raise DataError(
                f"{where}: document {document!r} of query {query!r} has the relevance {grade:g} "
                f"here and {judged[query][document]:g} before"
            )
    return judged


def _judgements(path: Path) -> Iterator[tuple[str, Sequence[str]]]:
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
            yield where, row
