"""``contrasent data leaks``."""

from __future__ import annotations

from typing import Annotated

import typer

from contrasent.cli.options import DataDir


def leaks(
    train: Annotated[
        str,
        typer.Argument(
            help="Training text (.txt, .csv, .tsv, .jsonl, each also .gz; .parquet), or a data set "
            "on the Hugging Face hub as org/name:config@split.",
            show_default=False,
        ),
    ],
    tasks: Annotated[
        str,
        typer.Option(
            help="Comma-separated, as 'contrasent evaluate' takes them: sts, transfer, one task, "
            "one with its split (stsb-dev), files of pairs or labelled sentences, retrieval data."
        ),
    ] = "sts",
    splits: Annotated[
        str,
        typer.Option(help="Splits of tasks named without one: any of train,dev,test,all."),
    ] = "test",
    columns: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated sentence columns of the training text, anchor first: names, or "
            "numbers from 0.",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Look for evaluation sentences and pairs in training text."""
    from contrasent.cli.data import progress
    from contrasent.cli.evaluate import announce, listed
    from contrasent.data.text import open_examples
    from contrasent.errors import ContrasentError
    from contrasent.evaluate.kinds.base import Options
    from contrasent.evaluate.leaks import find_leaks
    from contrasent.evaluate.suite import load_suite

    training = open_examples(train, None if columns is None else listed(columns))
    suite = load_suite(listed(tasks), Options(data_dir, listed(splits)))
    announce(suite)
    with progress("examples") as advance:
        found = find_leaks(training, suite, advance)
    if json:
        import json as writer
        from dataclasses import asdict

        typer.echo(writer.dumps(asdict(found), ensure_ascii=False, indent=2))
    else:
        from rich.console import Console

        from contrasent.report.leaks import print_leaks

        print_leaks(Console(), found)
    failures = [f"{p.task}: {p.message}" for p in suite.problems if not p.missing]
    if failures:
        raise ContrasentError("\n".join(failures))
