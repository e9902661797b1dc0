"""Options and results of several commands."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import typer

from contrasent import evaluation, model, report
from contrasent.cli.app import tell
from contrasent.errors import ContrasentError
from contrasent.files import write_text
from contrasent.options import Loading, Measuring
from contrasent.progress import printable
from contrasent.records import Record
from contrasent.settings import shared

T = TypeVar("T")

STDOUT = "-"
"""What names standard output in place of a file."""


def load(options: Loading, name: str) -> model.LoadedEncoder:
    """The encoder, as its options say."""
    return model.load_encoder(name, **shared(options, Loading))


def use(options: Measuring, name: str) -> evaluation.EncoderUse:
    """The encoder in the precision that was asked for, with a progress bar."""
    return evaluation.EncoderUse.by(options, name, model.training_seed(name), True)


def labels(models: Sequence[str]) -> dict[str, str]:
    """The models by a short name, or by the whole one where the short one is not theirs alone."""
    names = {whole: report.short_encoder(whole) for whole in models}
    counts = Counter(names.values())
    return {name if counts[name] == 1 else whole: whole for whole, name in names.items()}


def for_each(models: Sequence[str], measure: Callable[[str], T]) -> tuple[dict[str, T], list[str]]:
    """Measure every model that can be, and say what failed; an only one's failure is raised."""
    results, failures = dict[str, T](), list[str]()
    for name in dict.fromkeys(models):
        try:
            results[name] = measure(name)
        except ContrasentError as error:
            if len(models) == 1:
                raise
            failures.append(f"{name}: {error}")
    return results, failures


def raise_failures(failures: Sequence[str]) -> None:
    """End with exit code 2 if something failed."""
    if failures:
        raise ContrasentError("\n".join(failures))


def print_tables(*tables: report.Table) -> None:
    """Print tables on standard output, a blank line between them."""
    from rich.console import Console

    console = Console()
    for place, table in enumerate(tables):
        if place:
            console.print()
        report.print_table(console, table)


def print_json(value: object, indent: int | None = None) -> None:
    """Print JSON in full precision."""
    from json import dumps

    text = dumps(value, ensure_ascii=False, indent=indent)
    typer.echo(text if text == printable(text) else dumps(value, indent=indent))


def write_lines(json: str | None, lines: str) -> bool:
    """Write JSON lines to a file, or print them; True if they stand in place of the table."""
    if json == STDOUT:
        typer.echo(lines, nl=False)
    elif json is not None:
        write_text(json, lines)
    return json == STDOUT


def called() -> str:
    """The command that was called."""
    return shlex.join(("contrasent", *sys.argv[1:]))


def with_command(records: Iterable[Record]) -> tuple[Record, ...]:
    """The records, with the command that measured them."""
    return tuple(replace(record, command=called()) for record in records)


def write_html(path: Path | None, contents: report.Contents) -> None:
    """Write a report that names the command that was called, where one is asked for."""
    if path is not None:
        report.write_report(path, replace(contents, command=called()))
        tell(str(path))
