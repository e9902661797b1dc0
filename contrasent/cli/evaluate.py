"""``contrasent evaluate`` and ``calibrate``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from contrasent.cli.options import (
    DataDir,
    Html,
    Json,
    Measuring,
    Model,
    Splits,
    for_each,
    grouped,
    labels,
    listed,
    print_json,
    raise_failures,
    refuse_existing_json,
    with_command,
    write_html,
    write_lines,
)
from contrasent.evaluation.task_names import STS_TASKS
from contrasent.evaluation.transfer_data import TRANSFER_TASKS
from contrasent.progress import reading_progress

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


@grouped
def evaluate(  # noqa: PLR0913 - the arguments are the command's options
    *,
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="Encoders, a row each: a folder, a training run or a Hugging Face id; or a file "
            "of vectors: of words (GloVe's .txt, .vec), or .npy with a row for every sentence of "
            "one task (pairs: all first, then all second; retrieval: queries, then documents; "
            "a.npy+b.npy joins two).",
        ),
    ],
    tasks: Annotated[
        str,
        typer.Option(
            help="Comma-separated: sts (the papers' seven), "
            f"{', '.join(STS_TASKS)}, one with its "
            "split (stsb-dev, sickr-all), or a .tsv, .csv, .jsonl or .parquet file or a data set "
            "of the hub (org/name:config@split) of sentence, sentence, score; transfer (the "
            f"papers' seven), {', '.join(TRANSFER_TASKS)}, one with its split (mr-dev); such a "
            "file of text and label, or classify:TRAIN+TEST; stsb-retrieval, a folder of corpus, "
            "queries and qrels as BEIR's, retrieve:QUERIES+DOCUMENTS+RELEVANCE, retrieve:ORG/NAME; "
            "without labels crops:FILE, next:FILE."
        ),
    ] = "sts",
    splits: Splits = "test",
    columns: Annotated[
        str | None,
        typer.Option(
            help="Sentence, sentence and score of your files, or sentence and label: names, or "
            "numbers from 0."
        ),
    ] = None,
    measuring: Measuring,
    protocol: Annotated[
        str,
        typer.Option(
            help="Whose numbers the table is to be compared with: simcse, diffcse, sbert, isbert "
            "(Spearman, all), flow, whitening (wmean), declutr (mean), bgt (Pearson, mean), hill "
            "(both, all), senteval, infersent (Pearson, mean, regressor) or mteb."
        ),
    ] = "simcse",
    aggregation: Annotated[
        str | None,
        typer.Option(
            help="In place of the protocol's: all (one correlation over all pairs of a task), "
            "mean over its subsets, or wmean, weighted by their pairs."
        ),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="In place of the protocol's: spearman or pearson.")
    ] = None,
    regressor: Annotated[
        bool | None,
        typer.Option(
            "--regressor/--no-regressor",
            help="In place of the protocol's: score STS-B and SICK-R by SentEval's regressor, "
            "fitted to their training splits, or by cosines.",
        ),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(help="Show intervals of this confidence, such as 0.95."),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Test every model against the first, on the same pairs, test sentences or "
            "queries: intervals and p-values of the differences.",
        ),
    ] = False,
    classifier: Annotated[
        str,
        typer.Option(
            help="Transfer and labelled tasks: senteval (SentEval's procedure, as in papers) or "
            "sklearn (scikit-learn's logistic regression without a search; faster, other numbers)."
        ),
    ] = "senteval",
    preset: Annotated[
        str,
        typer.Option(
            help="Transfer and labelled tasks: SentEval's settings: test (as in papers), fasttest "
            "or dev."
        ),
    ] = "test",
    classifier_seed: Annotated[
        int,
        typer.Option(
            help="Transfer and labelled tasks: seed of training and folds; those of one part (MR, "
            "CR, SUBJ, MPQA) are with senteval always SentEval's, of 1111."
        ),
    ] = 1111,
    leak_check: Annotated[
        bool,
        typer.Option(
            help="Look for the tasks' text in what an encoder of ours was trained on, and warn."
        ),
    ] = True,
    data_dir: DataDir = None,
    json: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write every metric, aggregation, subset and split as JSON lines to FILE; "
            "'-' prints them instead of the table.",
        ),
    ] = None,
    html: Html = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that are already there.")
    ] = False,
) -> None:
    """Score encoders on similarity, transfer and retrieval tasks, by the protocol of a paper."""
    from contrasent.errors import ConfigError
    from contrasent.evaluation.intervals import Bootstrap
    from contrasent.evaluation.protocols import TransferProtocol
    from contrasent.evaluation.protocols import protocol as named_protocol
    from contrasent.evaluation.suite import load_suite
    from contrasent.evaluation.task_types import Options
    from contrasent.report.html.page import refuse_existing_report

    measuring.require()
    numbers = named_protocol(protocol, metric=metric, aggregation=aggregation, regressor=regressor)
    bootstrap = None if confidence is None else Bootstrap(confidence)
    learning = TransferProtocol(classifier, preset, classifier_seed)
    refuse_existing_report(html, overwrite=overwrite)
    refuse_existing_json(json, overwrite=overwrite)
    if compare and len(set(models)) < 2:
        raise ConfigError("--compare needs two models or more; the others are held to the first")
    options = Options(data_dir, listed(splits), listed(columns), numbers, learning, bootstrap)
    suite = load_suite(listed(tasks), options)
    announce(suite)

    def score(model: str) -> Scores:
        scores = suite.records(measuring.use(measuring.load_or_open(model, suite.row_layouts())))
        for note in scores.notes:
            typer.echo(f"{model}: {note}", err=True)
        return _with_overlaps(scores, model, suite) if leak_check else scores

    outcomes = for_each(models, score)
    failures = [
        *(f"{p.task}: {p.message}" for p in suite.problems if not p.missing),
        *outcomes.failures,
        *(f"{m}: {p.message}" for m, scores in outcomes.results.items() for p in scores.problems),
    ]
    if any(scores.records for scores in outcomes.results.values()):
        rows = {label: outcomes.results.get(model) for label, model in labels(models).items()}
        contents = _write(suite, rows, (bootstrap or Bootstrap()) if compare else None, json)
        write_html(html, replace(contents, warnings=(*contents.warnings, *failures)))
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


@grouped
def calibrate(
    *,
    model: Model,
    pairs: Annotated[
        str,
        typer.Argument(
            help="Judged pairs: a .tsv, .csv, .jsonl or .parquet file of sentence, sentence and "
            "label (1 similar, 0 not), or one of ratings or a task, with the rating from which on "
            "sentences are similar: 'pairs.tsv>=4', 'stsb-dev>=4'."
        ),
    ],
    columns: Annotated[
        str | None,
        typer.Option(
            help="Sentence, sentence and label of your file: three names, or numbers from 0."
        ),
    ] = None,
    min_precision: Annotated[
        float | None,
        typer.Option(
            help="Find as many similar pairs as this precision allows, such as 0.9; else the "
            "largest F1."
        ),
    ] = None,
    measuring: Measuring,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Suggest a similarity threshold from labelled pairs."""
    from contrasent.evaluation.rated_pairs import calibrate as propose
    from contrasent.evaluation.rated_pairs import read_judged

    judged = read_judged(pairs, data_dir, listed(columns))
    if judged.task.note:
        typer.echo(judged.task.note, err=True)
    calibration = propose(measuring.use(measuring.load(model)), judged, min_precision)
    if json:
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
