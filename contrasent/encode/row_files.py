"""Files of rows: embeddings as ``.npy`` or Parquet, and blocks of them with their texts.

Shapes: N sentences, D embedding width.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np

from contrasent.errors import CheckpointError
from contrasent.model.protocol import Encoder

_HEADER = 128

Blocks = Iterator[tuple[np.ndarray, list[str]]]
"""``(n, D)`` rows, and their n texts."""


class NpyWriter:
    """An ``(N, D)`` float32 file whose N is known only at the end; ``with`` closes it.

    NumPy leaves room in the header for a larger N, so that closing writes the final one in place.
    """

    def __init__(self, path: Path, width: int) -> None:
        self.rows, self._width = 0, width
        self._file = path.open("wb")
        self._write_header()

    def append(self, rows: np.ndarray, _texts: Iterable[str] = ()) -> None:
        """Add ``(n, D)`` rows; their texts are not kept."""
        block = np.ascontiguousarray(rows, dtype="<f4").reshape(-1, self._width)
        self._file.write(block.data)
        self.rows += len(block)

    def _write_header(self) -> None:
        shape = (self.rows, self._width)
        described = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, described)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if kind is None:
                self._file.seek(0)
                self._write_header()


class ParquetWriter:
    """A Parquet file of the columns ``text`` and ``embedding``; ``with`` closes it."""

    def __init__(self, path: Path, encoder: Encoder) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        self.rows, vectors = 0, pa.list_(pa.float32(), encoder.width)
        about = {"encoder": encoder.name, "pooler": encoder.pooler, "head": encoder.head_name}
        about["fingerprint"] = encoder.fingerprint()
        schema = pa.schema([("text", pa.string()), ("embedding", vectors)], metadata=about)
        self._file = parquet.ParquetWriter(path, schema, compression="zstd", use_dictionary=False)

    def append(self, rows: np.ndarray, texts: Iterable[str]) -> None:
        """Add ``(n, D)`` rows and their n texts."""
        import pyarrow as pa

        flat = pa.array(np.ascontiguousarray(rows).reshape(-1))
        vectors = pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])
        names = pa.array(islice(texts, len(rows)), pa.string())
        self._file.write_batch(pa.record_batch([names, vectors], schema=self._file.schema))
        self.rows += len(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def row_writer(path: Path, suffix: str, encoder: Encoder) -> NpyWriter | ParquetWriter:
    """What writes the file ``path`` of a kind that is named by its ``suffix``."""
    npy = suffix == ".npy"
    return NpyWriter(path, encoder.width) if npy else ParquetWriter(path, encoder)


def blocks_with_texts(encoder: Encoder, texts: Iterable[str], **how: Any) -> Blocks:
    """Blocks of rows, each with its texts; an encoder reads ahead of its rows."""
    read: deque[str] = deque()

    def remember() -> Iterator[str]:
        for text in texts:
            read.append(text)
            yield text

    for block in encoder.encode_stream(remember(), **how):
        yield block, [read.popleft() for _ in block]


def open_rows(path: Path, rows: int, width: int, remedy: str) -> np.ndarray:
    """Map an ``(N, D)`` float32 file; ``remedy`` ends the refusal of another one."""
    try:
        matrix: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        size = path.stat().st_size == _HEADER + rows * width * 4
        if (matrix.shape, matrix.dtype, size) != ((rows, width), np.dtype("<f4"), True):
            raise ValueError(f"it has shape {matrix.shape} of {matrix.dtype}")
    except (OSError, ValueError, EOFError, AttributeError) as error:
        expected = f"expected {rows} rows of {width} float32 numbers"
        raise CheckpointError(f"{path} cannot be read ({error}); {expected}; {remedy}") from error
    return matrix
