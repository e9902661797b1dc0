"""``contrasent encode``, ``similarity``, ``index`` and ``search``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contrasent.cli.parameters import command, load, print_json, require_index
from contrasent.options import (
    AsJson,
    IndexedText,
    InPrecision,
    Loading,
    Measuring,
    MovedEncoder,
    Named,
    OfIndex,
    ReplacingIndex,
)
from contrasent.progress import one_line
from contrasent.settings import ARGUMENT, Spelling, settings

if TYPE_CHECKING:
    from contrasent.search.index import Index
    from contrasent.search.sentences import Sentences
    from contrasent.search.snapshot import Hit


@settings
class SimilarityOptions(Named, Measuring, AsJson):
    """Options of ``similarity``."""

    text_a: Annotated[str, ARGUMENT]
    """A text."""

    text_b: Annotated[str, ARGUMENT]
    """Another text."""


@command
def similarity(options: SimilarityOptions) -> None:
    """Print the cosine of two texts, or the similarity that the encoder states."""
    from contrasent.model.conventions import similarity_of
    from contrasent.search.sentences import similarity as score_of

    encoder = load(options, options.model)
    used = encoder.resolve_precision(options.precision_name)
    score = score_of(encoder, options.text_a, options.text_b, precision=used)
    if not options.json:
        typer.echo(f"{score:.4f}")
        return
    described = {
        similarity_of(encoder): score,
        "model": options.model,
        "pooler": encoder.pooler,
        "head": encoder.head_name,
        "engine": encoder.engine,
        "precision": used,
        "fingerprint": encoder.fingerprint(),
    }
    print_json(described)


@settings
class IndexOptions(Named, IndexedText, Loading, InPrecision, ReplacingIndex):
    """Options of ``build``."""

    source: Annotated[str, Spelling(argument=True, metavar="INPUT")]
    """A file or data set with one text per row; - reads lines of standard input; or a folder by
    'encode --shards parquet' with the same MODEL, whose vectors are taken."""

    index: Annotated[Path, ARGUMENT]
    """The folder of the new index."""

    kind: str = "auto"
    """flat (exact), hnsw, ivfpq (OPQ+IVF-PQ, the smallest), auto: one of these by the number of
    texts; milvus (exact) or milvus-hnsw: in Milvus Lite."""


@command
def build(options: IndexOptions) -> None:
    """Embed texts and write an index."""
    from contrasent.errors import ConfigError, pick
    from contrasent.model.precision import PRECISIONS
    from contrasent.search.index import Index
    from contrasent.search.nearest import KINDS, kind_for
    from contrasent.search.sentences import open_sentences
    from contrasent.search.shard_writers import FinishedShards
    from contrasent.search.storage import require_folder

    pick("precision", options.precision, PRECISIONS)
    pick("kind of index", options.kind, ("auto", *KINDS))
    require_folder(options.index, options.overwrite)
    how: dict[str, Any] = {
        "kind": options.kind,
        "overwrite": options.overwrite,
        "show_progress": True,
    }
    if Path(options.source).is_dir():
        if (options.columns, options.ids, options.precision) != (None, None, "auto"):
            raise ConfigError(
                f"{options.source} holds vectors: leave --columns, --ids, --precision out"
            )
        built = Index.build(
            load(options, options.model), FinishedShards.open(options.source), options.index, **how
        )
    else:
        with open_sentences(options.source, options.columns, options.ids) as sentences:
            kind_for(_announce(sentences), options.kind)
            names = sentences.ids()
            encoder = load(options, options.model)
            built = Index.build(
                encoder, sentences, options.index, names, precision=options.precision, **how
            )
    width = built.manifest.encoder.width
    typer.echo(
        f"{options.index}: {len(built)} texts, {width} dimensions each{_searched(built)}", err=True
    )


def _searched(index: Index) -> str:
    """How an index is searched."""
    from contrasent.search.nearest import MILVUS

    ann = index.manifest.ann
    if index.kind in MILVUS:
        return ", in Milvus Lite"
    if ann is None:
        return ", searched exactly"
    return f", searched by {ann.kind} (recall@10 {ann.recall:.3f})"


@settings
class AddOptions(OfIndex, IndexedText, MovedEncoder):
    """Options of ``add``."""

    source: Annotated[str, Spelling(argument=True, metavar="INPUT")]
    """A file or data set with one text per row; - reads lines of standard input."""


@command
def add(options: AddOptions) -> None:
    """Embed more texts and append them to an index."""
    require_index(options.index)
    from contrasent.search.index import Index
    from contrasent.search.makers import encoder_of
    from contrasent.search.sentences import open_sentences

    opened = Index.open(options.index)
    with open_sentences(options.source, options.columns, options.ids) as sentences:
        _announce(sentences)
        before, loaded = len(opened), encoder_of(opened, options.encoder, options.device)
        opened.add(loaded, sentences, sentences.ids(), show_progress=True)
    typer.echo(
        f"{options.index}: {len(opened)} texts, {len(opened) - before} of them new", err=True
    )
    if opened.needs_optimizing:
        opened.optimize(show_progress=True)


@settings
class RemoveOptions(OfIndex):
    """Options of ``remove``."""

    ids: Annotated[list[str], ARGUMENT]
    """Ids of texts, or - for lines of standard input."""

    missing_ok: bool = False
    """Pass over ids that are not in the index."""


@command
def remove(options: RemoveOptions) -> None:
    """Remove texts from an index, all of them or none."""
    from contrasent.search.index import Index

    opened = Index.open(options.index)
    removed = opened.remove(_lines(options.ids), missing_ok=options.missing_ok)
    typer.echo(f"{options.index}: {len(opened)} texts, {removed} removed", err=True)
    if opened.needs_optimizing:
        opened.optimize(show_progress=True)


@settings
class OptimizeOptions(OfIndex):
    """Options of ``optimize``."""

    kind: str | None = None
    """flat (exact), hnsw, ivfpq (OPQ+IVF-PQ, the smallest), auto: one of these by the number of
    texts; milvus (exact) or milvus-hnsw: in Milvus Lite; else what it was built as."""


@command
def optimize(options: OptimizeOptions) -> None:
    """Free the room of removed texts, and cover added ones by the index's kind of search."""
    from contrasent.search.index import Index

    opened = Index.open(options.index)
    opened.optimize(options.kind, show_progress=True)
    typer.echo(f"{options.index}: {len(opened)} texts{_searched(opened)}", err=True)


