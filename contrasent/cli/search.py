"""``contrasent encode``, ``similarity``, ``index`` and ``search``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import PositiveInt

from contrasent.cli.parameters import command, load, print_json
from contrasent.options import (
    AsJson,
    IndexedText,
    InPrecision,
    Loading,
    Measuring,
    MovedEncoder,
    Named,
    OfIndex,
    Replacing,
    Sharding,
    TextColumn,
)
from contrasent.progress import one_line
from contrasent.settings import ARGUMENT, Spelling, settings

if TYPE_CHECKING:
    from contrasent.encode.sentences import Sentences
    from contrasent.encode.shards import Written
    from contrasent.model.loading import LoadedEncoder
    from contrasent.search.index import Index
    from contrasent.search.storage import Hit


@settings
class EncodeOptions(Sharding, Named, Loading, InPrecision, TextColumn):
    """Options of ``encode``."""

    source: Annotated[str, Spelling(argument=True, metavar="INPUT")]
    """A file or data set with one sentence per row, the URL of a Parquet file or of a folder of
    them, as s3://bucket/folder; - reads lines of standard input. Blank lines are left out, so they
    have no row in OUTPUT."""

    output: Annotated[Path, ARGUMENT]
    """.npy: a float32 matrix, a row per sentence; .parquet: columns text, embedding; with --shards
    a folder."""

    workers: PositiveInt = 1
    """Processes that share the work; on GPUs, one for each."""

    shard: Annotated[str | None, Spelling(metavar="I/N")] = None
    """Be worker I of N, all with the same INPUT and OUTPUT, on any machines; who finishes last
    makes OUTPUT."""

    ray: bool = False
    """Let Ray place the workers, on the cluster of RAY_ADDRESS."""

    unique: bool = False
    """Leave out sentences that came before; INPUT is read once. A .parquet OUTPUT says which
    sentence a row is of."""

    overwrite: bool = False
    """Replace OUTPUT, and shards made from something else."""


@command
def encode(options: EncodeOptions) -> None:
    """Write the embedding of every sentence to a file; safe to run again after an interruption."""
    from contrasent.encode.sentences import open_sentences
    from contrasent.encode.shards import require_output, write_embeddings
    from contrasent.encode.workers import Worker, end_with_parent
    from contrasent.errors import ConfigError
    from contrasent.profiling import keep_few_compiled_products

    end_with_parent()
    worker = None if options.shard is None else Worker.parse(options.shard)
    starts = options.workers > 1 or options.ray
    if starts and worker is not None:
        raise ConfigError(f"--shard {options.shard} is one worker, and --workers starts all")
    refused = {
        "each worker reads INPUT, but - can be read once; name a file": options.source == "-",
        "--overwrite would let each worker remove what the others wrote; remove OUTPUT, and the "
        "folder of its shards if there is one, and start the workers without it": options.overwrite,
    }
    for message, given in refused.items():
        if given and (starts or worker is not None):
            raise ConfigError(message)
    require_output(options.output, options.overwrite, options.shards, shared=worker is not None)
    keep_few_compiled_products()
    with open_sentences(options.source, options.columns, unique=options.unique) as sentences:
        _announce(sentences, "sentences", f", and have no row in {options.output}")
        encoder = load(options, options.model)
        others = partial(_run_workers, options, encoder) if starts else None
        written = write_embeddings(
            encoder,
            sentences,
            options.output,
            options,
            overwrite=options.overwrite,
            show_progress=not starts,
            worker=worker,
            run_others=others,
        )
    _report(options.output, written, encoder.max_tokens)


def _run_workers(options: EncodeOptions, encoder: LoadedEncoder) -> None:
    """Start the workers, and wait for them."""
    import sys

    import torch

    from contrasent.encode.workers import commands, run_processes, run_ray

    device = getattr(encoder, "device", torch.device("cpu"))
    devices = torch.cuda.device_count() if device.type == "cuda" else 0
    run = run_ray if options.ray else run_processes
    run(commands(sys.argv[1:], options.workers), devices)


def _report(output: Path, written: Written, max_tokens: int) -> None:
    if written.already:
        typer.echo(f"{output} is made already", err=True)
        return
    if written.resumed:
        typer.echo(f"{written.resumed} rows came from shards of an earlier run", err=True)
    if written.truncated:
        typer.echo(
            f"{written.truncated} sentences were longer than {max_tokens} tokens and cut", err=True
        )
    new = written.rows - written.resumed
    rate = f", {new / written.seconds:.0f} sentences/s" if new else ""
    if written.missing:
        typer.echo(
            f"{output} is made by the worker that finishes last: {written.missing} shards are "
            f"missing, {written.rows} rows are written{rate}",
            err=True,
        )
        return
    typer.echo(f"{output}: {written.rows} rows of {written.width} dimensions{rate}", err=True)


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
    from contrasent.search.nearest import text_similarity

    encoder = load(options, options.model)
    used = encoder.resolve_precision(options.precision_name)
    score = text_similarity(encoder, options.text_a, options.text_b, precision=used)
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
class IndexOptions(Named, IndexedText, Loading, InPrecision, Replacing):
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
    from math import inf

    from contrasent.encode.sentences import open_sentences
    from contrasent.encode.shards import FinishedShards
    from contrasent.errors import ConfigError
    from contrasent.search.index import Index, require_folder
    from contrasent.search.nearest import kind_for

    kind_for(inf, options.kind)
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
    from contrasent.encode.sentences import open_sentences
    from contrasent.search.index import Index

    opened = Index.open(options.index)
    with open_sentences(options.source, options.columns, options.ids) as sentences:
        _announce(sentences)
        before, loaded = len(opened), opened.encoder(options.encoder, options.device)
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

    kind: Annotated[str | None, Spelling(of=IndexOptions, end="Else what it was built as.")] = None


@command
def optimize(options: OptimizeOptions) -> None:
    """Free the room of removed texts, and cover added ones by the index's kind of search."""
    from contrasent.search.index import Index

    opened = Index.open(options.index)
    opened.optimize(options.kind, show_progress=True)
    typer.echo(f"{options.index}: {len(opened)} texts{_searched(opened)}", err=True)


