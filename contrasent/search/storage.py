"""Storage of an index: manifest, segments, and matrices as ``.npy``.

The manifest is replaced last and as a whole: a segment that it does not list does not exist.

Shapes: N rows of a segment, D dimensions of a vector.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import ConfigDict, Field, NonNegativeInt, TypeAdapter, ValidationError

from contrasent.errors import CheckpointError, DataError
from contrasent.files import inside, recover_folder, refuse_existing, write_text, writing
from contrasent.model.conventions import role_options
from contrasent.model.protocol import Encoder
from contrasent.search.makers import STRICT, Maker
from contrasent.search.nearest import AnnInfo

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

    def append(self, rows: np.ndarray, _texts: Iterable[str] = ()) -> None:
        """Add ``(n, D)`` rows; their texts are not kept. CheckpointError for another shape."""
        if rows.ndim != 2 or rows.shape[1] != self._width:
            raise CheckpointError(f"rows have shape {rows.shape}; expected (n, {self._width})")
        block = np.ascontiguousarray(rows, dtype="<f4")
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
MILVUS_FOLDER = "milvus.db"
_FORMAT = "contrasent-index-3"
_FORMATS = ("contrasent-index-1", "contrasent-index-2", _FORMAT)
_VECTORS, _TEXTS = "segments/{}.npy", "segments/{}.arrow"
_REMOVED = "segments/{:06d}.removed.npy"
_REBUILD = "restore the folder from a copy or build the index again"


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows that were written together; ``name`` is the stem of their files."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: str
    rows: NonNegativeInt


@dataclass(frozen=True, slots=True)
class IndexManifest:
    """What an index holds.

    Attributes:
        numbered: whether every id is a number that was given to its text.
        kind: ``auto``, or the kind of index that was asked for.
        ann: the approximate index over the first segments, if there is one.
        removed: the file with the sorted numbers of removed rows.
        given: ids that were given to texts without; None if as many as there are rows.
        writes: how often the folder was written, which names its files.
        similarity: the function that texts are ranked by, as the encoder states it. Vectors are
            kept as they are, and of length 1 for the cosine, by which all older indexes rank.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    encoder: Maker
    segments: Annotated[tuple[Segment, ...], Field(min_length=1)]
    numbered: bool
    kind: str = "auto"
    ann: AnnInfo | None = None
    removed: str | None = None
    given: int | None = None
    writes: int = 0
    similarity: str = "cosine"
    format: str = _FORMAT

    @property
    def rows(self) -> int:
        """Rows of all segments, removed ones included."""
        return sum(segment.rows for segment in self.segments)

    @property
    def next_number(self) -> int:
        """The id of the next text without one."""
        return self.rows if self.given is None else self.given

    @property
    def next_write(self) -> int:
        """What names the files of the next write: no file of any earlier one."""
        return max(self.writes, len(self.segments)) + 1

    @property
    def files(self) -> set[str]:
        """Names of its files in the folder."""
        segments = (path.format(s.name) for s in self.segments for path in (_VECTORS, _TEXTS))
        others = (self.removed, self.ann.file if self.ann else None)
        return {*segments, *(name for name in others if name)}


def write_manifest(folder: Path, manifest: IndexManifest) -> None:
    """Make ``manifest`` what the folder holds, at once."""
    content = asdict(replace(manifest, format=_FORMAT))
    write_text(folder / FILE, json.dumps(content, indent=2) + "\n")


def read_manifest(folder: Path) -> IndexManifest:
    """Read what :func:`write_manifest` wrote; CheckpointError if it is damaged, or not there."""
    path = inside(folder, FILE)
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
        if version not in _FORMATS:
            raise CheckpointError(
                f"{path} has format {version!r}, but this version reads {' and '.join(_FORMATS)}; "
                "build it again"
            )
        manifest = TypeAdapter(IndexManifest).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))} is {first['input']!r}: {first['msg']}"
        raise CheckpointError(f"{path} is damaged ({reason}); {_REBUILD}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); {_REBUILD}") from error
    for name in ("segments", MILVUS_FOLDER, *manifest.files):  # the folder may be somebody else's
        inside(folder, name)
    return manifest


def manifest_in(folder: Path, kind: str) -> dict[str, Any]:
    """The manifest of a folder if its format begins with ``kind``; otherwise, nothing."""
    try:
        manifest: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return manifest if manifest["format"].startswith(kind) else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def require_folder(folder: Path, overwrite: bool) -> None:
    """Make sure that an index can be built at ``folder``, before anything expensive happens."""
    recover_folder(folder.resolve())
    is_index = bool(manifest_in(folder, "contrasent-index-"))
    if not (is_index and overwrite):
        remedy = "it is not an index, so it is left alone: name another folder"
        if is_index:
            remedy = "pass --overwrite to replace it, or add to it with: contrasent index add"
        refuse_existing(folder, remedy)


def close_milvus(folder: Path) -> None:
    """Close the Milvus of an index, if this process has one open: so that others can open it."""
    if lite := sys.modules.get("milvus_lite.server_manager"):
        lite.server_manager_instance.release_server(str(folder.resolve() / MILVUS_FOLDER))


_CHUNK = 16_384


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """An open segment, mapped from disk: ``(N, D)`` vectors, and Arrow columns of N cells.

    ``live (N,)`` is False for removed rows; None if there are none.
    """

    vectors: np.ndarray
    ids: Any
    texts: Any
    live: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class IndexRows:
    """Some rows of an index: ``(n, D)`` vectors, and n ids and texts."""

    vectors: np.ndarray
    ids: list[str]
    texts: list[str]


