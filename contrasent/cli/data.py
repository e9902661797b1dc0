"""``contrasent data``: check, fetch, leaks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contrasent.cli.options import (
    DataDir,
    Json,
    listed,
    print_json,
    raise_failures,
)
from contrasent.progress import progress_bar, reading_progress

if TYPE_CHECKING:
    from contrasent.data.check import Report
    from contrasent.data.tokenizer import Tokenizer


def check(
    file: Annotated[
        str,
        typer.Argument(
            help="Text file (.txt, .csv, .tsv, .jsonl, each also .gz; .parquet), or a data set on "
            "the Hugging Face hub as org/name:config@split."
        ),
    ],
    columns: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated sentence columns, anchor first: header names, or numbers from 0; "
            "else picked by well-known names, or all if there is no header."
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="Folder or Hugging Face id of the encoder to train: count in its tokens too."
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(help="With --encoder: count the sentences that this training limit cuts.")
    ] = 32,
    labels: Annotated[
        str,
        typer.Option(
            help="nli: premise, hypothesis and label, as the recipes nli-softmax and consert-joint "
            "read them; counts each class."
        ),
    ] = "none",
    json: Json = False,
) -> None:
    """Check training text: what is understood, how long it is, what would do harm.

    Ends with exit code 2 if training could not use the file.
    """
    from contrasent.data.check import check as survey

    tokenizer = None if encoder is None else _tokenizer(encoder)
    with reading_progress("examples") as advance:
        report = survey(file, listed(columns), tokenizer, max_tokens, advance, labels=labels)
    if json:
        print_json(asdict(report), indent=2)
    else:
        _print(report)
    report.require_usable()


def _tokenizer(encoder: str) -> Tokenizer:
    from contrasent.data.tokenizer import Tokenizer
    from contrasent.model import st_folder
    from contrasent.model.hub import resolve

    folder = resolve(encoder)
    if st_folder.is_in(folder):
        folder = st_folder.read(folder).transformer
    return Tokenizer.load(folder)


def _print(report: Report) -> None:
    from rich.console import Console

    from contrasent.report.training_text import length_table, survey_examples, survey_lines

    typer.echo("\n".join(survey_lines(report)))
    if report.words:
        Console().print("", length_table(report), sep="\n", end="")
    for line in survey_examples(report):
        typer.echo(line)


def fetch(
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder to fill or check; else $CONTRASENT_DATA, else the folder where "
            "'contrasent evaluate' looks by itself."
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Archive to take: http://, https:// or a local path; else SimCSE's."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only compare the folder with the published files.")
    ] = False,
) -> None:
    """Download SentEval's data and check every file of the STS tasks by its published hash."""
    from contrasent.data.senteval import (
        SENTEVAL_URL,
        differences,
        manifest,
        named_folder,
        senteval_root,
    )
    from contrasent.data.senteval import fetch as download
    from contrasent.errors import DataError

    folder = named_folder(data_dir)
    root = senteval_root(data_dir) if check or folder.is_dir() else folder
    found = differences(root)
    if not check and any(difference.needed for difference in found):
        with progress_bar("downloading", "bar", "bytes", "speed") as advance:
            found = download(
                folder,
                url or SENTEVAL_URL,
                lambda done, total: advance(completed=done, total=total),
            )
        root = folder
    for difference in found:
        typer.echo(f"{root / difference.path}: {difference.what}", err=True)
    wrong = sum(difference.needed for difference in found)
    if wrong:
        raise DataError(
            f"{wrong} of {len(manifest())} files under {root} are missing or not the published "
            "ones; 'contrasent data fetch --data-dir NEW' downloads them into a new folder"
        )
    typer.echo(f"{root}: {len(manifest()) - len(found)} files are the published ones")


def leaks(
    train: Annotated[
        str,
        typer.Argument(
            help="Training text (.txt, .csv, .tsv, .jsonl, each also .gz; .parquet), or a data set "
            "on the Hugging Face hub as org/name:config@split."
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
        str, typer.Option(help="Splits of tasks named without one: any of train,dev,test,all.")
    ] = "test",
    columns: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated sentence columns of the training text, anchor first: names, or "
            "numbers from 0."
        ),
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Look for evaluation sentences and pairs in training text."""
    from contrasent.cli.evaluate import announce
    from contrasent.data.sources import open_examples
    from contrasent.evaluation.leaks import find_leaks
    from contrasent.evaluation.suite import load_suite
    from contrasent.evaluation.task_types import Options

    training = open_examples(train, listed(columns))
    suite = load_suite(listed(tasks), Options(data_dir, listed(splits)))
    announce(suite)
    with reading_progress("examples") as advance:
        found = find_leaks(training, suite, advance)
    if json:
        print_json(asdict(found), indent=2)
    else:
        from rich.console import Console

        from contrasent.report.terminal import print_table
        from contrasent.report.training_text import leaks_table

        print_table(Console(), leaks_table(found))
    raise_failures([f"{p.task}: {p.message}" for p in suite.problems if not p.missing])
