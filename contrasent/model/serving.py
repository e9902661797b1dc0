"""Evaluation mode, for one call or for as long as somebody asks for embeddings only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock

from torch import nn
from typing_extensions import override

_COUNTING = Lock()


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Dropout off inside; afterwards every part is in the mode it was in."""
    # Only what changes is written: a module takes microseconds to set an attribute.
    changed = [part for part in module.modules() if part.training]
    for part in changed:
        part.training = False
    try:
        yield
    finally:
        for part in changed:
            part.training = True


class Serving(AbstractContextManager[None]):
    """Evaluation mode from the first thread that enters until the last that leaves.

    Attributes:
        users: how many are inside.
    """

    def __init__(self, module: nn.Module) -> None:
        self.users = 0
        self._module = module
        self._mode: AbstractContextManager[None] = nullcontext()

    @override
    def __enter__(self) -> None:
        with _COUNTING:
            if not self.users:
                self._mode = evaluating(self._module)
                self._mode.__enter__()
            self.users += 1

    @override
    def __exit__(self, *_: object) -> None:
        with _COUNTING:
            self.users -= 1
            if not self.users:
                self._mode.__exit__(None, None, None)
                self._mode = nullcontext()
