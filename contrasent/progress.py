"""Progress of long work on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def sentence_progress(total: int | None, shown: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function that is told how many more sentences are done.

    Args:
        total: sentences in all, if known.
        shown: whether to draw a bar; it is drawn on a terminal only.
    """
    if not shown or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("encoding"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("encoding", total=total)
        yield lambda count: progress.advance(task, count)