@settings
class CopyOptions(OfIndex, ReplacingIndex):
    """Options of ``copy``."""

    new: Annotated[Path, ARGUMENT]
    """The folder of the copy."""

    kind: str | None = None
    """flat (exact), hnsw, ivfpq (OPQ+IVF-PQ, the smallest), auto: one of these by the number of
    texts; milvus (exact) or milvus-hnsw: in Milvus Lite; else the same."""


@command
def copy(options: CopyOptions) -> None:
    """Write an index to another folder, also into Milvus Lite or out of it."""
    require_index(options.index)
    from contrasent.search.index import Index

    copied = Index.open(options.index).copy(
        options.new, options.kind, overwrite=options.overwrite, show_progress=True
    )
    typer.echo(f"{options.new}: {len(copied)} texts{_searched(copied)}", err=True)


@settings
class InfoOptions(OfIndex, AsJson):
    """Options of ``info``."""


@command
def info(options: InfoOptions) -> None:
    """Say what an index holds, and which encoder made it."""
    require_index(options.index)
    from dataclasses import asdict

    from contrasent.search.index import Index

    opened = Index.open(options.index)
    files = [path for path in options.index.rglob("*") if path.is_file()]
    manifest = opened.manifest
    described = {
        "index": str(options.index),
        "texts": len(opened),
        "segments": len(manifest.segments),
        "bytes": sum(path.stat().st_size for path in files),
        **{"encoder" if k == "name" else k: v for k, v in asdict(manifest.encoder).items()},
        "similarity": manifest.similarity,
        "kind": opened.kind,
    }
    if manifest.ann is not None:
        described |= {"covers": manifest.ann.rows, "recall@10": manifest.ann.recall}
    if options.json:
        print_json(described)
        return
    for key, value in described.items():
        typer.echo(f"{key:<12} {one_line(str(value))}")


def _announce(sentences: Sentences) -> int:
    total = sentences.count()
    typer.echo(f"{sentences.source}: {total} texts; {sentences.examples.columns}", err=True)
    if sentences.examples.skipped:
        typer.echo(f"{sentences.examples.skipped} rows with an empty cell are left out", err=True)
    return total


def _lines(words: list[str]) -> list[str]:
    """The words, or the lines of standard input in place of a single ``-``."""
    if words != ["-"]:
        return words
    from contrasent.data.readers import text_lines

    lines = text_lines(typer.get_binary_stream("stdin"), "standard input")
    return [line.rstrip("\r\n") for _, line in lines if line.strip()]


@settings
class SearchOptions(MovedEncoder, AsJson):
    """Options of ``search``."""

    index: Annotated[Path, ARGUMENT]
    """A folder made by: contrasent index build"""

    query: Annotated[list[str], ARGUMENT]
    """Texts to look for, or - for lines of standard input."""

    top_k: int = 10
    """Hits to show."""

    threshold: float | None = None
    """Show only hits with this cosine or a larger one; 'contrasent calibrate' suggests one."""

    only: Annotated[str | None, Spelling(metavar="PATTERN")] = None
    """Search texts with ids like this; % stands for any characters, _ for one."""


@command
def search(options: SearchOptions) -> None:
    """Print the texts of an index that are nearest to a query, or to each of several."""
    require_index(options.index)
    from contrasent.search.index import Index
    from contrasent.search.makers import encoder_of
    from contrasent.search.snapshot import require_query

    queries = _lines(options.query)
    opened = Index.open(options.index)
    for each in queries:
        require_query(
            each, options.top_k, "the query", options.threshold, opened.manifest.similarity
        )
    results = opened.search(
        encoder_of(opened, options.encoder, options.device),
        queries,
        options.top_k,
        options.threshold,
        options.only,
    )
    several = len(queries) > 1
    for text, hits in zip(queries, results, strict=True):
        if options.json:
            for rank, (hit, first) in enumerate(zip(hits, _first_ranks(hits), strict=True), 1):
                row = {"rank": rank, "score": hit.score, "id": hit.id, "text": hit.text}
                same = {} if first == rank else {"same_text_as": hits[first - 1].id}
                print_json({"query": text, **row, **same} if several else {**row, **same})
        else:
            if several:
                typer.echo(f"{'' if text is queries[0] else chr(10)}{one_line(text)}")
            _print_hits(hits)


def _first_ranks(hits: list[Hit]) -> list[int]:
    """The rank of the first hit with the same text, of each."""
    texts = [hit.text for hit in hits]
    return [texts.index(text) + 1 for text in texts]


def _print_hits(hits: list[Hit]) -> None:
    if not hits:
        typer.echo("no hit")
        return
    ids = [one_line(hit.id) for hit in hits]
    width = max(len("id"), *map(len, ids))
    typer.echo(f"rank   score  {'id':<{width}}  text")
    for rank, (hit, id_, first) in enumerate(zip(hits, ids, _first_ranks(hits), strict=True), 1):
        text = one_line(hit.text) if first == rank else f"(the same text as rank {first})"
        typer.echo(f"{rank:>4} {hit.score:>7.4f}  {id_:<{width}}  {text}")
