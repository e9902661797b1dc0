"""What may be kept of the weights while somebody promises that they do not change."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any, Self, TypeVar

from typing_extensions import override

T = TypeVar("T")

_COUNTING = Lock()


class Kept(AbstractContextManager[None]):
    """A promise that any thread may give, and again; what is kept goes with the last of them."""

    def __init__(self) -> None:
        self._users = 0
        self._made: dict[Hashable, Any] = {}

    @override
    def __enter__(self) -> None:
        with _COUNTING:
            # What a thread put here after the last promise ended may be of other weights.
            self._made = self._made if self._users else {}
            self._users += 1

    @override
    def __exit__(self, *_: object) -> None:
        with _COUNTING:
            self._users -= 1
            self._made = self._made if self._users else {}

    @override
    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        """A copy has promised nothing: whoever ends this promise does not know of it."""
        return type(self), ()

    @property
    def holds(self) -> bool:
        """Whether somebody has given the promise."""
        return self._users > 0

    def __contains__(self, key: Hashable) -> bool:
        """Whether something was made under ``key`` and is kept."""
        return key in self._made

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What was made under ``key``, or is made now."""
        kept = self._made
        made: T | None = kept.get(key)
        if made is None:
            made = kept[key] = make()
        return made
