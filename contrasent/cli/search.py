"""``contrasent encode``, ``similarity``, ``index`` and ``search``."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
)

if TYPE_CHECKING:
    from contrasent.model.encoder import SentenceEncoder
    from contrasent.model.word_encoder import WordEncoder
    from contrasent.profiling import StepProfile
    from contrasent.search.sentences import Sentences
    from contrasent.search.shards import Written


Columns = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="The column of the texts, by name or by number from 0."),
]


@grouped
def encode(  # noqa: PLR0913 - the arguments are the command's options
    *,
    model: Model,
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A file or data set with one sentence per row; - reads lines of standard input. "
            "Blank lines are left out, so they have no row in OUTPUT.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Argument(
            help=".npy: a float32 matrix, a row per sentence; .parquet: columns text, embedding."
        ),
    ],
    loading: Loading,
    precision: Precision = "auto",
    batch_tokens: Annotated[
        int | None, typer.Option(help="Tokens computed at once; memory grows with it.")
    ] = None,
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize",
            help="Scale every row to length 1; else as the encoder was saved.",
        ),
    ] = None,
    columns: Columns = None,
    shard_size: Annotated[
        int, typer.Option(help="Sentences written at a time; a kill loses no more than that.")
    ] = 65_536,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace OUTPUT, and shards made from something else."),
    ] = False,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json.gz",
            help="Record batches 4 to 6 into this trace, and tell where their time went.",
        ),
    ] = None,
) -> None:
    """Write the embedding of every sentence to a file; a rerun after a kill goes on."""
    from contrasent.profiling import StepProfile
    from contrasent.search.sentences import open_sentences
    from contrasent.search.shards import Settings, require_output, write_embeddings

    settings = Settings(
        batch_tokens=batch_tokens, normalize=normalize, precision=precision, shard_size=shard_size
    )
    require_output(output, overwrite)
    recorded = None if profile is None else StepProfile(profile)
    with open_sentences(source, columns) as sentences:
        total = sentences.count()
        typer.echo(f"{sentences.source}: {total} sentences; {sentences.examples.columns}", err=True)
        if skipped := sentences.examples.skipped:
            typer.echo(
                f"{skipped} rows without a sentence are left out: the rows of {output} are those "
                "of the other rows, in order",
                err=True,
            )
        encoder = loading.load(model)
        with _recording(recorded, encoder):
            written = write_embeddings(
                encoder, sentences, output, settings, overwrite=overwrite, show_progress=True
            )
    _report(output, written, encoder.max_tokens)
    if recorded is not None:
        from rich.console import Console

        from contrasent.report.table import print_profile

        print_profile(Console(stderr=True), recorded)


def _recording(
    recorded: StepProfile | None, encoder: SentenceEncoder | WordEncoder
) -> AbstractContextManager[object]:
    from contrasent.errors import ConfigError
    from contrasent.model.word_encoder import WordEncoder

    if recorded is None:
        return nullcontext()
    if isinstance(encoder, WordEncoder):
        raise ConfigError(f"{encoder.name} holds word vectors: nothing to --profile")
    return recorded.of_forward(encoder.backbone)


def _report(output: Path, written: Written, max_tokens: int) -> None:
    if written.resumed:
        typer.echo(f"{written.resumed} rows came from shards of an earlier run", err=True)
    if written.truncated:
        typer.echo(
            f"{written.truncated} sentences were longer than {max_tokens} tokens and cut", err=True
        )
    new = written.rows - written.resumed
    rate = f", {new / written.seconds:.0f} sentences/s" if new else ""
    typer.echo(f"{output}: {written.rows} rows of {written.width} dimensions{rate}", err=True)


@grouped
def similarity(
    *,
    model: Model,
    text_a: Annotated[str, typer.Argument(help="A text.")],
    text_b: Annotated[str, typer.Argument(help="Another text.")],
    measuring: Measuring,
    json: Json = False,
) -> None:
    """Print the cosine of the embeddings of two texts."""
    from contrasent.search.index import similarity as cosine_of

    encoder = measuring.load(model)
    used = encoder.resolve_precision(measuring.precision_name)
    cosine = cosine_of(encoder, text_a, text_b, precision=used)
    if not json:
        typer.echo(f"{cosine:.4f}")
        return
    described = {
        "cosine": cosine,
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


@grouped
def build(  # noqa: PLR0913 - the arguments are the command's options
    *,
    model: Model,
    source: Source,
    index: Annotated[Path, typer.Argument(help="The folder to write.")],
    columns: Columns = None,
    ids: Ids = None,
    loading: Loading,
    precision: Precision = "auto",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an index that is there already.")
    ] = False,
) -> None:
    """Embed texts and write an index."""
    from contrasent.errors import pick
    from contrasent.model.precision import PRECISIONS
    from contrasent.search.index import Index, require_folder
    from contrasent.search.sentences import open_sentences

    pick("precision", precision, PRECISIONS)
    require_folder(index, overwrite)
    with open_sentences(source, columns, ids) as sentences:
        _announce(sentences)
        encoder = loading.load(model)
        built = Index.build(
            encoder,
            sentences,
            index,
            sentences.ids(),
            precision=precision,
            overwrite=overwrite,
            show_progress=True,
        )
    typer.echo(
        f"{index}: {len(built)} texts, {built.manifest.encoder.width} dimensions each", err=True
    )


def add(
    index: Annotated[Path, typer.Argument(help="The index.")],
    source: Source,
    columns: Columns = None,
    ids: Ids = None,
    encoder: MovedEncoder = None,
    device: Device = None,
) -> None:
    """Embed more texts and append them to an index."""
    from contrasent.search.index import Index, encoder_of
    from contrasent.search.sentences import open_sentences

    opened = Index.open(index)
    with open_sentences(source, columns, ids) as sentences:
        _announce(sentences)
        before, loaded = len(opened), encoder_of(opened, encoder, device)
        opened.add(loaded, sentences, sentences.ids(), show_progress=True)
    typer.echo(f"{index}: {len(opened)} texts, {len(opened) - before} of them new", err=True)


def info(
    index: Annotated[Path, typer.Argument(help="The index.")],
    json: Json = False,
) -> None:
    """Say what an index holds, and which encoder made it."""
    from dataclasses import asdict

    from contrasent.search.index import Index

    opened = Index.open(index)
    files = [path for path in index.rglob("*") if path.is_file()]
    described = {
        "index": str(index),
        "texts": len(opened),
        "segments": len(opened.manifest.segments),
        "bytes": sum(path.stat().st_size for path in files),
        **{"encoder" if k == "name" else k: v for k, v in asdict(opened.manifest.encoder).items()},
    }
    if json:
        print_json(described)
        return
    for key, value in described.items():
        typer.echo(f"{key:<12} {value}")


def _announce(sentences: Sentences) -> None:
    total = sentences.count()
    typer.echo(f"{sentences.source}: {total} texts; {sentences.examples.columns}", err=True)
    if sentences.examples.skipped:
        typer.echo(f"{sentences.examples.skipped} rows with an empty cell are left out", err=True)


def search(
    index: Annotated[Path, typer.Argument(help="A folder made by: contrasent index build")],
    query: Annotated[str, typer.Argument(help="The text to look for.")],
    top_k: Annotated[int, typer.Option("--top-k", help="Hits to show.")] = 10,
    encoder: MovedEncoder = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Print the texts of an index that are nearest to a query."""
    from contrasent.search.index import Index, encoder_of, require_query

    require_query(query, top_k)
    opened = Index.open(index)
    hits = opened.search(encoder_of(opened, encoder, device), [query], top_k)[0]
    if json:
        for rank, hit in enumerate(hits, start=1):
            row = {"rank": rank, "score": hit.score, "id": hit.id, "text": hit.text}
            print_json(row)
        return
    width = max(len("id"), *(len(hit.id) for hit in hits))
    typer.echo(f"rank   score  {'id':<{width}}  text")
    for rank, hit in enumerate(hits, start=1):
        text = " ".join(hit.text.split())
        typer.echo(f"{rank:>4} {hit.score:>7.4f}  {hit.id:<{width}}  {text}")
