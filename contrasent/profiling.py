"""Spans of a step in a profile, and the memory of freed tensors."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import AbstractContextManager
from typing import Any

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """Let this process use the memory of freed tensors again, from now on, where glibc is.

    It usually gives the memory of every large tensor back at once, and the system clears each page
    of the next one: a twelfth of a training step of MiniLM, a sixth of its encoding. What is kept
    goes back in :func:`give_back_freed_memory`.
    """
    library = _glibc()
    if library is not None:
        library.mallopt(_MMAP_MAX, 0)
        library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def give_back_freed_memory() -> None:
    """Return to the system what the C library holds of freed tensors.

    Every batch has another number of tokens, so its tensors have other sizes, and glibc's heap
    comes to hold several times what is in use: 4.3 GB instead of 1 in an epoch of MiniLM.
    """
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def keep_few_compiled_products() -> None:
    """Cut the caches of compiled matrix products of torch on a CPU, before the first product.

    oneDNN and torch's layer above it keep the last 1,024, one for each number of rows, of up to
    2 MB; batches of a long text hardly ever have as many tokens again.
    """
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(name, "64")


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") else None


PARTS = (
    "encoder",
    "generator",
    "vocabulary",
    "discriminator",
    "backward",
    "communication",
    "update",
)
"""Names of the spans that a training step marks in a trace; none lies in another."""


def part(name: str) -> AbstractContextManager[Any]:
    """Mark what runs inside as the span ``name``, one of :data:`PARTS`; free without a profiler."""
    from torch.profiler import record_function

    return record_function(name)
