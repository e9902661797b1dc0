"""What a terminal shows: text without control characters, and the progress of long work."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from contrasent.errors import logger

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


_SECONDS_BETWEEN = 30

Advance = Callable[..., None]
"""Takes the number of further items, and new values of ``total``, ``completed`` and of fields."""


@contextmanager
def progress_bar(
    text: str,
    total: int | None = None,
    *,
    done: int = 0,
    shown: bool = True,
    log: str = "",
    in_bytes: bool = False,
    **fields: Any,
) -> Iterator[Advance]:
    """Draw a line that is removed in the end; elsewhere than on a terminal ``log`` now and then.

    ``text`` may have ``{task.fields[name]}`` in it, of which ``fields`` are the first values;
    ``log`` has ``{done}`` and ``{name}``. So many items were ``done`` before.
    """
    if not shown:
        yield lambda *_, **__: None
        return
    from rich.console import Console

    console, last = Console(stderr=True), time.monotonic()

    def tell(count: int | None = None, **values: Any) -> None:
        nonlocal done, last
        done += count or 0
        fields.update(values)
        if log and count and time.monotonic() - last >= _SECONDS_BETWEEN:
            last = time.monotonic()
            logger.info(log.format(done=done, **fields))

    if not console.is_terminal:
        yield tell
        return
    from rich import progress as rich

    counted = rich.DownloadColumn() if in_bytes else rich.MofNCompleteColumn()
    elapsed, left = (rich.TimeElapsedColumn(), "elapsed"), (rich.TimeRemainingColumn(), "left")
    columns = (rich.TextColumn(text), rich.BarColumn(), counted, *elapsed, *left)
    with rich.Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total, completed=done, **fields)
        yield lambda count=None, **values: progress.update(task, advance=count, **values)


def sentence_progress(total: int | None, shown: bool) -> AbstractContextManager[Advance]:
    """The sentences that are encoded."""
    log = "encoding: {done:,}" + (f" of {total:,}" if total else "")
    return progress_bar("encoding", total, shown=shown, log=log)


def step_progress(total: int, done: int, shown: bool) -> AbstractContextManager[Advance]:
    """The steps of a training run, with the fields ``doing`` and ``loss``."""
    text, log = "{task.fields[doing]} {task.fields[loss]}", f"step {{done}} of {total}: {{loss}}"
    return progress_bar(text, total, done=done, shown=shown, log=log, doing="training", loss="")
