"""What is computed once from a user's data and kept in folders, each named by what decides it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from contrasent.errors import ConfigError
from contrasent.files import writing_folder

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CacheKind(Generic[T]):
    """One kind of entries.

    Attributes:
        folder: holds all entries of the kind, below the cache.
        what: an entry's content in words, for messages.
        opened: reads an entry; None if it is missing, or its files are not what they should be.
    """

    folder: str
    what: str
    opened: Callable[[Path], T | None]


def default_cache() -> Path:
    """Where entries lie if nobody says: ``$CONTRASENT_CACHE``, or below the user's cache folder."""
    if chosen := os.environ.get("CONTRASENT_CACHE"):
        return Path(chosen)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "contrasent"


def kept(
    kind: CacheKind[T],
    key: Sequence[object],
    write: Callable[[Path], None],
    cache_dir: str | Path | None = None,
) -> T:
    """The entry of a key, computed unless it is there whole.

    If several processes want the same entry, one computes it and the others wait.

    Args:
        kind: what is kept.
        key: everything that decides the content; its hash names the entry.
        write: fills an empty folder. The folder then becomes the entry.
        cache_dir: the cache; None for :func:`default_cache`.

    Raises:
        ConfigError: ``cache_dir`` cannot be written to.
    """
    root = Path(cache_dir) if cache_dir is not None else default_cache()
    entry = root / kind.folder / hashlib.sha256(json.dumps(key).encode()).hexdigest()
    if (entry_value := kind.opened(entry)) is not None:
        return entry_value
    try:
        with _alone(entry, kind.what):
            if (entry_value := kind.opened(entry)) is not None:
                return entry_value
            with writing_folder(entry) as folder:
                write(folder)
            if (entry_value := kind.opened(entry)) is not None:
                return entry_value
            raise OSError(f"what was written to {entry} is not there")
    except (OSError, NotImplementedError) as error:
        raise ConfigError(
            f"cannot keep {kind.what} in {root}: {error}; "
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
