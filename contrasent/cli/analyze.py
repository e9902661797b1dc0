"""``contrasent analyze`` and ``contrasent neighbours``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contrasent.cli.parameters import (
    STDOUT,
    Outcomes,
    command,
    for_each,
    load,
    measuring_command,
    raise_failures,
    refuse_existing_json,
    require,
    use,
    with_command,
    write_html,
    write_lines,
)
from contrasent.options import AnalysisOptions, AsHtml, DataFolder, Listed, Measuring, Replacing
from contrasent.settings import Spelling, settings

if TYPE_CHECKING:
    from contrasent.evaluation.geometry import Geometry
    from contrasent.evaluation.neighbours import Neighbours
    from contrasent.report.contents import Contents


@settings
class AnalyzeOptions(AnalysisOptions, AsHtml, Replacing):
    """Options of ``analyze``."""

    models: Annotated[list[str] | None, Spelling(argument=True, metavar="[MODEL]...")] = None
    """Encoders to measure: a folder, a training run or a Hugging Face id."""

    saved: Annotated[list[Path] | None, Spelling(flag="--from", metavar="FILE")] = None
    """Take what was saved before, without a model: a file of --json, a training run that measured
    its geometry, or the scores of 'contrasent evaluate --json', whose average colours the encoders.
    Give it once for each."""

    json: Annotated[str | None, Spelling(metavar="FILE")] = None
    """Write numbers, spectra and cosines to FILE, a JSON line for each encoder, for --from; '-'
    prints them instead of the table."""

    figures: Annotated[Path | None, Spelling(metavar="FOLDER")] = None
    """Draw the papers' figures into FOLDER, as SVG and PNG."""

    supervised: Annotated[list[str] | None, Spelling(metavar="MODEL")] = None
    """An encoder whose spectrum and cosines stand in a panel of their own, as in SimCSE's Figures
    F.1 and G.1. Give it once for each."""

    published: bool = True
    """Show the points that DiffCSE prints beside the encoders."""


@command
def analyze(options: AnalyzeOptions) -> None:
    """Measure how embeddings lie in space: alignment, uniformity, isotropy, spectrum, cosines."""
    from contrasent.errors import ConfigError
    from contrasent.report.contents import Contents, read_saved
    from contrasent.report.embedding_tables import names_of, refuse_unknown

    if not options.models and not options.saved:
        raise ConfigError("nothing to analyze: name a model, or saved files with --from")
    require(options)
    _refuse_existing(options.json, options.figures, options.html, overwrite=options.overwrite)
    known = read_saved(options.saved or ())
    encoders = [*(options.models or ()), *(geometry.encoder for geometry in known.geometries)]
    refuse_unknown(options.supervised or (), {name for it in encoders for name in names_of(it)})
    measured: Outcomes[Geometry] = Outcomes({}, [])
    if options.models:
        measured = _measure(
            options.models, options, options.pairs, options.data_dir, options.columns
        )
    geometries = (*known.geometries, *measured.results.values())
    _print(geometries, known, options.json)
    names = {name for it in geometries for name in names_of(it.encoder)}
    contents = Contents(
        records=known.records,
        geometries=geometries,
        runs=known.runs,
        neighbours=known.neighbours,
        warnings=tuple(measured.failures),
        published=options.published,
        supervised=tuple(it for it in options.supervised or () if it in names),
    )
    if geometries or options.saved:
        write_html(options.html, contents)
    if options.figures and (geometries or known.runs or not measured.failures):
        _draw(contents, options.figures)
    raise_failures(measured.failures)


def _refuse_existing(
    json: str | None, figures: Path | None, html: Path | None, *, overwrite: bool
) -> None:
    """Find now what would otherwise be lost, or be noticed after the work."""
    from contrasent.report.figures.style import figure_kinds, refuse_existing_pictures
    from contrasent.report.html.page import refuse_existing_report

    refuse_existing_json(json, overwrite=overwrite)
    if figures:
        names = () if overwrite else [kind.name for kind in figure_kinds()]
        refuse_existing_pictures(figures, names)
    refuse_existing_report(html, overwrite=overwrite)


