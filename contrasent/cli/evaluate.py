"""``contrasent evaluate`` and ``calibrate``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from contrasent.cli.parameters import (
    command,
    for_each,
    labels,
    load,
    print_json,
    raise_failures,
    refuse_existing_json,
    require,
    use,
    with_command,
    write_html,
    write_lines,
)
from contrasent.options import (
    AsHtml,
    AsJson,
    DataFolder,
    EvaluationOptions,
    Listed,
    Measuring,
    Named,
    Replacing,
)
from contrasent.progress import reading_progress
from contrasent.settings import ARGUMENT, Spelling, settings

if TYPE_CHECKING:
    from contrasent.evaluation.embed import Scores
    from contrasent.evaluation.intervals import Bootstrap
    from contrasent.evaluation.leaks import Overlap
    from contrasent.evaluation.rated_pairs import Calibration
    from contrasent.evaluation.suite import Suite
    from contrasent.report.contents import Contents


def _write(
    suite: Suite, scores: Mapping[str, Scores | None], bootstrap: Bootstrap | None, json: str | None
) -> Contents:
    """Print the tables and write the records to ``json``, or print these if that is ``-``.

    Scores are by the label of their encoder, None of one that could not be used; with a bootstrap,
    encoders are compared with the first. A report shows what is returned.
    """
    from rich.console import Console

    from contrasent.evaluation.compare import with_comparison
    from contrasent.records import json_lines
    from contrasent.report.comparison import DIFFERENCES
    from contrasent.report.contents import Contents, Mean
    from contrasent.report.table import print_difference

    rows = {label: [*with_command(it.records)] if it else [] for label, it in scores.items()}
    (baseline, first), *others = scores.items()
    means, differences = [], []
    if bootstrap and first:
        for label, other in ((label, it) for label, it in others if it):
            for kind, read in suite.kinds:
                comparisons = kind.compare(read, (first, other), suite.options, bootstrap)
                for comparison in comparisons:
                    rows[label] = with_comparison(rows[label], comparison)
                    if comparison.average:
                        means.append(Mean(rows[label][0], comparison.metric, comparison.average))
                title = f"{label} minus {baseline}"
                differences += DIFFERENCES[kind.name](comparisons, read, title)
    records = tuple(record for of_encoder in rows.values() for record in of_encoder)
    if not write_lines(json, json_lines(records)):
        console = Console()
        suite.print_tables(console, rows)
        for table in differences:
            print_difference(console, table)
    return Contents(records, tuple(means), warnings=(*suite.notes, *_left_out(suite)))


@settings
class EvaluateOptions(EvaluationOptions, AsHtml, Replacing):
    """Options of ``evaluate``."""

    models: Annotated[list[str], Spelling(argument=True, metavar="MODEL")]
    """Encoders, a row each: a folder, a training run or a Hugging Face id; or a file of vectors: of
    words (GloVe's .txt, .vec), or .npy with a row for every sentence of one task (pairs: all first,
    then all second; retrieval: queries, then documents; a.npy+b.npy joins two)."""

    compare: bool = False
    """Test every model against the first, on the same pairs, test sentences or queries: intervals
    and p-values of the differences."""

    leak_check: bool = True
    """Look for the tasks' text in what an encoder of ours was trained on, and warn."""

    json: Annotated[str | None, Spelling(metavar="FILE")] = None
    """Write every metric, aggregation, subset and split as JSON lines to FILE; '-' prints them
    instead of the table."""


@command
def evaluate(options: EvaluateOptions) -> None:
    """Score encoders on similarity, transfer and retrieval tasks, by the protocol of a paper."""
    from contrasent.errors import ConfigError
    from contrasent.evaluation.intervals import Bootstrap
    from contrasent.evaluation.suite import load_suite
    from contrasent.evaluation.task_types import Options
    from contrasent.evaluation.vectors import load_or_open
    from contrasent.report.html.page import refuse_existing_report

    require(options)
    reading = Options.of(options)
    refuse_existing_report(options.html, overwrite=options.overwrite)
    refuse_existing_json(options.json, overwrite=options.overwrite)
    if options.compare and len(set(options.models)) < 2:
        raise ConfigError("--compare needs two models or more; the others are held to the first")
    suite = load_suite(options.tasks, reading)
    announce(suite)

    def score(model: str) -> Scores:
        scores = suite.records(use(options, load_or_open(options, model, suite.row_layouts())))
        for note in scores.notes:
            typer.echo(f"{model}: {note}", err=True)
        return _with_overlaps(scores, model, suite) if options.leak_check else scores

    outcomes = for_each(options.models, score)
    failures = [
        *(f"{p.task}: {p.message}" for p in suite.problems if not p.missing),
        *outcomes.failures,
        *(f"{m}: {p.message}" for m, scores in outcomes.results.items() for p in scores.problems),
    ]
    if any(scores.records for scores in outcomes.results.values()):
        rows = {
            label: outcomes.results.get(model) for label, model in labels(options.models).items()
        }
        contents = _write(
            suite,
            rows,
            (reading.bootstrap or Bootstrap()) if options.compare else None,
            options.json,
        )
        write_html(options.html, replace(contents, warnings=(*contents.warnings, *failures)))
    raise_failures(failures)


