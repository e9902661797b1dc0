"""What goes into a shard: embedded blocks with their texts, as rows of a Parquet file too.

Shapes: N sentences, D embedding width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
from typing_extensions import override

from contrasent.errors import CheckpointError
from contrasent.model.protocol import Encoder
from contrasent.model.st_layers import Conventions
from contrasent.search.storage import NpyWriter, blocks_with_texts


class NpyRows(NpyWriter):
    """A matrix as ``.npy``, without the texts of its rows."""

    def __init__(self, path: Path, encoder: Encoder) -> None:
        super().__init__(path, encoder.width)

    @override
    def append(self, rows: np.ndarray, texts: Iterable[str] = ()) -> None:
        """Add ``(n, D)`` rows."""
        super().append(rows)


class ParquetRows:
    """A Parquet file of the columns ``text`` and ``embedding``; ``with`` closes it."""

    def __init__(self, path: Path, encoder: Encoder) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        self.rows, self._width = 0, encoder.width
        vectors = pa.list_(pa.float32(), encoder.width)
        about = {"encoder": encoder.name, "pooler": encoder.pooler, "head": encoder.head_name}
        about["fingerprint"] = encoder.fingerprint()
        schema = pa.schema([("text", pa.string()), ("embedding", vectors)], metadata=about)
        self._file = parquet.ParquetWriter(path, schema, compression="zstd", use_dictionary=False)

    def append(self, rows: np.ndarray, texts: Iterable[str]) -> None:
        """Add ``(n, D)`` rows and their n texts."""
        import pyarrow as pa

        flat = pa.array(np.ascontiguousarray(rows).reshape(-1))
        vectors = pa.FixedSizeListArray.from_arrays(flat, self._width)
        names = pa.array(islice(texts, len(rows)), pa.string())
        schema = self._file.schema
        self._file.write_batch(pa.record_batch([names, vectors], schema=schema))
        self.rows += len(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def embed_blocks(
    encoder: Encoder, sentences: Iterable[str], encoding: Mapping[str, Any]
) -> Iterator[tuple[np.ndarray, list[str], int]]:
    """Blocks of rows, each with its sentences and the number of those that were cut."""
    for block, texts in blocks_with_texts(encoder, sentences, **encoding):
        bad = np.flatnonzero(~np.isfinite(block).all(axis=1))
        if bad.size:
            text = texts[int(bad[0])][:80]
            raise CheckpointError(f"{encoder.name} gives numbers that are not finite: {text!r}")
        yield block, texts, _count_truncated(encoder, texts)


def _count_truncated(encoder: Encoder, texts: list[str]) -> int:
    # A token stands for at least one byte, so only these can be too long: the others need not be
    # tokenized a second time.
    conventions: Conventions = getattr(encoder, "conventions", Conventions())
    room = encoder.max_tokens - 2 - len(conventions.resolve().encode())
    long = [text for text in texts if len(text.encode()) > room]
    return encoder.count_truncated(long) if long else 0
