"""``contrasent analyze`` and ``contrasent neighbours``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contrasent.cli.options import (
    STDOUT,
    DataDir,
    Device,
    Engine,
    Head,
    Html,
    OwnPrecision,
    Pooler,
    own_precision,
    refuse_json_folder,
    report,
)

if TYPE_CHECKING:
    from contrasent.evaluation.embed import DescribedEncoder
    from contrasent.evaluation.geometry import Geometry
    from contrasent.evaluation.neighbours import Neighbours
    from contrasent.report.html.contents import Contents
    from contrasent.report.saved import Saved


def analyze(  # noqa: PLR0913 - the arguments are the command's options
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="Encoders to measure: a folder, a training run or a Hugging Face id.",
        ),
    ] = None,
    saved: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Take what was saved before, without a model: a file of --json, a training run "
            "that measured its geometry, or the scores of 'contrasent evaluate --json', whose "
            "average colours the encoders. Give it once for each.",
        ),
    ] = None,
    pairs: Annotated[
        str,
        typer.Option(
            help="Which pairs are positive: a task or file, > or >=, and a rating. Without a "
            "split, a task is all its splits: stsb>4 is train, dev and test."
        ),
    ] = "stsb>4",
    columns: Annotated[
        str | None,
        typer.Option(
            help="Sentence, sentence and score of your file of --pairs: three names, or numbers "
            "from 0."
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
            help="Write numbers, spectra and cosines to FILE, a JSON line for each encoder, for "
            "--from; '-' prints them instead of the table.",
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Draw the papers' figures into FOLDER, as SVG and PNG."
        ),
    ] = None,
    supervised: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="An encoder whose spectrum and cosines stand in a panel of their own, as in "
            "SimCSE's Figures F.1 and G.1. Give it once for each.",
        ),
    ] = None,
    html: Html = None,
    published: Annotated[
        bool, typer.Option(help="Show the points that DiffCSE prints beside the encoders.")
    ] = True,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that are already there.")
    ] = False,
) -> None:
    """Measure how embeddings lie in space: alignment, uniformity, isotropy, spectrum, cosines."""
    from contrasent.cli.evaluate import listed
    from contrasent.errors import ConfigError, ContrasentError, pick
    from contrasent.evaluation.embed import PRECISIONS
    from contrasent.report.html.page import refuse_existing_report
    from contrasent.report.saved import read_saved

    asked = own_precision(precision, engine)
    pick("precision", asked, ("auto", *PRECISIONS))
    if not models and not saved:
        raise ConfigError("nothing to analyze: name a model, or saved files with --from")
    _refuse_existing(json, figures, overwrite)
    refuse_existing_report(html, overwrite=overwrite)
    known = read_saved(saved or ())
    _refuse_unknown(supervised or (), models or (), known)
    failures: list[str] = []
    found = list(known.geometries)
    if models:
        what = pairs, data_dir, None if columns is None else listed(columns)
        found += _measured(models, (pooler, head, engine, device, asked), what, failures)
    _write(found, known, json)
    if figures:
        _draw(found, known, figures, {"published": published, "supervised": supervised or ()})
    if found or saved:
        shown = {"published": published, "supervised": tuple(supervised or ())}
        report(html, _contents(replace(known, geometries=tuple(found)), shown, failures))
    if failures:
        raise ContrasentError("\n".join(failures))


def _refuse_existing(json: str | None, figures: Path | None, overwrite: bool) -> None:
    """Find now what would otherwise be lost, or be noticed after the work."""
    from contrasent.errors import ConfigError
    from contrasent.report.figures.style import refuse_existing_pictures
    from contrasent.report.geometry import PICTURES

    refuse_json_folder(json)
    if json is not None and json != STDOUT and Path(json).exists() and not overwrite:
        raise ConfigError(f"{json} exists already; name another file or add --overwrite")
    if figures:
        refuse_existing_pictures(figures, () if overwrite else PICTURES)


def _refuse_unknown(supervised: Sequence[str], models: Sequence[str], known: Saved) -> None:
    """Find now what would otherwise be noticed after all was measured."""
    from contrasent.report.geometry import names_of, refuse_unknown

    encoders = [*models, *(found.encoder for found in known.geometries)]
    refuse_unknown(supervised, {name for encoder in encoders for name in names_of(encoder)})


def _measured(
    models: Sequence[str],
    how: tuple[str | None, str | None, str, str | None, str],
    what: tuple[str, Path | None, list[str] | None],
    failures: list[str],
) -> list[Geometry]:
    """The geometry of every model that can be loaded and measured; why the others cannot.

    Args:
        models: their names.
        how: pooler, head, engine, device and precision.
        what: the pairs, the folder of their data, and the columns of a user's file.
        failures: takes a line for each model that failed, unless it is the only one.
    """
    from contrasent.errors import ContrasentError
    from contrasent.evaluation.geometry import RatedPairs, measure
    from contrasent.model.engines import require
    from contrasent.model.loading import load_encoder

    pooler, head, engine, device, precision = how
    rated = RatedPairs.read(*what)
    if rated.task.note:
        typer.echo(rated.task.note, err=True)
    require(engine, device)
    found: list[Geometry] = []
    for model in dict.fromkeys(models):
        try:
            encoder = load_encoder(model, pooler=pooler, head=head, engine=engine, device=device)
            resolved = encoder.resolve_precision(precision)
            found.append(measure(encoder, rated, precision=resolved, show_progress=True))
        except ContrasentError as error:
            if len(models) == 1:
                raise
            failures.append(f"{model}: {error}")
    return found


def _write(found: Sequence[Geometry], known: Saved, json: str | None) -> None:
    from rich.console import Console

    from contrasent.evaluation.geometry import geometry_lines, write_geometry
    from contrasent.report.geometry import print_geometry, run_lines
    from contrasent.report.labels import labelled

    if json == STDOUT:
        typer.echo(geometry_lines(found), nl=False)
        return
    if json is not None and found:
        write_geometry(json, found)
    if found:
        print_geometry(Console(), labelled(found))
    for line in run_lines(known.runs):
        typer.echo(line)


def _draw(found: Sequence[Geometry], known: Saved, folder: Path, how: Mapping[str, Any]) -> None:
    from contrasent.errors import ConfigError
    from contrasent.report.figures.style import write_pictures
    from contrasent.report.geometry import pictures

    drawn = pictures(found, known.runs, known.records, **how)
    if not drawn:
        raise ConfigError(
            "no figure can be drawn: there is neither the geometry of an encoder nor a training "
            "run that measured it"
        )
    for path in write_pictures(folder, drawn):
        typer.echo(f"{path}", err=True)


def _contents(found: Saved, shown: Mapping[str, Any], failures: Sequence[str]) -> Contents:
    from contrasent.report.html.contents import Contents

    return Contents(
        records=found.records,
        geometries=found.geometries,
        runs=found.runs,
        neighbours=found.neighbours,
        warnings=tuple(failures),
        **shown,
    )


def neighbours(  # noqa: PLR0913 - the arguments are the command's options
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="Encoders, a column each: a folder, a training run or a Hugging Face id; or a "
            "file of word vectors (GloVe's .txt, .vec).",
        ),
    ],
    corpus: Annotated[
        str,
        typer.Option(
            help="What is searched: a .txt, .csv, .tsv, .jsonl (each also .gz) or .parquet file, a "
            "data set of the hub (org/name:config@split), or an STS task (stsb, stsb-dev)."
        ),
    ],
    queries: Annotated[
        str | None,
        typer.Option(
            help="A file with a query in every row; or those of a paper's table: simcse-table8, "
            "diffcse-table9."
        ),
    ] = None,
    query: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="A sentence; give it once for each.")
    ] = None,
    sample: Annotated[
        int,
        typer.Option(help="Without queries: how many sentences of the corpus are drawn as such."),
    ] = 3,
    top_k: Annotated[int, typer.Option("--top-k", help="Neighbours of each query.")] = 3,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated sentence columns of the corpus: names, or numbers from 0."
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
        ),
    ] = None,
) -> None:
    """Show the sentences of a corpus that are nearest to queries, encoders side by side."""
    from contrasent.cli.evaluate import listed
    from contrasent.errors import ConfigError, ContrasentError, pick
    from contrasent.evaluation.corpus import read_corpus, read_queries
    from contrasent.evaluation.embed import PRECISIONS
    from contrasent.evaluation.neighbours import find_neighbours
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
        _write_neighbours(found, json)
    if failures:
        raise ContrasentError("\n".join(failures))


def _opened(
    model: str, how: tuple[str | None, str | None, str, str | None], precision: str
) -> tuple[DescribedEncoder, str]:
    """The encoder or the vectors of words, and the precision these are used in."""
    from contrasent.errors import ConfigError
    from contrasent.evaluation.vectors import holds_vectors, open_vectors
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


def _write_neighbours(found: Sequence[Neighbours], json: str | None) -> None:
    from rich.console import Console

    from contrasent.evaluation.neighbours import neighbour_lines, write_neighbours
    from contrasent.report.labels import labelled_neighbours
    from contrasent.report.neighbours import print_neighbours

    if json == STDOUT:
        typer.echo(neighbour_lines(found), nl=False)
        return
    if json is not None:
        write_neighbours(json, found)
    print_neighbours(Console(), labelled_neighbours(found))