def announce(suite: Suite) -> None:
    """Tell on standard error what was guessed and what is left out."""
    from contrasent.data.senteval import how_to_get_data

    left_out = _left_out(suite)
    for line in (*suite.notes, *left_out):
        typer.echo(line, err=True)
    if left_out:
        typer.echo(how_to_get_data(), err=True)


def _left_out(suite: Suite) -> list[str]:
    return [f"{p.task} is left out: {p.message}" for p in suite.problems if p.missing]


def _with_overlaps(scores: Scores, model: str, suite: Suite) -> Scores:
    """Warn of text of the tasks that the encoder was trained on, and put it into the records."""
    from contrasent.errors import warn
    from contrasent.evaluation.leaks import find_overlaps, overlap_of, trainings

    if not trainings(model):
        return scores
    with reading_progress("training examples (--no-leak-check leaves that out)") as advance:
        overlaps = list(find_overlaps(suite, model, advance))
    for overlap in overlaps:
        if message := _overlap_message(model, overlap):
            warn(message)
    records = (replace(it, overlap=overlap_of(it, overlaps)) for it in scores.records)
    return replace(scores, records=tuple(records))


def _overlap_message(model: str, overlap: Overlap) -> str:
    """One line; empty without an overlap."""
    trained = f"{model} was trained on {overlap.file}"
    if overlap.trouble:
        return f"{trained}; whether that has text of the tasks was not checked: {overlap.trouble}"
    from contrasent.report.training_text import plural

    counts = []
    for task in (it for it in overlap.tasks if it.normalised):
        together = plural(task.pairs_normalised, "pair")
        pairs = f", {together} together" if task.pairs_normalised else ""
        counts.append(f"{task.heading} {task.normalised:,} of {task.sentences:,}{pairs}")
    if not counts:
        return ""
    return (
        f"{trained}, which has sentences of the tasks: {'; '.join(counts)} (letters and digits "
        f"compared); 'contrasent data leaks {shlex.quote(overlap.file)}' shows them"
    )


@settings
class CalibrateOptions(Named, Measuring, DataFolder, AsJson):
    """Options of ``calibrate``."""

    pairs: Annotated[str, ARGUMENT]
    """Judged pairs: a .tsv, .csv, .jsonl or .parquet file of sentence, sentence and label (1
    similar, 0 not), or one of ratings or a task, with the rating from which on sentences are
    similar: 'pairs.tsv>=4', 'stsb-dev>=4'."""

    columns: Listed | None = None
    """Sentence, sentence and label of your file: three names, or numbers from 0."""

    min_precision: float | None = None
    """Find as many similar pairs as this precision allows, such as 0.9; else the largest F1."""


@command
def calibrate(options: CalibrateOptions) -> None:
    """Suggest a similarity threshold from labelled pairs."""
    from contrasent.evaluation.rated_pairs import calibrate as propose
    from contrasent.evaluation.rated_pairs import read_judged

    judged = read_judged(options.pairs, options.data_dir, options.columns)
    if judged.task.note:
        typer.echo(judged.task.note, err=True)
    calibration = propose(use(options, load(options, options.model)), judged, options.min_precision)
    if options.json:
        print_json(asdict(calibration))
    else:
        _print(calibration)


def _print(calibration: Calibration) -> None:
    from contrasent.evaluation.rated_pairs import FOLDS

    aim = calibration.aim
    reason = "largest F1" if aim == "f1" else f"largest recall with {aim}"
    typer.echo(f"threshold  {calibration.threshold:.4f} ({reason})")
    similar = f"{calibration.similar:,} of them similar ({calibration.pairs})"
    typer.echo(f"pairs      {calibration.count:,}, {similar}")
    rows = {"on them": calibration.reached, "held out": calibration.held_out}
    for name, row in rows.items():
        if row:
            numbers = f"precision {row.precision:.4f}, recall {row.recall:.4f}, F1 {row.f1:.4f}"
            typer.echo(f"{name:<11}{numbers}")
    typer.echo(
        f"next: contrasent search INDEX QUERY --threshold {calibration.threshold:.4f}", err=True
    )
    if calibration.held_out:
        typer.echo(f"Held out: chosen on the other pairs each time, {FOLDS} folds.")
    else:
        typer.echo("Too few pairs to hold some out: what is reached on others will be less.")