@settings
class CopyOptions(OfIndex, Replacing):
    """Options of ``copy``."""

    new: Annotated[Path, ARGUMENT]
    """The folder of the copy."""

    kind: Annotated[str | None, Spelling(of=IndexOptions, end="Else the same.")] = None


@command
def copy(options: CopyOptions) -> None:
    """Write an index to another folder, also into Milvus Lite or out of it."""
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


def _announce(sentences: Sentences, what: str = "texts", gone: str = "") -> int:
    total = sentences.count()
    typer.echo(f"{sentences.source}: {total} {what}; {sentences.examples.columns}", err=True)
    if skipped := sentences.examples.skipped:
        typer.echo(f"{skipped} rows with an empty cell are left out{gone}", err=True)
    return total


def _lines(words: list[str]) -> list[str]:
    """The words, or the lines of standard input in place of a single ``-``."""
    if words != ["-"]:
        return words
    from contrasent.data.readers import text_lines

    lines = text_lines(typer.get_binary_stream("stdin"), "standard input")
    return [line.rstrip("\r\n") for _, line in lines if line.strip()]


@settings
class SearchOptions(OfIndex, MovedEncoder, AsJson):
    """Options of ``search``."""

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
    from contrasent.search.index import Index, require_search

    queries = _lines(options.query)
    opened = Index.open(options.index)
    require_search(options.top_k, options.threshold, opened.manifest.similarity, queries)
    results = opened.search(
        opened.encoder(options.encoder, options.device),
        queries,
        options.top_k,
        options.threshold,
        options.only,
    )
    several = len(queries) > 1
    for number, (text, hits) in enumerate(zip(queries, results, strict=True)):
        texts = [hit.text for hit in hits]
        first = [texts.index(each) for each in texts]  # the number of the first of this text
        if not options.json:
            if several:
                typer.echo(f"{chr(10) if number else ''}{one_line(text)}")
            _print_hits(hits, first)
            continue
        for rank, (hit, same) in enumerate(zip(hits, first, strict=True), 1):
            row: dict[str, Any] = {"query": text} if several else {}
            row |= {"rank": rank, "score": hit.score, "id": hit.id, "text": hit.text}
            print_json(row | ({} if same == rank - 1 else {"same_text_as": hits[same].id}))


def _print_hits(hits: list[Hit], first: list[int]) -> None:
    if not hits:
        typer.echo("no hit")
        return
    ids = [one_line(hit.id) for hit in hits]
    width = max(len("id"), *map(len, ids))
    typer.echo(f"rank   score  {'id':<{width}}  text")
    for rank, (hit, id_, same) in enumerate(zip(hits, ids, first, strict=True), 1):
        text = one_line(hit.text) if same == rank - 1 else f"(the same text as rank {same + 1})"
        typer.echo(f"{rank:>4} {hit.score:>7.4f}  {id_:<{width}}  {text}")
