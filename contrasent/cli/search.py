"""``contrasent index`` and ``contrasent search``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contrasent.cli.options import Device, Json, Loading, Model, Precision, grouped, print_json

if TYPE_CHECKING:
    from contrasent.search.sentences import Sentences


Source = Annotated[
    str,
    typer.Argument(
        metavar="INPUT",
        help="A file or data set with one text per row; - reads lines of standard input.",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="The column of the texts, by name or by number from 0."),
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
        made = Index.build(
            encoder,
            sentences,
            index,
            sentences.ids(),
            precision=precision,
            overwrite=overwrite,
            show_progress=True,
        )
    typer.echo(f"{index}: {len(made)} texts, {made.manifest.encoder.width} numbers each", err=True)


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
    typer.echo(f"{sentences.source}: {total} texts; {sentences.columns}", err=True)
    if sentences.skipped:
        typer.echo(f"{sentences.skipped} rows with an empty cell are left out", err=True)


def search(
    index: Annotated[Path, typer.Argument(help="A folder made by: contrasent index build")],
    query: Annotated[str, typer.Argument(help="The text to look for.")],
    top_k: Annotated[int, typer.Option("--top-k", help="Hits to show.")] = 10,
    encoder: MovedEncoder = None,
    device: Device = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per hit, in full precision.")
    ] = False,
) -> None:
    """Print the texts of an index that are nearest to a query."""
    from contrasent.search.index import Index, encoder_of, require_query

    require_query(query, top_k)
    opened = Index.open(index)
    hits = opened.search(encoder_of(opened, encoder, device), [query], top_k)[0]
    if json:
        for rank, hit in enumerate(hits, start=1):
            found = {"rank": rank, "score": hit.score, "id": hit.id, "text": hit.text}
            print_json(found)
        return
    width = max(len("id"), *(len(hit.id) for hit in hits))
    typer.echo(f"rank   score  {'id':<{width}}  text")
    for rank, hit in enumerate(hits, start=1):
        text = " ".join(hit.text.split())
        typer.echo(f"{rank:>4} {hit.score:>7.4f}  {hit.id:<{width}}  {text}")
