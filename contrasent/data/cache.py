"""What is computed once from a user's data and kept in folders, each named by what decides it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from contrasent.errors import ConfigError
from contrasent.files import writing_folder

logger = logging.getLogger(__name__)

T = TypeVar("T")

_DAMAGE = (OSError, ValueError, LookupError, TypeError)


def default_cache() -> Path:
    """Where entries lie if nobody says: ``$CONTRASENT_CACHE``, or below the user's cache folder."""
    if chosen := os.environ.get("CONTRASENT_CACHE"):
        return Path(chosen)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "contrasent"


def cached(
    folder: str,
    what: str,
    key: Sequence[object],
    read: Callable[[Path], T],
    write: Callable[[Path], None],
    cache_dir: str | Path | None = None,
) -> T:
    """The entry of a key, computed unless it is there whole.

    If several processes want the same entry, one computes it and the others wait. ConfigError if
    ``cache_dir`` cannot be written to. ``folder`` holds all entries of a kind, named by the hash of
    ``key``; ``what`` is their content in words, for messages. ``read`` raises OSError, ValueError,
    LookupError or TypeError if an entry is missing or damaged; ``write`` fills an empty folder,
    which then becomes the entry. ``cache_dir`` is by default :func:`default_cache`.
    """
    root = Path(cache_dir) if cache_dir is not None else default_cache()
    entry = root / folder / hashlib.sha256(json.dumps(key).encode()).hexdigest()
    with suppress(*_DAMAGE):
        return read(entry)
    try:
        with _alone(entry, what):
            with suppress(*_DAMAGE):
                return read(entry)
            with writing_folder(entry) as partial:
                write(partial)
            return read(entry)
    except (OSError, NotImplementedError) as error:
        raise ConfigError(
            f"cannot keep {what} in {root}: {error}; "
            "name a folder with room as cache_dir or in the environment variable CONTRASENT_CACHE"
        ) from error


@contextmanager
def _alone(entry: Path, what: str) -> Iterator[None]:
    """Keep other processes away from ``entry``; the operating system frees a dead one's lock."""
    from filelock import FileLock, Timeout

    entry.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(f"{entry}.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        logger.info("waiting for another process that computes the same %s", what)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def map_array(path: Path, dtype: DTypeLike, count: int) -> NDArray[Any]:
    """The ``count`` numbers of a file, mapped from disk; another size is a ValueError."""
    size, expected = path.stat().st_size, count * np.dtype(dtype).itemsize
    if size != expected:
        raise ValueError(f"{path.name} has {size} bytes instead of {expected}")
    return np.asarray(np.memmap(path, dtype, "r"))
