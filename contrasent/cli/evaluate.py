"""``contrasent evaluate``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contrasent.cli.options import Engine, Head, OwnPrecision, Pooler, own_precision

if TYPE_CHECKING:
    from contrasent.evaluate.run import Loaded
    from contrasent.records import Record
    from contrasent.report.tables import Layout

_STDOUT = "-"


def evaluate(  # noqa: PLR0913 - the arguments are the command's options
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="Encoders, a row each: a folder, a training run or a Hugging Face id.",
            show_default=False,
        ),
    ],
    tasks: Annotated[
        str,
        typer.Option(
            help="Comma-separated: sts (all seven), sts12 to sts16, stsb, sickr, one with its "
            "split (stsb-dev), or a .tsv or .csv file of sentence, sentence, score."
        ),
    ] = "sts",
    splits: Annotated[
        str,
        typer.Option(help="Splits of tasks named without one: any of train,dev,test."),
    ] = "test",
    pooler: Pooler = None,
    head: Head = None,
    engine: Engine = "torch",
    precision: OwnPrecision = None,
    aggregation: Annotated[
        str,
        typer.Option(
            help="Table only. all (one correlation over all pairs of a task, as in the papers), "
            "mean over its subsets, or wmean, weighted by their pairs."
        ),
    ] = "all",
    metric: Annotated[str, typer.Option(help="Table only. spearman or pearson.")] = "spearman",
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder in SentEval's layout; else $CONTRASENT_DATA, else the folder that "
            "'contrasent data fetch' fills.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write every metric, aggregation, subset and split as JSON lines to FILE; "
            "'-' prints them instead of the table.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Score encoders on the semantic textual similarity tasks, as SimCSE's SentEval does."""
    from contrasent.errors import ConfigError, ContrasentError, pick
    from contrasent.evaluate.run import load_available
    from contrasent.evaluate.sts import AGGREGATIONS, PRECISIONS, StsTasks
    from contrasent.metrics import METRICS
    from contrasent.report.tables import Layout

    asked = own_precision(precision, engine)
    pick("precision", asked, ("auto", *PRECISIONS))
    pick("aggregation", aggregation, AGGREGATIONS)
    pick("metric", metric, METRICS)
    if json is not None and json != _STDOUT and Path(json).is_dir():
        raise ConfigError(f"--json {json} is a folder; name a file in it, or - to print")
    loaded = load_available(_listed(tasks), data_dir, _listed(splits))
    _announce(loaded)
    failures = [f"{p.task}: {p.message}" for p in loaded.problems if not p.missing]
    prepared = StsTasks(loaded.tasks)

    from contrasent.model.encoder import SentenceEncoder
    from contrasent.model.engines import require

    require(engine)
    rows: dict[str, Sequence[Record]] = {}
    for label, model in _labels(models).items():
        try:
            encoder = SentenceEncoder.load(model, pooler=pooler, head=head, engine=engine)
            used = encoder.resolve_precision(asked)
            scores = prepared.records(encoder, precision=used, show_progress=True)
        except ContrasentError as error:
            if len(models) == 1:
                raise
            rows[label] = ()
            failures.append(f"{model}: {error}")
        else:
            rows[label] = scores.records
            failures += [f"{model}: {problem.message}" for problem in scores.problems]
    if any(rows.values()):
        _write(rows, json, Layout(loaded.names, metric, aggregation))
    if failures:
        raise ContrasentError("\n".join(failures))


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _announce(loaded: Loaded) -> None:
    """Tell on standard error what was guessed and what is left out."""
    from contrasent.evaluate.read import how_to_get_data

    for task in loaded.tasks:
        if task.note:
            typer.echo(task.note, err=True)
    missing = [problem for problem in loaded.problems if problem.missing]
    for problem in missing:
        typer.echo(f"{problem.task} is left out: {problem.message}", err=True)
    if missing:
        typer.echo(how_to_get_data(), err=True)


def _labels(models: Sequence[str]) -> dict[str, str]:
    """The models by a short name, or by the whole one where the short one is not theirs alone."""
    short = [Path(model).name for model in dict.fromkeys(models)]
    return {
        name if name and short.count(name) == 1 else model: model
        for name, model in zip(short, dict.fromkeys(models), strict=True)
    }


def _write(rows: Mapping[str, Sequence[Record]], json: str | None, layout: Layout) -> None:
    from rich.console import Console

    from contrasent.records import json_lines, write_records
    from contrasent.report.tables import print_sts

    records = [record for found in rows.values() for record in found]
    if json == _STDOUT:
        typer.echo(json_lines(records), nl=False)
        return
    if json is not None:
        write_records(json, records)
    print_sts(Console(), rows, layout)
