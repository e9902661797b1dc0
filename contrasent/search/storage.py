"""Storage of an index: manifest, segments, and matrices as ``.npy``.

The manifest is replaced last and as a whole: a segment that it does not list does not exist.

Shapes: N rows of a segment, D dimensions of a vector.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import ConfigDict, Field, PositiveInt, TypeAdapter, ValidationError

from contrasent.errors import CheckpointError, DataError
from contrasent.files import write_text, writing
from contrasent.model.protocol import Encoder

_HEADER = 128


Blocks = Iterator[tuple[np.ndarray, list[str]]]
"""``(n, D)`` rows, and their n texts."""


class NpyWriter:
    """An ``(N, D)`` float32 file whose N is known only at the end; ``with`` closes it.

    NumPy leaves room in the header for a larger N, so that closing writes the final one in place.
    """

    def __init__(self, path: Path, width: int) -> None:
        self.rows = 0
        self._width = width
        self._file = path.open("wb")
        self._write_header()

    def append(self, rows: np.ndarray) -> None:
        """Add ``(n, D)`` rows."""
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
    """Map an ``(N, D)`` float32 file; ``remedy`` ends the refusal of another shape."""
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


FILE = "manifest.json"
_FORMAT = "contrasent-index-1"
_REBUILD = "restore the folder from a copy or build the index again"

_STRICT = ConfigDict(strict=True, extra="forbid")


@dataclass(frozen=True, slots=True)
class Maker:
    """The encoder whose vectors the index holds.

    Attributes:
        name: the name or absolute folder it was loaded from.
        width: D, dimensions of a vector.
        precision: what matrix products ran in, as it was asked for.
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
    """Rows that were added together; ``name`` is the stem of their files."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: str
    rows: PositiveInt


@dataclass(frozen=True, slots=True)
class IndexManifest:
    """What an index holds; it is ``numbered`` if every id is the number of its row."""

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
    """Read what :func:`write_manifest` wrote; CheckpointError if it is damaged, or not there."""
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
        version = content.get("format") if isinstance(content, dict) else None
        if version != _FORMAT:
            raise CheckpointError(
                f"{path} has format {version!r}, but this version reads {_FORMAT!r}; build it again"
            )
        return TypeAdapter(IndexManifest).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))} is {first['input']!r}: {first['msg']}"
        raise CheckpointError(f"{path} is damaged ({reason}); {_REBUILD}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); {_REBUILD}") from error


_CHUNK = 16_384


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """An open segment, mapped from disk: ``(N, D)`` unit vectors, and Arrow columns of N cells."""

    vectors: np.ndarray
    ids: Any
    texts: Any


def read_segment(folder: Path, segment: Segment, width: int) -> SegmentRows:
    """Map the files of a segment; one that does not hold what the manifest says is refused."""
    import pyarrow as pa

    vectors = open_rows(_vectors(folder, segment.name), segment.rows, width, _REBUILD)
    path = _texts(folder, segment.name)
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (OSError, pa.ArrowInvalid) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); {_REBUILD}") from error
    if table.column_names != ["id", "text"] or table.num_rows != segment.rows:
        raise CheckpointError(
            f"{path} has {table.num_rows} rows of {table.column_names}; expected "
            f"{segment.rows} rows of ['id', 'text']; {_REBUILD}"
        )
    return SegmentRows(vectors, table.column("id"), table.column("text"))


def embed(encoder: Encoder, texts: Iterable[str], precision: str, show_progress: bool) -> Blocks:
    """Embed texts for an index, in bounded memory; an empty text is refused."""
    return blocks_with_texts(
        encoder,
        _require_texts(texts),
        chunk=_CHUNK,
        normalize=True,
        precision=precision,
        show_progress=show_progress,
    )


def write_segment(
    folder: Path,
    number: int,
    blocks: Blocks,
    width: int,
    ids: Sequence[str] | None,
    first: int = 0,
) -> Segment:
    """Write texts and their vectors with one id each; without ids, numbers of rows from ``first``.

    Refused are no text, another number of ids, and a vector without a direction.
    """
    import pyarrow as pa

    folder.joinpath("segments").mkdir(exist_ok=True)
    schema = pa.schema([("id", pa.string()), ("text", pa.string())])
    name = f"{number:06d}"
    with (
        writing(_vectors(folder, name)) as vectors_path,
        writing(_texts(folder, name)) as texts_path,
        NpyWriter(vectors_path, width) as vectors,
        pa.OSFile(str(texts_path), "wb") as sink,
        pa.ipc.new_file(sink, schema) as table,
    ):
        for block, here in blocks:
            start, end = vectors.rows, vectors.rows + len(here)
            names = list(map(str, range(first + start, first + end)))
            names = names if ids is None else list(ids[start:end])
            if len(names) < len(here):
                raise DataError(f"there are {start + len(names)} ids, but more texts")
            table.write_batch(pa.record_batch([names, here], schema=schema))
            vectors.append(_unit(block, vectors.rows, here))
        if not vectors.rows:
            raise DataError("there is no text to index")
        if ids is not None and len(ids) > vectors.rows:
            raise DataError(f"there are {len(ids)} ids, but {vectors.rows} texts")
    return Segment(name, vectors.rows)


def remove_unlisted(folder: Path, listed: Sequence[Segment]) -> None:
    """Delete what a writer that died before replacing the manifest left behind."""
    known = {path(folder, segment.name) for segment in listed for path in (_vectors, _texts)}
    for file in folder.joinpath("segments").glob("*"):
        if file not in known:
            file.unlink()


def _require_texts(texts: Iterable[str]) -> Iterator[str]:
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"text {row} is {type(text).__name__}, not a string: {text!r}")
        if not text.strip():
            raise DataError(f"text {row} is empty; leave it out, with its id")
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
