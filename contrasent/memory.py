"""Giving freed memory back."""

from __future__ import annotations

import ctypes
import sys


def give_back_freed_memory() -> None:
    """Return to the system what the C library holds of freed tensors.

    Every batch has another number of tokens, so its tensors have other sizes, and glibc's heap
    comes to hold several times what is in use: 4.3 GB instead of 1 in an epoch of MiniLM.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
