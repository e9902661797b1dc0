"""Matrices on disk as ``.npy``: written row by row in bounded memory, read through a memory map.

Shapes: N rows, D numbers in a row.
"""

from __future__ import annotations

import struct
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from contrasent.errors import CheckpointError

_HEADER = 128
_MAGIC = b"\x93NUMPY\x01\x00"


class NpyWriter:
    """An ``(N, D)`` float32 file whose N is known only at the end.

    The header has a fixed size, so that closing writes the final N in place. ``with`` closes it.
    """

    def __init__(self, path: Path, width: int) -> None:
        self.rows = 0
        self._width = width
        self._file = path.open("wb")
        self._file.write(_header(0, width))

    def append(self, rows: np.ndarray) -> None:
        """Add ``(n, D)`` rows."""
        block = np.ascontiguousarray(rows, dtype="<f4").reshape(-1, self._width)
        self._file.write(block.data)
        self.rows += len(block)

    def close(self) -> None:
        """Write the final number of rows into the header."""
        self._file.seek(0)
        self._file.write(_header(self.rows, self._width))
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()


def open_rows(path: Path, rows: int, width: int, remedy: str) -> np.ndarray:
    """Map an ``(N, D)`` float32 file that must have exactly this shape.

    Raises:
        CheckpointError: it is missing, cut off, or of another shape; ``remedy`` ends the message.
    """
    expected = f"expected {rows} rows of {width} float32 numbers"
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); {expected}; {remedy}") from error
    if not isinstance(found, np.ndarray) or found.dtype != np.dtype("<f4"):
        raise CheckpointError(f"{path} holds no float32 matrix; {expected}; {remedy}")
    if found.shape != (rows, width) or path.stat().st_size != _HEADER + rows * width * 4:
        raise CheckpointError(f"{path} has shape {found.shape}; {expected}; {remedy}")
    return found


def _header(rows: int, width: int) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}"
    length = _HEADER - len(_MAGIC) - 2
    return _MAGIC + struct.pack("<H", length) + text.ljust(length - 1).encode("latin-1") + b"\n"
