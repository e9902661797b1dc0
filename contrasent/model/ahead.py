"""Work on a thread while the caller is busy with what was done before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Done = TypeVar("Done")


def ahead(items: Iterable[Item], work: Callable[[Item], Done]) -> Iterator[Done]:
    """``map(work, items)``, with the work on the next item done while the caller uses this one's.

    Items are taken on the caller's thread, one more than was asked for. The thread ends with the
    iterator: when it is exhausted, closed, or raises.

    Raises:
        Exception: what taking an item or working on it raised, after all that came before it was
            yielded.
    """
    with ThreadPoolExecutor(1, "contrasent-ahead") as pool:
        waiting: Future[Done] | None = None
        rest = iter(items)
        while True:
            try:
                job = pool.submit(work, next(rest))
            except StopIteration:
                break
            except Exception:
                if waiting is not None:
                    yield waiting.result()
                raise
            if waiting is not None:
                yield waiting.result()
            waiting = job
        if waiting is not None:
            yield waiting.result()
