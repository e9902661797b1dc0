"""What a terminal shows: text without control characters, and the progress of long work."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

logger = logging.getLogger("contrasent")

_CONTROL = re.compile(
    "(?:\x1b[P\\]X^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\r\n]*(?:\x07|\x1b\\\\|\x9c)"  # OSC, DCS
    "|(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI
    "|\x1b[ -/]*[0-~]"
    "|[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Text without what a terminal obeys instead of showing it.

    Control sequences go whole (OSC, CSI, ...), and so do other control characters but tab and line
    feed, marks and overrides of the direction of writing, and bytes of a file's name that are none.
    """
    return _CONTROL.sub("", text)


def one_line(text: str) -> str:
    """A sentence without what would break a line or a terminal."""
    return " ".join(printable(text).split())


_LINES, _SECONDS_BETWEEN = 20, 30

Advance = Callable[..., None]
"""Takes the number of further items, and new values of ``total``, ``completed`` and of fields."""


@contextmanager
def progress_bar(
    *columns: str, total: int | None = None, done: int = 0, shown: bool = True, **fields: Any
) -> Iterator[Advance]:
    """Draw a line that is removed in the end.

    Columns are ``bar``, ``count``, ``bytes``, ``speed``, ``elapsed``, ``left``, ``spinner``;
    anything else is text with ``{task.completed}`` or ``{task.fields[name]}`` in it, of which
    ``fields`` are the first values. So many items were ``done`` before.
    """
    # Elsewhere than on a terminal even a line that is removed leaves one behind.
    console = _terminal() if shown else None
    if console is None:
        yield lambda *_, **__: None
        return
    from rich import progress as rich

    known: dict[str, list[rich.ProgressColumn]] = {
        "bar": [rich.BarColumn()],
        "count": [rich.MofNCompleteColumn()],
        "bytes": [rich.DownloadColumn()],
        "speed": [rich.TransferSpeedColumn()],
        "elapsed": [rich.TimeElapsedColumn(), rich.TextColumn("elapsed")],
        "left": [rich.TimeRemainingColumn(), rich.TextColumn("left")],
        "spinner": [rich.SpinnerColumn()],
    }
    drawn = [it for name in columns for it in known.get(name) or [rich.TextColumn(name)]]
    with rich.Progress(*drawn, console=console, transient=True) as progress:
        task = progress.add_task("", total=total, completed=done, **fields)

        def advance(count: int | None = None, **values: Any) -> None:
            progress.update(task, advance=count, **values)

        yield advance


def _terminal() -> Console | None:
    from rich.console import Console

    console = Console(stderr=True)
    return console if console.is_terminal else None


@contextmanager
def sentence_progress(total: int | None, shown: bool) -> Iterator[Advance]:
    """A bar of the sentences that are encoded; elsewhere than on a terminal, lines in the log."""
    left = ("left",) if total else ()
    columns = ("encoding", "bar", "count", "elapsed", *left)
    logs = shown and _terminal() is None
    done, told = 0, time.monotonic()
    with progress_bar(*columns, total=total, shown=shown) as drawn:

        def advance(count: int = 0) -> None:
            nonlocal done, told
            drawn(count)
            done += count
            if logs and time.monotonic() - told >= _SECONDS_BETWEEN:
                told = time.monotonic()
                logger.info("encoding: %s%s", f"{done:,}", f" of {total:,}" if total else "")

        yield advance


def reading_progress(what: str, shown: bool = True) -> AbstractContextManager[Advance]:
    """The number of rows that were read, of which nobody knows how many there are."""
    text = f"reading: {{task.completed:,.0f}} {what}"
    return progress_bar("spinner", text, "elapsed", shown=shown)


class StepProgress:
    """Shows the steps of a training run: a bar on a terminal, elsewhere some lines in the log."""

    def __init__(self, advance: Advance, total: int, done: int, lines: int) -> None:
        self._advance, self._total, self._done = advance, total, done
        self._every = max(1, total // lines) if lines else 0
        self._started = time.monotonic()

    def step(self, number: int, loss: float) -> None:
        """Count a step, by its number from 1."""
        self._advance(1, loss=f"loss {loss:#.4g}")
        if self._every and number % self._every == 0:
            each = (time.monotonic() - self._started) / max(1, number - self._done)
            left = each * (self._total - number)
            logger.info("step %d of %d: loss %#.4g, %.0f s left", number, self._total, loss, left)

    def doing(self, what: str) -> None:
        """Say what is done instead of a step."""
        self._advance(doing=what)


@contextmanager
def step_progress(total: int, done: int, shown: bool) -> Iterator[StepProgress]:
    """Show the steps of a run, of which so many were done before."""
    columns = ("{task.fields[doing]}", "bar", "count", "{task.fields[loss]}", "elapsed", "left")
    bar = progress_bar(*columns, total=total, done=done, shown=shown, doing="training", loss="")
    with bar as advance:
        yield StepProgress(advance, total, done, _LINES if shown and _terminal() is None else 0)
