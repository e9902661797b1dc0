"""``contrasent encode``, ``similarity``, ``index`` and ``search``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contrasent.cli.options import (
    Device,
    Json,
    Loading,
    Measuring,
    Model,
    Precision,
    grouped,
    print_json,
    require_index,
)

if TYPE_CHECKING:
    from contrasent.search.index import Index
    from contrasent.search.sentences import Sentences
    from contrasent.search.snapshot import Hit


Columns = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="The column of the texts, by name or by number from 0."),
]


@grouped
def similarity(
    *,
    model: Model,
    text_a: Annotated[str, typer.Argument(help="A text.")],
    text_b: Annotated[str, typer.Argument(help="Another text.")],
    measuring: Measuring,
    json: Json = False,
) -> None:
    """Print the cosine of two texts, or the similarity that the encoder states."""
    from contrasent.model.conventions import similarity_of
    from contrasent.search.sentences import similarity as score_of

    encoder = measuring.load(model)
    used = encoder.resolve_precision(measuring.precision_name)
    score = score_of(encoder, text_a, text_b, precision=used)
    if not json:
        typer.echo(f"{score:.4f}")
        return
    described = {
        similarity_of(encoder): score,
        "model": model,
        "pooler": encoder.pooler,
        "head": encoder.head_name,
        "engine": encoder.engine,
        "precision": used,
        "fingerprint": encoder.fingerprint(),
    }
    print_json(described)


Source = Annotated[
    str,
    typer.Argument(
        metavar="INPUT",
        help="A file or data set with one text per row; - reads lines of standard input.",
    ),
]
MovedEncoder = Annotated[
    str | None,
    typer.Option("--encoder", help="Where the encoder of the index is, if it has moved."),
]
Ids = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="The column of the ids; else texts are numbered from 0."),
]
Folder = Annotated[Path, typer.Argument(help="The index.")]
KINDS = (
    "flat (exact), hnsw, ivfpq (OPQ+IVF-PQ, the smallest), auto: one of these by the number of "
    "texts; milvus (exact) or milvus-hnsw: in Milvus Lite"
)
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace an index that is there already.")
]


@grouped
def build(  # noqa: PLR0913 - the arguments are the command's options
    *,
    model: Model,
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A file or data set with one text per row; - reads lines of standard input; or a "
            "folder by 'encode --shards parquet' with the same MODEL, whose vectors are taken.",
        ),
    ],
    index: Annotated[Path, typer.Argument(help="The folder to write.")],
    columns: Columns = None,
    ids: Ids = None,
    loading: Loading,
    precision: Precision = "auto",
    kind: Annotated[str, typer.Option(help=f"{KINDS}.")] = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Embed texts and write an index."""
    from contrasent.errors import ConfigError, pick
    from contrasent.model.precision import PRECISIONS
    from contrasent.search.index import Index
    from contrasent.search.nearest import KINDS, kind_for
    from contrasent.search.sentences import open_sentences
    from contrasent.search.shard_writers import FinishedShards
    from contrasent.search.storage import require_folder

    pick("precision", precision, PRECISIONS)
    pick("kind of index", kind, ("auto", *KINDS))
    require_folder(index, overwrite)
    how: dict[str, Any] = {"kind": kind, "overwrite": overwrite, "show_progress": True}
    if Path(source).is_dir():
        if (columns, ids, precision) != (None, None, "auto"):
            raise ConfigError(f"{source} holds vectors: leave --columns, --ids, --precision out")
        built = Index.build(loading.load(model), FinishedShards.open(source), index, **how)
    else:
        with open_sentences(source, columns, ids) as sentences:
            kind_for(_announce(sentences), kind)
            names = sentences.ids()
            encoder = loading.load(model)
            built = Index.build(encoder, sentences, index, names, precision=precision, **how)
    width = built.manifest.encoder.width
    typer.echo(f"{index}: {len(built)} texts, {width} dimensions each{_searched(built)}", err=True)


def _searched(index: Index) -> str:
    """How an index is searched."""
    from contrasent.search.nearest import MILVUS

    ann = index.manifest.ann
    if index.kind in MILVUS:
        return ", in Milvus Lite"
    if ann is None:
        return ", searched exactly"
    return f", searched by {ann.kind} (recall@10 {ann.recall:.3f})"


def add(
    index: Folder,
    source: Source,
    columns: Columns = None,
    ids: Ids = None,
    encoder: MovedEncoder = None,
    device: Device = None,
) -> None:
    """Embed more texts and append them to an index."""
    require_index(index)
    from contrasent.search.index import Index
    from contrasent.search.makers import encoder_of
    from contrasent.search.sentences import open_sentences

    opened = Index.open(index)
    with open_sentences(source, columns, ids) as sentences:
        _announce(sentences)
        before, loaded = len(opened), encoder_of(opened, encoder, device)
        opened.add(loaded, sentences, sentences.ids(), show_progress=True)
    typer.echo(f"{index}: {len(opened)} texts, {len(opened) - before} of them new", err=True)
    if opened.needs_optimizing:
        opened.optimize(show_progress=True)


