"""``contrasent search``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from contrasent.cli.options import Device


def search(
    index: Annotated[Path, typer.Argument(help="A folder made by: contrasent index build")],
    query: Annotated[str, typer.Argument(help="The text to look for.")],
    top_k: Annotated[int, typer.Option("--top-k", help="Hits to show.")] = 10,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="Where the encoder of the index is, if it has moved.", show_default=False
        ),
    ] = None,
    device: Device = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per hit, in full precision.")
    ] = False,
) -> None:
    """Print the texts of an index that are nearest to a query."""
    from json import dumps

    from contrasent.search.index import Index, require_query
    from contrasent.search.loading import encoder_of

    require_query(query, top_k)
    opened = Index.open(index)
    hits = opened.search(encoder_of(opened, encoder, device), [query], top_k)[0]
    if json:
        for rank, hit in enumerate(hits, start=1):
            found = {"rank": rank, "score": hit.score, "id": hit.id, "text": hit.text}
            typer.echo(dumps(found, ensure_ascii=False))
        return
    width = max(len("id"), *(len(hit.id) for hit in hits))
    typer.echo(f"rank   score  {'id':<{width}}  text")
    for rank, hit in enumerate(hits, start=1):
        text = " ".join(hit.text.split())
        typer.echo(f"{rank:>4} {hit.score:>7.4f}  {hit.id:<{width}}  {text}")
