"""Vectors in a file, a row each, in float32 or in fewer bits.

Shapes: N rows, D dimensions of a vector.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from contrasent.files import readable, writing
from contrasent.model.protocol import Encoder

_HEADER = 128
Append = Callable[[np.ndarray, Iterable[str]], None]
FORMS = {"float32": "<f4", "float16": "<f2", "int8": "|u1", "binary": "|u1"}
"""Numbers that vectors are kept as."""


def write_ranges(path: Path, blocks: Iterable[np.ndarray]) -> np.ndarray:
    """Write the least and the largest number of each dimension ``(2, D)`` of blocks of rows."""
    ends = [np.stack([block.min(axis=0), block.max(axis=0)]) for block in blocks]
    ranges = np.stack([np.min(ends, axis=0)[0], np.max(ends, axis=0)[1]])
    with npy_writer(path, ranges.shape[1]) as append:
        append(ranges, ())
    return ranges


def quantized(rows: np.ndarray, form: str, ranges: np.ndarray | None = None) -> np.ndarray:
    """``(n, D)`` rows in a form; bytes as sentence-transformers' ``uint8`` and ``ubinary``."""
    if form == "binary":
        return np.packbits(rows > 0, axis=1)
    if ranges is None:
        return np.ascontiguousarray(rows, dtype=FORMS[form])
    steps = (ranges[1] - ranges[0]) / 255
    cells = np.floor((rows - ranges[0]) / np.where(steps, steps, 1))
    return np.asarray(np.clip(cells, 0, 255), np.uint8)


@dataclass(frozen=True, slots=True)
class SmallVectors:
    """``(N, D)`` vectors in float16, or in bytes of ``ranges (2, D)``; rows of it are float32."""

    codes: np.ndarray
    ranges: np.ndarray | None

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        import torch

        floats: np.ndarray = torch.from_numpy(self.codes[rows]).float().numpy()  # numpy is slower
        if self.ranges is not None:  # the middle of what a byte stands for
            floats += 0.5
            floats *= (self.ranges[1] - self.ranges[0]) / 255
            floats += self.ranges[0]
        return floats


Vectors = np.ndarray | SmallVectors


@contextmanager
def npy_writer(
    path: Path, width: int, form: str = "float32", ranges: Any = None, *, signed: bool = False
) -> Iterator[Append]:
    """Yield what appends rows to an ``(N, D)`` file, which is there when the block succeeds.

    Signed bytes are those of sentence-transformers' ``int8`` and ``binary``.
    """
    rows, shift = 0, signed and FORMS[form] == "|u1"
    columns, descr = -(-width // 8) if form == "binary" else width, "|i1" if shift else FORMS[form]
    with writing(path) as partial, partial.open("wb") as file:

        def write_header() -> None:
            described = {"descr": descr, "fortran_order": False, "shape": (rows, columns)}
            np.lib.format.write_array_header_1_0(file, described)

        def append(block: np.ndarray, _texts: Iterable[str] = ()) -> None:
            nonlocal rows
            codes = quantized(block.reshape(-1, width), form, ranges)
            file.write((codes ^ 0x80 if shift else codes).data)
            rows += len(block)

        write_header()
        yield append
        file.seek(0)  # the rows are counted
        write_header()


@contextmanager
def _parquet_writer(path: Path, encoder: Encoder) -> Iterator[Append]:
    import pyarrow as pa
    from pyarrow import parquet

    about = {"encoder": encoder.name, "pooler": encoder.pooler, "head": encoder.head_name}
    about["fingerprint"] = encoder.fingerprint()
    columns = [("text", pa.string()), ("embedding", pa.list_(pa.float32(), encoder.width))]
    schema = pa.schema(columns, metadata=about)
    how: Any = {"compression": "zstd", "use_dictionary": False}
    with writing(path) as partial, parquet.ParquetWriter(partial, schema, **how) as file:

        def append(rows: np.ndarray, texts: Iterable[str]) -> None:
            flat = pa.array(np.ascontiguousarray(rows).reshape(-1))
            vectors = pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])
            names = pa.array(islice(texts, len(rows)), pa.string())
            file.write_batch(pa.record_batch([names, vectors], schema=schema))

        yield append


def row_writer(path: Path, encoder: Encoder, *form: Any) -> AbstractContextManager[Append]:
    """Write ``.npy``, in a form of its numbers, or ``.parquet``, whole or not at all."""
    if path.suffix == ".npy":
        return npy_writer(path, encoder.width, *form, signed=True)
    return _parquet_writer(path, encoder)


def open_rows(path: Path, rows: int, width: int, remedy: str, form: str = "float32") -> np.ndarray:
    """Map an ``(N, D)`` file; ``remedy`` ends the refusal of another one."""
    kind = np.dtype(FORMS[form])
    with readable(path, f"expected {rows} rows of {width} {form} numbers; {remedy}"):
        mode: Any = "r" if form == "float32" else "c"  # torch takes what could be written
        matrix: np.ndarray = np.load(path, mmap_mode=mode, allow_pickle=False)
        size = path.stat().st_size == _HEADER + rows * width * kind.itemsize
        if (matrix.shape, matrix.dtype, size) != ((rows, width), kind, True):
            raise ValueError(f"it has shape {matrix.shape} of {matrix.dtype}")
    return matrix
