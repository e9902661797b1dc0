"""Storage of an index: manifest, segments, and matrices as ``.npy``.

The manifest is replaced last and as a whole: a segment that it does not list does not exist.

Shapes: N rows of a segment, D dimensions of a vector.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import ConfigDict, Field, PositiveInt, TypeAdapter, ValidationError

from contrasent.errors import CheckpointError, DataError
from contrasent.files import write_text, writing
from contrasent.model.protocol import Encoder

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
        matrix = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); {expected}; {remedy}") from error
    if not isinstance(matrix, np.ndarray) or matrix.dtype != np.dtype("<f4"):
        raise CheckpointError(f"{path} holds no float32 matrix; {expected}; {remedy}")
    if matrix.shape != (rows, width) or path.stat().st_size != _HEADER + rows * width * 4:
        raise CheckpointError(f"{path} has shape {matrix.shape}; {expected}; {remedy}")
    return matrix


def _header(rows: int, width: int) -> bytes:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}"
    length = _HEADER - len(_MAGIC) - 2
    return _MAGIC + struct.pack("<H", length) + text.ljust(length - 1).encode("latin-1") + b"\n"


FILE = "manifest.json"
_FORMAT = "contrasent-index-1"
_REBUILD = "restore the folder from a copy or build the index again"

_STRICT = ConfigDict(strict=True, extra="forbid")


@dataclass(frozen=True, slots=True)
class Maker:
    """The encoder whose vectors the index holds.

    Attributes:
        name: the name or absolute folder it was loaded from.
        fingerprint: see :meth:`contrasent.model.encoder.SentenceEncoder.fingerprint`.
        pooler: how token states became an embedding.
        head: the map after the pooler, ``none`` or ``mlp``.
        width: D, dimensions of a vector.
        precision: what matrix products ran in, as it was asked for.
        engine: what computed the transformer.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: str
    fingerprint: str
    pooler: str
    head: str
    width: int
    precision: str
    engine: str = "torch"


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows that were added together.

    Attributes:
        name: stem of the segment's files.
        rows: number of rows.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: str
    rows: PositiveInt


@dataclass(frozen=True, slots=True)
class IndexManifest:
    """What an index holds.

    Attributes:
        encoder: what made the vectors.
        segments: where they are, in the order of their rows.
        numbered: whether every id is the number of its row.
        format: of the folder.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    encoder: Maker
    segments: Annotated[tuple[Segment, ...], Field(min_length=1)]
    numbered: bool
    format: str = _FORMAT

    @property
    def rows(self) -> int:
        """Rows of all segments."""
        return sum(segment.rows for segment in self.segments)


def write_manifest(folder: Path, manifest: IndexManifest) -> None:
    """Make ``manifest`` what the folder holds, at once."""
    write_text(folder / FILE, json.dumps(asdict(manifest), indent=2) + "\n")


def read_manifest(folder: Path) -> IndexManifest:
    """Read what :func:`write_manifest` wrote.

    Raises:
        CheckpointError: there is no index in ``folder``, or its manifest is damaged or of
            another version.
    """
    path = folder / FILE
    if not path.is_file():
        what = "is not a folder" if not folder.is_dir() else f"holds no {FILE}"
        raise CheckpointError(
            f"there is no index at {folder}: it {what}; make one with: "
            f"contrasent index build MODEL INPUT {folder}"
        )
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged ({error}); {_REBUILD}") from error
    version = content.get("format") if isinstance(content, dict) else None
    if version != _FORMAT:
        raise CheckpointError(
            f"{path} has format {version!r}, but this version reads {_FORMAT!r}; build it again"
        )
    try:
        return TypeAdapter(IndexManifest).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        reason = f"{place} is {first['input']!r}: {first['msg']}"
        raise CheckpointError(f"{path} is damaged ({reason}); {_REBUILD}") from error


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
class SegmentRows:
    """An open segment: nothing is in memory until it is looked at.

    Attributes:
        vectors: ``(N, D)`` float32 unit vectors, memory-mapped.
        ids: N ids, an Arrow column.
        texts: N texts, an Arrow column.
    """

    vectors: np.ndarray
    ids: Any
    texts: Any


def read_segment(folder: Path, segment: Segment, width: int) -> SegmentRows:
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
    return SegmentRows(vectors, table.column("id"), table.column("text"))


def write_segment(
    folder: Path,
    name: str,
    encoder: Encoder,
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
        _record(addition.texts, read),
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


def _record(texts: Iterable[str], read: list[str]) -> Iterator[str]:
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
