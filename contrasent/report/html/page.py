"""The page: everything in one file that loads nothing, written whole or not at all."""

from __future__ import annotations

import shlex
from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from contrasent import __version__
from contrasent.errors import ConfigError
from contrasent.files import write_text
from contrasent.report.html.commands import commands, is_called
from contrasent.report.html.compared import compared_grids
from contrasent.report.html.contents import Contents, doubts, rows_of
from contrasent.report.html.geometry import figures, geometry_grids
from contrasent.report.html.neighbours import browsers
from contrasent.report.html.scores import every_grid, score_grids
from contrasent.report.html.settings import settings_grids
from contrasent.report.html.summary import best_of, heading, key_numbers, told

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = Path(__file__).parent / "templates"


def page(contents: Contents) -> str:
    """The report as HTML; the same contents give the same text."""
    from markupsafe import Markup

    by_identity = rows_of(contents)
    rows = list(by_identity.values())
    labels = [row.label for row in rows]
    scores, geometry = score_grids(rows), geometry_grids(contents, by_identity)
    drawn, browse = figures(contents, by_identity), browsers(contents, by_identity)
    script, style = _script(), (_TEMPLATES / "style.css").read_text(encoding="utf-8")
    return (
        _environment()
        .get_template("report.html")
        .render(
            heading=heading(labels),
            told=told(scores, {"figure": len(drawn)}),
            warnings=[*contents.warnings, *doubts(contents, by_identity)],
            best=best_of(scores),
            summary=key_numbers(labels, scores, geometry),
            scores=scores,
            compared=compared_grids(by_identity, contents.means),
            geometry=geometry,
            figures=drawn,
            browsers=browse,
            every=every_grid(rows) if contents.records else None,
            settings=settings_grids(contents, rows),
            commands=commands(contents, rows),
            called=is_called(contents),
            command=shlex.join(contents.command),
            version=__version__,
            # Ours, and not a word of it from what is reported.
            script=Markup(script),
            style=Markup(style),
            script_sha256=b64encode(sha256(script.encode()).digest()).decode(),
            svg=Markup,
        )
    )


def write_report(path: str | Path, contents: Contents) -> None:
    """Write the report, whole or not at all."""
    write_text(path, page(contents))


def refuse_existing_report(path: str | Path | None, *, overwrite: bool) -> None:
    """Make sure that a report can be written there, if one is asked for, and that none is lost.

    Raises:
        ConfigError: it is a folder, or a file and not to be replaced.
    """
    if path is None:
        return
    if Path(path).is_dir():
        raise ConfigError(f"--html {path} is a folder; name a file in it")
    if Path(path).exists() and not overwrite:
        raise ConfigError(f"{path} exists already; name another file or add --overwrite")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _script() -> str:
    return (_TEMPLATES / "script.js").read_text(encoding="utf-8")
