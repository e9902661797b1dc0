"""Progress of long work on standard error, drawn on a terminal only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

Advance = Callable[..., None]
"""Takes the number of further items, and new values of ``total``, ``completed`` and of fields."""


@contextmanager
def progress_bar(
    *columns: str, total: int | None = None, done: int = 0, shown: bool = True, **fields: Any
) -> Iterator[Advance]:
    """Draw a line that is removed in the end.

    Args:
        columns: ``bar``, ``count``, ``bytes``, ``speed``, ``elapsed``, ``remaining``, ``spinner``;
            anything else is text with ``{task.completed}`` or ``{task.fields[name]}`` in it.
        total: items in all, if known.
        done: items that were done before.
        shown: whether to draw at all.
        fields: first values of the fields that the text names.
    """
    # Elsewhere than on a terminal even a line that is removed leaves one behind.
    console = _terminal() if shown else None
    if console is None:
        yield lambda *_, **__: None
        return
    from rich import progress as rich

    known: dict[str, Callable[[], rich.ProgressColumn]] = {
        "bar": rich.BarColumn,
        "count": rich.MofNCompleteColumn,
        "bytes": rich.DownloadColumn,
        "speed": rich.TransferSpeedColumn,
        "elapsed": rich.TimeElapsedColumn,
        "remaining": rich.TimeRemainingColumn,
        "spinner": rich.SpinnerColumn,
    }
    drawn = [known[name]() if name in known else rich.TextColumn(name) for name in columns]
    with rich.Progress(*drawn, console=console, transient=True) as progress:
        task = progress.add_task("", total=total, completed=done, **fields)

        def advance(count: int | None = None, **values: Any) -> None:
            progress.update(task, advance=count, **values)

        yield advance


def _terminal() -> Console | None:
    from rich.console import Console

    console = Console(stderr=True)
    return console if console.is_terminal else None


def sentence_progress(total: int | None, shown: bool) -> AbstractContextManager[Advance]:
    """A bar of the sentences that are encoded."""
    return progress_bar("encoding", "bar", "count", "elapsed", total=total, shown=shown)


def reading_progress(what: str, shown: bool = True) -> AbstractContextManager[Advance]:
    """The number of rows that were read, of which nobody knows how many there are."""
    text = f"reading: {{task.completed:,.0f}} {what}"
    return progress_bar("spinner", text, "elapsed", shown=shown)