def _measure(
    models: Sequence[str],
    measuring: Measuring,
    pairs: str,
    data_dir: str | Path | None,
    columns: Sequence[str] | None,
) -> Outcomes[Geometry]:
    """The geometry of every model that can be loaded and measured."""
    from contrasent.evaluation.geometry import measure
    from contrasent.evaluation.rated_pairs import RatedPairs

    rated = RatedPairs.read(pairs, data_dir, columns)
    if rated.task.note:
        typer.echo(rated.task.note, err=True)

    def measure_one(model: str) -> Geometry:
        measured = measure(use(measuring, load(measuring, model)), rated)
        return replace(measured, records=with_command(measured.records))

    return for_each(models, measure_one)


def _print(geometries: Sequence[Geometry], known: Contents, json: str | None) -> None:
    from rich.console import Console

    from contrasent.evaluation.geometry import geometry_lines
    from contrasent.report.contents import labelled, labelled_runs
    from contrasent.report.embedding_tables import geometry_table
    from contrasent.report.figures.curves import run_lines
    from contrasent.report.table import print_table

    if write_lines(json if geometries or json == STDOUT else None, geometry_lines(geometries)):
        return
    if geometries:
        print_table(Console(), geometry_table(labelled(geometries)))
    for line in run_lines(labelled_runs(known.runs)):
        typer.echo(line)


def _draw(contents: Contents, folder: Path) -> None:
    from contrasent.errors import ConfigError
    from contrasent.report.embedding_tables import pictures
    from contrasent.report.figures.style import write_pictures

    drawn = pictures(
        contents.geometries,
        contents.runs,
        contents.records,
        published=contents.published,
        supervised=contents.supervised,
    )
    if not drawn:
        raise ConfigError(
            "no figure can be drawn: there is neither the geometry of an encoder nor a training "
            "run that measured it"
        )
    for path in write_pictures(folder, drawn):
        typer.echo(f"{path}", err=True)


@settings
class NeighboursOptions(Measuring, DataFolder, Replacing):
    """Options of ``neighbours``."""

    models: Annotated[list[str], Spelling(argument=True, metavar="MODEL")]
    """Encoders, a column each: a folder, a training run or a Hugging Face id; or a file of word
    vectors (GloVe's .txt, .vec)."""

    corpus: str
    """What is searched: a .txt, .csv, .tsv, .jsonl (each also .gz) or .parquet file, a data set of
    the hub (org/name:config@split), or an STS task (stsb, stsb-dev)."""

    queries: str | None = None
    """A file with a query in every row; or those of a paper's table: simcse-table8,
    diffcse-table9."""

    query: Annotated[list[str] | None, Spelling(metavar="TEXT")] = None
    """A sentence; give it once for each."""

    sample: int = 3
    """Without queries: how many sentences of the corpus are drawn as such."""

    top_k: int = 3
    """Neighbours of each query."""

    columns: Listed | None = None
    """Comma-separated sentence columns of the corpus: names, or numbers from 0."""

    json: Annotated[str | None, Spelling(metavar="FILE")] = None
    """Write everything as JSON to FILE, a line for each encoder; '-' prints it instead of the
    table."""


@command
def neighbours(options: NeighboursOptions) -> None:
    """Show the sentences of a corpus that are nearest to queries, encoders side by side."""
    from rich.console import Console

    from contrasent.errors import ConfigError
    from contrasent.evaluation.neighbours import (
        find_neighbours,
        neighbour_lines,
        read_corpus,
        read_queries,
    )
    from contrasent.evaluation.vectors import load_or_open
    from contrasent.report.contents import labels
    from contrasent.report.embedding_tables import print_neighbours

    if options.top_k < 1:
        raise ConfigError(f"--top-k must be 1 or more, not {options.top_k}")
    refuse_existing_json(options.json, overwrite=options.overwrite)
    require(options)
    searched = read_corpus(options.corpus, options.columns, options.data_dir)
    looked_for = read_queries(options.queries, options.query or (), searched, options.sample)

    def find(model: str) -> Neighbours:
        if model.lower().endswith(".npy"):
            raise ConfigError(
                f"{model} holds the vectors of a task's pairs, not of a corpus and queries; name "
                "an encoder or a file of word vectors"
            )
        used = use(options, load_or_open(options, model))
        nearest = find_neighbours(used, searched, looked_for, options.top_k)
        return replace(nearest, command=measuring_command())

    outcomes = for_each(options.models, find)
    rows = list(outcomes.results.values())
    if rows and not write_lines(options.json, neighbour_lines(rows)):
        print_neighbours(Console(), dict(zip(labels(rows), rows, strict=True)))
    raise_failures(outcomes.failures)
