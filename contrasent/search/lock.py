"""One writer at a time; a writer that died leaves no lock behind."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from contrasent.errors import ConfigError


@contextmanager
def exclusive(folder: str | Path) -> Iterator[None]:
    """Keep every other process and thread from writing to ``folder`` inside the block.

    The operating system holds the lock, on a hidden file beside the folder, and lets go of it
    when the process ends in whatever way.

    Raises:
        ConfigError: somebody else writes to the folder; the message names the process.
    """
    path = Path(folder).resolve()
    path = path.with_name(f".{path.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    file = _locked(path)
    if file is None:
        raise ConfigError(
            f"{folder} is being written by process {_owner(path)}; wait until it has finished"
        )
    try:
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
    finally:
        with contextlib.suppress(PermissionError):  # Windows keeps a file that is open
            path.unlink(missing_ok=True)
        file.close()


def _locked(path: Path) -> IO[str] | None:
    """The lock file, locked, or None if somebody else holds it."""
    while True:
        file = path.open("a+", encoding="utf-8")
        if not _try_lock(file):
            file.close()
            return None
        # The last holder may have removed the file after we opened it: then we hold a lock that
        # nobody else would find.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()


def _try_lock(file: IO[str]) -> bool:
    if sys.platform == "win32":
        import msvcrt

        try:
            file.seek(1 << 20)  # beyond the text, which others must be able to read
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _owner(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip() or "unknown"
    except OSError:
        return "unknown"
