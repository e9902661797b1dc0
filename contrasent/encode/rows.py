"""Rows of vectors in a file, in float32 or in fewer bits.

Shapes: N rows, D dimensions of a vector.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from contrasent.files import readable, writing

_HEADER = 128
Append = Callable[[np.ndarray, Iterable[str]], None]
FORMS = {"float32": "<f4", "float16": "<f2", "int8": "|u1", "binary": "|u1"}
"""Numbers that vectors are kept as."""


def write_ranges(path: Path, blocks: Iterable[np.ndarray]) -> np.ndarray:
    """Write the least and the largest number of each dimension ``(2, D)`` of blocks of rows."""
    ends = [np.stack([block.min(axis=0), block.max(axis=0)]) for block in blocks]
    ranges = np.stack([np.min(ends, axis=0)[0], np.max(ends, axis=0)[1]])
    with writing(path) as partial, npy_writer(partial, ranges.shape[1]) as append:
        append(ranges, ())
    return ranges


def quantized(rows: np.ndarray, form: str, ranges: np.ndarray | None = None) -> np.ndarray:
    """``(n, D)`` rows in a form of `FORMS`; of int8 with the ``ranges (2, D)`` of its bytes.

    Bytes and bits are those of sentence-transformers' ``quantize_embeddings``, as ``uint8`` and
    ``ubinary``.
    """
    if form == "binary":
        return np.packbits(rows > 0, axis=1)
    if ranges is None:
        return np.ascontiguousarray(rows, dtype=FORMS[form])
    steps = (ranges[1] - ranges[0]) / 255
    cells = (rows - ranges[0]) / np.where(steps, steps, 1)
    return np.clip(np.floor(cells), 0, 255).astype(np.uint8)


def dequantized(codes: np.ndarray, ranges: np.ndarray | None) -> np.ndarray:
    """float32 rows of float16 ones, or of bytes, each as the middle of what it stands for."""
    if ranges is None:
        return codes.astype(np.float32)
    return (codes + np.float32(0.5)) * ((ranges[1] - ranges[0]) / 255) + ranges[0]


@contextmanager
def npy_writer(
    path: Path,
    width: int,
    form: str = "float32",
    ranges: np.ndarray | None = None,
    *,
    signed: bool = False,
) -> Iterator[Append]:
    """Yield what appends rows to an ``(N, D)`` file, whose header is written at the end.

    Bytes that are ``signed`` are less by 128: those of ``quantize_embeddings`` as ``int8`` and
    ``binary``.
    """
    kind, rows = np.dtype(FORMS[form]), 0
    shift = signed and kind == np.uint8
    columns = -(-width // 8) if form == "binary" else width
    with path.open("wb") as file:

        def write_header() -> None:
            descr = "|i1" if shift else kind.str
            described = {"descr": descr, "fortran_order": False, "shape": (rows, columns)}
            np.lib.format.write_array_header_1_0(file, described)

        def append(block: np.ndarray, _texts: Iterable[str] = ()) -> None:
            nonlocal rows
            codes = quantized(block.reshape(-1, width), form, ranges)
            file.write((codes ^ 0x80 if shift else codes).data)
            rows += len(block)

        write_header()
        yield append
        file.seek(0)
        write_header()


def open_rows(path: Path, rows: int, width: int, remedy: str, form: str = "float32") -> np.ndarray:
    """Map an ``(N, D)`` file; ``remedy`` ends the refusal of another one."""
    kind = np.dtype(FORMS[form])
    with readable(path, f"expected {rows} rows of {width} {form} numbers; {remedy}"):
        matrix: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        size = path.stat().st_size == _HEADER + rows * width * kind.itemsize
        if (matrix.shape, matrix.dtype, size) != ((rows, width), kind, True):
            raise ValueError(f"it has shape {matrix.shape} of {matrix.dtype}")
    return matrix
