"""``contrasent neighbours``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from contrasent.cli.options import (
    STDOUT,
    DataDir,
    Device,
    Engine,
    Head,
    OwnPrecision,
    Pooler,
    own_precision,
    refuse_json_folder,
)

if TYPE_CHECKING:
    from contrasent.evaluate.described import Encoder
    from contrasent.evaluate.neighbours import Neighbours


def neighbours(  # noqa: PLR0913 - the arguments are the command's options
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="Encoders, a column each: a folder, a training run or a Hugging Face id; or a "
            "file of word vectors (GloVe's .txt, .vec).",
            show_default=False,
        ),
    ],
    corpus: Annotated[
        str,
        typer.Option(
            help="What is searched: a .txt, .csv, .tsv, .jsonl (each also .gz) or .parquet file, a "
            "data set of the hub (org/name:config@split), or an STS task (stsb, stsb-dev).",
            show_default=False,
        ),
    ],
    queries: Annotated[
        str | None,
        typer.Option(
            help="A file with a query in every row; or those of a paper's table: simcse-table8, "
            "diffcse-table9.",
            show_default=False,
        ),
    ] = None,
    query: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="A sentence; give it once for each.", show_default=False),
    ] = None,
    sample: Annotated[
        int,
        typer.Option(help="Without queries: how many sentences of the corpus are drawn as such."),
    ] = 3,
    top_k: Annotated[int, typer.Option("--top-k", help="Neighbours of each query.")] = 3,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated sentence columns of the corpus: names, or numbers from 0.",
            show_default=False,
        ),
    ] = None,
    pooler: Pooler = None,
    head: Head = None,
    engine: Engine = "torch",
    device: Device = None,
    precision: OwnPrecision = None,
    data_dir: DataDir = None,
    json: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write everything as JSON to FILE, a line for each encoder; '-' prints it instead "
            "of the table.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show the sentences of a corpus that are nearest to queries, encoders side by side."""
    from contrasent.cli.evaluate import listed
    from contrasent.errors import ConfigError, ContrasentError, pick
    from contrasent.evaluate.corpus import read_corpus, read_queries
    from contrasent.evaluate.described import PRECISIONS
    from contrasent.evaluate.neighbours import find_neighbours
    from contrasent.model.engines import require

    asked = own_precision(precision, engine)
    pick("precision", asked, ("auto", *PRECISIONS))
    if top_k < 1:
        raise ConfigError(f"--top-k must be 1 or more, not {top_k}")
    refuse_json_folder(json)
    require(engine, device)
    searched = read_corpus(corpus, None if columns is None else listed(columns), data_dir)
    looked_for = read_queries(queries, query or (), searched, sample)
    found: list[Neighbours] = []
    failures: list[str] = []
    for model in dict.fromkeys(models):
        try:
            encoder, used = _opened(model, (pooler, head, engine, device), asked)
            found.append(
                find_neighbours(
                    encoder, searched, looked_for, top_k, precision=used, show_progress=True
                )
            )
        except ContrasentError as error:
            if len(models) == 1:
                raise
            failures.append(f"{model}: {error}")
    if found:
        _write(found, json)
    if failures:
        raise ContrasentError("\n".join(failures))


def _opened(
    model: str, how: tuple[str | None, str | None, str, str | None], precision: str
) -> tuple[Encoder, str]:
    """The encoder or the vectors of words, and the precision these are used in."""
    from contrasent.errors import ConfigError
    from contrasent.evaluate.vectors import holds_vectors, open_vectors
    from contrasent.model.loading import load_encoder

    if not holds_vectors(model):
        pooler, head, engine, device = how
        encoder = load_encoder(model, pooler=pooler, head=head, engine=engine, device=device)
        return encoder, encoder.resolve_precision(precision)
    if model.lower().endswith(".npy"):
        raise ConfigError(
            f"{model} holds the vectors of a task's pairs, not of a corpus and queries; name an "
            "encoder or a file of word vectors"
        )
    vectors = open_vectors(model, ())
    return vectors, vectors.resolve_precision(precision)


def _write(found: Sequence[Neighbours], json: str | None) -> None:
    from rich.console import Console

    from contrasent.evaluate.saved_neighbours import neighbour_lines, write_neighbours
    from contrasent.report.labels import labelled_neighbours
    from contrasent.report.neighbours import print_neighbours

    if json == STDOUT:
        typer.echo(neighbour_lines(found), nl=False)
        return
    if json is not None:
        write_neighbours(json, found)
    print_neighbours(Console(), labelled_neighbours(found))