def remove(
    index: Folder,
    ids: Annotated[
        list[str], typer.Argument(help="Ids of texts, or - for lines of standard input.")
    ],
    missing_ok: Annotated[
        bool, typer.Option("--missing-ok", help="Pass over ids that are not in the index.")
    ] = False,
) -> None:
    """Remove texts from an index, all of them or none."""
    from contrasent.search.index import Index

    opened = Index.open(index)
    removed = opened.remove(_lines(ids), missing_ok=missing_ok)
    typer.echo(f"{index}: {len(opened)} texts, {removed} removed", err=True)
    if opened.needs_optimizing:
        opened.optimize(show_progress=True)


def optimize(
    index: Folder,
    kind: Annotated[str | None, typer.Option(help=f"{KINDS}; else what it was built as.")] = None,
) -> None:
    """Free the room of removed texts, and cover added ones by the index's kind of search."""
    from contrasent.search.index import Index

    opened = Index.open(index)
    opened.optimize(kind, show_progress=True)
    typer.echo(f"{index}: {len(opened)} texts{_searched(opened)}", err=True)


def copy(
    index: Folder,
    new: Annotated[Path, typer.Argument(help="The folder to write.")],
    kind: Annotated[str | None, typer.Option(help=f"{KINDS}; else the same.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write an index to another folder, also into Milvus Lite or out of it."""
    require_index(index)
    from contrasent.search.index import Index

    copied = Index.open(index).copy(new, kind, overwrite=overwrite, show_progress=True)
    typer.echo(f"{new}: {len(copied)} texts{_searched(copied)}", err=True)


def info(
    index: Folder,
    json: Json = False,
) -> None:
    """Say what an index holds, and which encoder made it."""
    require_index(index)
    from dataclasses import asdict

    from contrasent.search.index import Index

    opened = Index.open(index)
    files = [path for path in index.rglob("*") if path.is_file()]
    manifest = opened.manifest
    described = {
        "index": str(index),
        "texts": len(opened),
        "segments": len(manifest.segments),
        "bytes": sum(path.stat().st_size for path in files),
        **{"encoder" if k == "name" else k: v for k, v in asdict(manifest.encoder).items()},
        "similarity": manifest.similarity,
        "kind": opened.kind,
    }
    if manifest.ann is not None:
        described |= {"covers": manifest.ann.rows, "recall@10": manifest.ann.recall}
    if json:
        print_json(described)
        return
    for key, value in described.items():
        typer.echo(f"{key:<12} {value}")


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


def search(  # noqa: PLR0913 - the arguments are the command's options
    index: Annotated[Path, typer.Argument(help="A folder made by: contrasent index build")],
    query: Annotated[
        list[str],
        typer.Argument(help="Texts to look for, or - for lines of standard input."),
    ],
    top_k: Annotated[int, typer.Option("--top-k", help="Hits to show.")] = 10,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Show only hits with this cosine or a larger one; 'contrasent calibrate' suggests "
            "one."
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN",
            help="Search texts with ids like this; % stands for any characters, _ for one.",
        ),
    ] = None,
    encoder: MovedEncoder = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Print the texts of an index that are nearest to a query, or to each of several."""
    require_index(index)
    from contrasent.search.index import Index
    from contrasent.search.makers import encoder_of
    from contrasent.search.snapshot import require_query

    queries = _lines(query)
    opened = Index.open(index)
    for each in queries:
        require_query(each, top_k, "the query", threshold, opened.manifest.similarity)
    results = opened.search(encoder_of(opened, encoder, device), queries, top_k, threshold, only)
    several = len(queries) > 1
    for text, hits in zip(queries, results, strict=True):
        if json:
            for rank, hit in enumerate(hits, start=1):
                row = {"rank": rank, "score": hit.score, "id": hit.id, "text": hit.text}
                print_json({"query": text, **row} if several else row)
        else:
            if several:
                typer.echo(f"{'' if text is queries[0] else chr(10)}{' '.join(text.split())}")
            _print_hits(hits)


def _print_hits(hits: list[Hit]) -> None:
    if not hits:
        typer.echo("no hit")
        return
    width = max(len("id"), *(len(hit.id) for hit in hits))
    typer.echo(f"rank   score  {'id':<{width}}  text")
    for rank, hit in enumerate(hits, start=1):
        text = " ".join(hit.text.split())
        typer.echo(f"{rank:>4} {hit.score:>7.4f}  {hit.id:<{width}}  {text}")
