"""Reports that commands write."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from contrasent.report.html.contents import Contents

Html = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        help="Write a report to FILE: tables, figures, settings and how to repeat them, in one "
        "page that loads nothing.",
        show_default=False,
    ),
]


def report(path: Path | None, contents: Contents) -> None:
    """Write a report that names the command that was called, where one is asked for."""
    from contrasent.report.html.page import write_report

    if path is not None:
        write_report(path, replace(contents, command=("contrasent", *sys.argv[1:])))
        typer.echo(f"{path}", err=True)