def read_segment(folder: Path, segment: Segment, width: int, removed: np.ndarray) -> SegmentRows:
    """Map the files of a segment; one that does not hold what the manifest says is refused.

    ``removed`` are the numbers of its removed rows.
    """
    import pyarrow as pa

    vectors_path = folder / _VECTORS.format(segment.name)
    vectors = open_rows(vectors_path, segment.rows, width, _REBUILD)
    path = folder / _TEXTS.format(segment.name)
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (OSError, pa.ArrowInvalid) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); {_REBUILD}") from error
    if table.column_names != ["id", "text"] or table.num_rows != segment.rows:
        raise CheckpointError(
            f"{path} has {table.num_rows} rows of {table.column_names}; expected "
            f"{segment.rows} rows of ['id', 'text']; {_REBUILD}"
        )
    live = None
    if removed.size:
        live = np.ones(segment.rows, bool)
        live[removed] = False
    return SegmentRows(vectors, table.column("id"), table.column("text"), live)


def write_segment(folder: Path, number: int, blocks: Iterable[IndexRows], width: int) -> Segment:
    """Write rows; DataError if there is none, CheckpointError if they are not one for each text."""
    import pyarrow as pa

    folder.joinpath("segments").mkdir(exist_ok=True)
    schema = pa.schema([("id", pa.string()), ("text", pa.string())])
    name = f"{number:06d}"
    with (
        writing(folder / _VECTORS.format(name)) as vectors_path,
        writing(folder / _TEXTS.format(name)) as texts_path,
        NpyWriter(vectors_path, width) as vectors,
        pa.OSFile(str(texts_path), "wb") as sink,
        pa.ipc.new_file(sink, schema) as table,
    ):
        for block in blocks:
            if len(block.vectors) != len(block.texts):
                rows = len(block.vectors)
                raise CheckpointError(f"there are {rows} vectors for {len(block.texts)} texts")
            vectors.append(block.vectors)
            table.write_batch(pa.record_batch([block.ids, block.texts], schema=schema))
        if not vectors.rows:
            raise DataError("there is no text to index")
    return Segment(name, vectors.rows)


def write_removed(folder: Path, number: int, rows: np.ndarray) -> str:
    """Write the sorted numbers of removed rows; the name of their file."""
    name = _REMOVED.format(number)
    with writing(folder / name) as path, path.open("wb") as file:
        np.save(file, rows.astype("<i8"), allow_pickle=False)
    return name


def read_removed(folder: Path, manifest: IndexManifest) -> np.ndarray:
    """The sorted numbers of removed rows."""
    if manifest.removed is None:
        return np.empty(0, np.int64)
    path = folder / manifest.removed
    try:
        rows: np.ndarray = np.load(path, allow_pickle=False)
        if rows.dtype != np.int64 or rows.ndim != 1 or not (np.diff(rows) > 0).all():
            raise ValueError("its numbers are not in order")
        if rows.size and not 0 <= rows[0] <= rows[-1] < manifest.rows:
            raise ValueError(f"there are only {manifest.rows} rows")
    except (OSError, ValueError, EOFError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); {_REBUILD}") from error
    return rows


def remove_unlisted(folder: Path, manifest: IndexManifest) -> None:
    """Delete what the manifest does not list: of a writer that died, or from before a merge."""
    known = {folder / name for name in manifest.files}
    for file in folder.joinpath("segments").glob("*"):
        if file not in known:
            file.unlink()


def embed(
    encoder: Encoder, texts: Iterable[str], precision: str, similarity: str, show_progress: bool
) -> Blocks:
    """Embed texts for an index, in bounded memory; an empty text is refused."""
    return blocks_with_texts(
        encoder,
        require_texts(texts),
        chunk=_CHUNK,
        normalize=True if similarity == "cosine" else None,
        precision=precision,
        show_progress=show_progress,
        **role_options(encoder, "document"),
    )


def with_ids(
    blocks: Blocks, ids: Sequence[str] | None, similarity: str, first: int = 0
) -> Iterator[IndexRows]:
    """Rows, of length 1 for cosines, with one id each; without ids, numbers from ``first``.

    Refused are another number of ids, and a vector that cannot be compared.
    """
    done = 0
    for rows, texts in blocks:
        numbers = range(first + done, first + done + len(texts))
        names = list(map(str, numbers)) if ids is None else list(ids[done : done + len(texts)])
        if len(names) < len(texts):
            raise DataError(f"there are {done + len(names)} ids, but more texts")
        yield IndexRows(_comparable(rows, similarity, done, texts), names, texts)
        done += len(texts)
    if ids is not None and done and len(ids) > done:
        raise DataError(f"there are {len(ids)} ids, but {done} texts")


def require_texts(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts; DataError for one that is empty or no string."""
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"text {row} is {type(text).__name__}, not a string: {text!r}")
        if not text.strip():
            raise DataError(f"text {row} is empty; leave it out, with its id")
        yield text


def _comparable(rows: np.ndarray, similarity: str, before: int, texts: Sequence[str]) -> np.ndarray:
    length = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    if similarity != "cosine":
        length = np.where(np.isfinite(length), 1.0, np.nan)
    bad = np.flatnonzero(~(np.isfinite(length[:, 0]) & (length[:, 0] > 0)))
    if bad.size:
        row = int(bad[0])
        raise CheckpointError(
            f"the encoder gives a vector without a direction (zero or not finite) for text "
            f"{before + row}: {texts[row][:80]!r}; check the encoder"
        )
    comparable: np.ndarray = (rows / length).astype(np.float32)
    return comparable
