"""Rows of an index on disk: unit vectors as ``.npy``, ids and texts as an Arrow file.

Shapes: N rows of a segment, D numbers in a vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from contrasent.errors import CheckpointError, DataError
from contrasent.files import writing
from contrasent.search.encoder import TextEncoder
from contrasent.search.manifest import Maker, Segment
from contrasent.search.npy import NpyWriter, open_rows

_CHUNK = 16_384
_REMEDY = "restore the index from a copy or build it again"


@dataclass(frozen=True, slots=True)
class Addition:
    """Texts to be indexed.

    Attributes:
        texts: N texts, read once.
        ids: one id each; None numbers the rows.
        first: the number of the first row in the index.
    """

    texts: Iterable[str]
    ids: Sequence[str] | None
    first: int

    def names(self, start: int, count: int) -> list[str]:
        """The ids of ``count`` texts from the ``start``-th on; fewer if there are no more."""
        if self.ids is None:
            return [str(self.first + row) for row in range(start, start + count)]
        return list(self.ids[start : start + count])


@dataclass(frozen=True, slots=True)
class Rows:
    """An open segment: nothing is in memory until it is looked at.

    Attributes:
        vectors: ``(N, D)`` float32 unit vectors, memory-mapped.
        ids: N ids, an Arrow column.
        texts: N texts, an Arrow column.
    """

    vectors: np.ndarray
    ids: Any
    texts: Any


def read_segment(folder: Path, segment: Segment, width: int) -> Rows:
    """Map the files of a segment.

    Raises:
        CheckpointError: a file is missing, damaged, or does not hold what the manifest says.
    """
    import pyarrow as pa

    vectors = open_rows(_vectors(folder, segment.name), segment.rows, width, _REMEDY)
    path = _texts(folder, segment.name)
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (OSError, pa.ArrowInvalid) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); {_REMEDY}") from error
    if table.column_names != ["id", "text"] or table.num_rows != segment.rows:
        raise CheckpointError(
            f"{path} has {table.num_rows} rows of {table.column_names}; expected "
            f"{segment.rows} rows of ['id', 'text']; {_REMEDY}"
        )
    return Rows(vectors, table.column("id"), table.column("text"))


def write_segment(
    folder: Path,
    name: str,
    encoder: TextEncoder,
    maker: Maker,
    addition: Addition,
    *,
    show_progress: bool,
) -> Segment:
    """Embed the texts and write them with their ids, in bounded memory.

    Raises:
        DataError: there is no text, one is empty, or there are not as many ids as texts.
        CheckpointError: the encoder gives a vector without a direction.
    """
    import pyarrow as pa

    folder.joinpath("segments").mkdir(exist_ok=True)
    schema = pa.schema([("id", pa.string()), ("text", pa.string())])
    read: list[str] = []
    blocks = encoder.encode_stream(
        _recorded(addition.texts, read),
        chunk=_CHUNK,
        normalize=True,
        precision=maker.precision,
        show_progress=show_progress,
    )
    with (
        writing(_vectors(folder, name)) as vectors_path,
        writing(_texts(folder, name)) as texts_path,
        NpyWriter(vectors_path, maker.width) as vectors,
        pa.OSFile(str(texts_path), "wb") as sink,
        pa.ipc.new_file(sink, schema) as table,
    ):
        for block in blocks:
            here, read[:] = read[: len(block)], read[len(block) :]
            names = addition.names(vectors.rows, len(here))
            if len(names) < len(here):
                raise DataError(f"there are {vectors.rows + len(names)} ids, but more texts")
            table.write_batch(pa.record_batch([names, here], schema=schema))
            vectors.append(_unit(block, vectors.rows, here))
        if not vectors.rows:
            raise DataError("there is no text to index")
        if addition.ids is not None and len(addition.ids) > vectors.rows:
            raise DataError(f"there are {len(addition.ids)} ids, but {vectors.rows} texts")
    return Segment(name, vectors.rows)


def remove_unlisted(folder: Path, listed: Sequence[Segment]) -> None:
    """Delete what a writer that died before replacing the manifest left behind."""
    known = {path(folder, segment.name) for segment in listed for path in (_vectors, _texts)}
    for file in folder.joinpath("segments").glob("*"):
        if file not in known:
            file.unlink()


def _recorded(texts: Iterable[str], read: list[str]) -> Iterator[str]:
    """Pass texts on, checked, and keep them until their vectors are there."""
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"text {row} is {type(text).__name__}, not a string: {text!r}")
        if not text.strip():
            raise DataError(f"text {row} is empty; leave it out, with its id")
        read.append(text)
        yield text


def _unit(rows: np.ndarray, before: int, texts: Sequence[str]) -> np.ndarray:
    length = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    bad = np.flatnonzero(~(np.isfinite(length[:, 0]) & (length[:, 0] > 0)))
    if bad.size:
        row = int(bad[0])
        raise CheckpointError(
            f"the encoder gives a vector without a direction (zero or not finite) for text "
            f"{before + row}: {texts[row][:80]!r}; check the encoder"
        )
    unit: np.ndarray = (rows / length).astype(np.float32)
    return unit


def _vectors(folder: Path, name: str) -> Path:
    return folder / "segments" / f"{name}.npy"


def _texts(folder: Path, name: str) -> Path:
    return folder / "segments" / f"{name}.arrow"
