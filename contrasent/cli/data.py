"""``contrasent data``: check, fetch, leaks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from contrasent.cli.options import (
    DataDir,
    Json,
    listed,
    plural,
    print_json,
    raise_failures,
    reading,
)

if TYPE_CHECKING:
    from rich.table import Table

    from contrasent.data.check import Finding, Report
    from contrasent.data.senteval import FileDifference
    from contrasent.data.tokenizer import Tokenizer


_ENOUGH = 100


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
    with reading("examples") as advance:
        report = survey(file, listed(columns), tokenizer, max_tokens, advance, labels=labels)
    if json:
        print_json(asdict(report), indent=2)
    else:
        _print_tables(report)
    report.require_usable()


def _tokenizer(encoder: str) -> Tokenizer:
    from contrasent.data.tokenizer import Tokenizer
    from contrasent.model import st_folder
    from contrasent.model.hub import resolve

    folder = resolve(encoder)
    if st_folder.is_in(folder):
        folder = st_folder.read(folder).transformer
    return Tokenizer.load(folder)


def _print_tables(report: Report) -> None:
    for name, value in _facts(report):
        typer.echo(f"{name:<12}{value}")
    if report.words:
        from rich.console import Console

        Console().print("", _length_table(report), sep="\n", end="")
    for number, sentences in enumerate(report.shown, start=1):
        typer.echo(f"example {number}")
        for view, sentence in zip(_views(report), sentences, strict=True):
            typer.echo(f"  {view}: {shown(sentence)}")


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    each = "" if report.views == 1 else " each"
    yield "file", report.source
    yield "columns", report.columns
    yield "examples", f"{report.examples:,} of {plural(report.views, 'sentence')}{each}"
    if report.classes is not None:
        of_class = ((name, n, n / max(report.examples, 1)) for name, n in report.classes.items())
        yield "classes", ", ".join(f"{name} {n:,} ({share:.1%})" for name, n, share in of_class)
        unused = f"{plural(report.unlabelled, 'row')} without a label"
    else:
        unused = plural(report.blank, "blank line")
    yield "left out", f"{plural(report.skipped, 'row')} with an empty sentence, {unused}"
    if report.documents is not None and (length := report.document_sentences):
        sizes = f"{length.minimum:,} to {length.maximum:,} sentences, {length.mean:.1f} in the mean"
        yield "documents", f"{report.documents:,} of {sizes}"
    yield "unreadable", plural(report.unreadable.count, "row")
    for message in report.unreadable.first:
        yield "", message
    share = f" ({report.repeated / report.examples:.1%})" if report.repeated else ""
    first, *others = _views(report)
    yield "repeated", f"{plural(report.repeated, 'example')}{share} with an earlier one's {first}"
    if report.identical is not None:
        yield "identical", f"{first} and {others[0]} in {_found(report.identical, report)}"
    yield "encoding", f"U+FFFD in {_found(report.replaced, report)}"
    yield "", f"control characters in {_found(report.control, report)}"
    yield "", f"looks wrongly decoded, as Ã© for é, in {_found(report.mojibake, report)}"
    if report.cut is not None and report.examples:
        share = f"{report.cut / (report.examples * report.views):.1%}"
        cut = plural(report.cut, "sentence")
        yield "cut", f"{cut} ({share}) longer than {report.max_tokens} tokens"
    yield "sha256", f"{report.sha256} (content and columns)"


def _length_table(report: Report) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD)
    table.add_column("length")
    for name in ("min", "median", "mean", "p95", "max"):
        table.add_column(name, justify="right")
    for unit, found in (("words", report.words), ("tokens", report.tokens or ())):
        for view, it in zip(_views(report), found, strict=False):
            row = (it.minimum, f"{it.median:g}", f"{it.mean:.1f}", it.p95, it.maximum)
            table.add_row(f"{view}, {unit}", *map(str, row))
    return table


def _views(report: Report) -> list[str]:
    return views(report.views) if report.classes is None else ["premise", "hypothesis"]


def views(count: int) -> list[str]:
    """What the sentences of an example are called, if there are so many."""
    if count == 1:
        return ["sentence"]
    hard = ["hard negative"] if count == 3 else [f"hard negative {k}" for k in range(1, count - 1)]
    return ["anchor", "positive", *hard]


def _found(finding: Finding, report: Report) -> str:
    lines = (where.removeprefix(report.source) for where in finding.first)
    first = f", first at {', '.join(lines)}" if finding.first else ""
    return f"{plural(finding.count, 'example')}{first}"


def shown(sentence: str) -> str:
    """A sentence on one line, safe to print, its end left out if it is long."""
    line = "".join(c if c.isprintable() else " " for c in " ".join(sentence.split()))
    return line if len(line) <= _ENOUGH else f"{line[:_ENOUGH]}..."


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
    from contrasent.data.senteval import differences, manifest, named_folder, senteval_root
    from contrasent.errors import DataError

    folder = named_folder(data_dir)
    root = senteval_root(data_dir) if check or folder.is_dir() else folder
    found = differences(root)
    if not check and any(difference.needed for difference in found):
        found = _download(folder, url)
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


def _download(folder: Path, url: str | None) -> list[FileDifference]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from contrasent.data import senteval as source

    columns = (TextColumn("downloading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("downloading", total=None)

        def advance(arrived: int, total: int | None) -> None:
            progress.update(task, completed=arrived, total=total)

        return source.fetch(folder, url or source.SENTEVAL_URL, advance)


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
    with reading("examples") as advance:
        found = find_leaks(training, suite, advance)
    if json:
        print_json(asdict(found), indent=2)
    else:
        from rich.console import Console

        from contrasent.report.leaks import print_leaks

        print_leaks(Console(), found)
    raise_failures([f"{p.task}: {p.message}" for p in suite.problems if not p.missing])
