"""An index folder: its manifest, its segments, and what is open of them.

The manifest is replaced last and as a whole: a segment that it does not list does not exist. A
snapshot never changes: threads search it while another writes the next one.

Shapes: Q queries, N rows of a segment, D dimensions of a vector.
"""

from __future__ import annotations

import json
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import ConfigDict, Field, NonNegativeInt, TypeAdapter, ValidationError

from contrasent.encode.shards import FILE, npy_writer, open_rows, readable
from contrasent.errors import CheckpointError, ConfigError, shown
from contrasent.files import inside, write_text, writing
from contrasent.model.conventions import Conventions
from contrasent.model.protocol import Encoder
from contrasent.search.nearest import (
    KINDS,
    MILVUS,
    Ann,
    AnnInfo,
    kind_for,
    nearest,
    split_rows,
    write_ann,
)

MILVUS_FOLDER = "milvus.db"
_VECTORS, _TEXTS = "segments/{}.npy", "segments/{}.arrow"
_REMOVED = "segments/{:06d}.removed.npy"
_REBUILD = "restore the folder from a copy or build the index again"
_STRICT = ConfigDict(strict=True, extra="forbid")
_BLOCK = 16_384
_LARGE = 65_536  # rows from which a segment is merged with no other, except by `optimized`


@dataclass(frozen=True, slots=True)
class EncoderIdentity:
    """The encoder whose vectors an index holds."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: str  # the name or absolute folder it was loaded from
    fingerprint: str
    pooler: str
    head: str
    width: int  # D
    precision: str  # of matrix products, as it was asked for
    engine: str = "torch"
    prompt_name: str | None = None  # of all texts, if it was chosen; else each role has its own
    truncate_dim: int | None = None  # leading dimensions that were kept; None for all

    @classmethod
    def of(cls, encoder: Encoder, precision: str) -> Self:
        """That of an encoder."""
        conventions: Conventions = getattr(encoder, "conventions", Conventions())
        local = Path(encoder.name).expanduser()  # absolute, to be found from anywhere
        return cls(
            name=str(local.resolve()) if local.exists() else encoder.name,
            fingerprint=encoder.fingerprint(),
            pooler=encoder.pooler,
            head=encoder.head_name,
            width=encoder.width,
            precision=precision,
            engine=encoder.engine,
            prompt_name=conventions.default_prompt_name if conventions.chosen else None,
            truncate_dim=conventions.truncate_dim,
        )

    def __str__(self) -> str:
        return (
            f"{self.name} (pooler {self.pooler}, head {self.head}, engine {self.engine}, "
            f"fingerprint {self.fingerprint})"
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows that were written together; ``name`` is the stem of their files."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: str
    rows: NonNegativeInt


@dataclass(frozen=True, slots=True)
class IndexManifest:
    """What an index holds."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    encoder: EncoderIdentity
    segments: Annotated[tuple[Segment, ...], Field(min_length=1)]
    numbered: bool  # whether every id is a number that was given to its text
    kind: str = "auto"  # or the kind of index that was asked for
    ann: AnnInfo | None = None  # the approximate index over the first segments
    removed: str | None = None  # the file with the sorted numbers of removed rows
    given: int | None = None  # ids given to texts without; None if as many as there are rows
    writes: int = 0  # how often the folder was written, which names its files
    # the function that texts are ranked by, as the encoder states it; vectors are kept as they are,
    # and of length 1 for the cosine, by which all older indexes rank
    similarity: str = "cosine"
    format: Literal["contrasent-index-1", "contrasent-index-2", "contrasent-index-3"] = (
        "contrasent-index-3"
    )

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
    content = asdict(replace(manifest, format="contrasent-index-3"))
    write_text(folder / FILE, json.dumps(content, indent=2) + "\n")


def read_manifest(folder: Path) -> IndexManifest:
    """Read what :func:`write_manifest` wrote; CheckpointError if it is damaged, or not there."""
    path = inside(folder, FILE)
    try:
        manifest = TypeAdapter(IndexManifest).validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        if isinstance(error, OSError):
            reason = f"there is no index at {folder} ({error.strerror}: {FILE}); make one with: "
            reason += f"contrasent index build MODEL INPUT {folder}"
        else:
            first = error.errors()[0]
            place, given = ".".join(map(str, first["loc"])), shown(first["input"])
            reason = f"{path} is damaged ({place} is {given}: {first['msg']}); {_REBUILD}"
        raise CheckpointError(reason) from error
    for name in ("segments", MILVUS_FOLDER, *manifest.files):  # the folder may be somebody else's
        inside(folder, name)
    return manifest


def close_milvus(folder: Path) -> None:
    """Close the Milvus of an index, if this process has one open: so that others can open it."""
    if lite := sys.modules.get("milvus_lite.server_manager"):
        lite.server_manager_instance.release_server(str(folder.resolve() / MILVUS_FOLDER))


@dataclass(frozen=True, slots=True)
class IndexRows:
    """``(N, D)`` vectors, ids and texts; of a segment mapped from disk, with its ``live`` rows."""

    vectors: np.ndarray
    ids: Any
    texts: Any
    live: np.ndarray | None = None


def _read_segment(folder: Path, segment: Segment, width: int, removed: np.ndarray) -> IndexRows:
    """Map the files of a segment; one that does not hold what the manifest says is refused."""
    import pyarrow as pa

    vectors = open_rows(folder / _VECTORS.format(segment.name), segment.rows, width, _REBUILD)
    path = folder / _TEXTS.format(segment.name)
    with readable(path, _REBUILD):
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        if (table.column_names, table.num_rows) != (["id", "text"], segment.rows):
            raise ValueError(f"it has {table.num_rows} rows, not {segment.rows}")
    live = _all_but(removed, segment.rows) if removed.size else None
    return IndexRows(vectors, table.column("id"), table.column("text"), live)


def _all_but(removed: np.ndarray, rows: int) -> np.ndarray:
    live = np.ones(rows, bool)
    live[removed] = False
    return live


def write_segment(folder: Path, number: int, blocks: Iterable[IndexRows], width: int) -> Segment:
    """Write rows as the files of a segment."""
    import pyarrow as pa

    folder.joinpath("segments").mkdir(exist_ok=True)
    schema = pa.schema([("id", pa.string()), ("text", pa.string())])
    name, rows = f"{number:06d}", 0
    with (
        writing(folder / _VECTORS.format(name)) as vectors_path,
        writing(folder / _TEXTS.format(name)) as texts_path,
        npy_writer(vectors_path, width) as append,
        pa.OSFile(str(texts_path), "wb") as sink,
        pa.ipc.new_file(sink, schema) as table,
    ):
        for block in blocks:
            append(block.vectors, ())
            table.write_batch(pa.record_batch([block.ids, block.texts], schema=schema))
            rows += len(block.texts)
    return Segment(name, rows)


def _read_removed(folder: Path, manifest: IndexManifest) -> np.ndarray:
    if manifest.removed is None:
        return np.empty(0, np.int64)
    path = folder / manifest.removed
    with readable(path, _REBUILD):
        rows: np.ndarray = np.load(path, allow_pickle=False)
        bounds = np.concatenate([[-1], rows, [manifest.rows]])
        if rows.dtype != np.int64 or not (np.diff(bounds) > 0).all():
            raise ValueError(f"its numbers are not in order, or not below {manifest.rows}")
    return rows


@dataclass(frozen=True, slots=True)
class Hit:
    """An indexed text that was found."""

    id: str  # the id it was given, or its number
    text: str
    score: float  # its similarity with the query, as the encoder states it; else the cosine


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An open index: its manifest, its segments, the sorted numbers of removed rows."""

    folder: Path
    manifest: IndexManifest
    segments: list[IndexRows]
    removed: np.ndarray
    ann: Ann | None

    @classmethod
    def newest(cls, folder: Path, manifest: IndexManifest) -> Self:
        """Open what the manifest of a folder describes; CheckpointError if it is damaged."""
        while True:
            try:
                return cls.open(folder, manifest, _read_removed(folder, manifest))
            except CheckpointError:  # a writer may have replaced files since the manifest was read
                before, manifest = manifest, read_manifest(folder)
                if manifest == before:
                    raise

    @classmethod
    def open(cls, folder: Path, manifest: IndexManifest, removed: np.ndarray) -> Self:
        """Open the segments of a manifest, which need not be the one of the folder yet."""
        width, lengths = manifest.encoder.width, [segment.rows for segment in manifest.segments]
        segments = [
            _read_segment(folder, segment, width, gone)
            for segment, gone in zip(manifest.segments, split_rows(lengths, removed), strict=True)
        ]
        ann = None
        if manifest.ann is not None:
            ann = Ann.open(folder, manifest.ann)
            if (gone := removed[removed < ann.rows]).size:
                ann = ann.with_live(_all_but(gone, ann.rows))
        return cls(folder, manifest, segments, removed, ann)

    @property
    def texts(self) -> int:
        """Texts that were not removed."""
        return self.manifest.rows - len(self.removed)

    @property
    def kind(self) -> str:
        """How it is searched."""
        return "flat" if self.manifest.ann is None else self.manifest.ann.kind

    def search(
        self, queries: np.ndarray, top_k: int, threshold: float | None, only: str | None
    ) -> list[list[Hit]]:
        """The hits of ``(Q, D)`` queries, best first; ``only`` is a LIKE pattern of their ids."""
        import pyarrow.compute as pc

        vectors = [segment.vectors for segment in self.segments]
        live, ann = [segment.live for segment in self.segments], self.ann
        if only is not None:
            like = [
                pc.match_like(segment.ids, only).to_numpy(zero_copy_only=False)
                for segment in self.segments
            ]
            kept = [a if b is None else a & b for a, b in zip(like, live, strict=True)]
            live, ann = [*kept], ann and ann.with_live(np.concatenate(kept)[: ann.rows])
        starts = [0, *accumulate(map(len, vectors))]
        hits: list[list[Hit]] = []
        for nearby in nearest(vectors, queries, top_k, live, ann, self.manifest.similarity):
            hits.append([])
            for row, score in nearby:
                if threshold is None or score >= threshold:
                    number = bisect_right(starts, row) - 1
                    segment, place = self.segments[number], row - starts[number]
                    text = segment.texts[place].as_py()
                    hits[-1].append(Hit(segment.ids[place].as_py(), text, score))
        return hits

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """The numbers of the rows that have any of ``ids``."""
        import pyarrow as pa
        import pyarrow.compute as pc

        wanted, rows, first = pa.array(ids, pa.string()), dict[str, int](), 0
        for segment in self.segments:
            mask = pc.is_in(segment.ids, value_set=wanted).to_numpy(zero_copy_only=False)
            if segment.live is not None:
                mask = mask & segment.live
            for row in np.flatnonzero(mask):
                rows[segment.ids[int(row)].as_py()] = first + int(row)
            first += len(segment.vectors)
        return rows

    def blocks(self, first: int = 0) -> Iterator[IndexRows]:
        """The rows that were not removed, from segment ``first`` on, some at a time."""
        for segment in self.segments[first:]:
            for start in range(0, len(segment.vectors), _BLOCK):
                vectors = segment.vectors[start : start + _BLOCK]
                ids, texts = segment.ids.slice(start, _BLOCK), segment.texts.slice(start, _BLOCK)
                if segment.live is not None:
                    live = segment.live[start : start + _BLOCK]
                    vectors, ids, texts = vectors[live], ids.filter(live), texts.filter(live)
                if len(vectors):
                    yield IndexRows(np.array(vectors), ids.to_pylist(), texts.to_pylist())

    def changed(
        self, then: IndexManifest, gone: Sequence[int], new: Iterator[IndexRows] | None
    ) -> IndexManifest:
        """The manifest ``then`` after rows are gone and ``new`` ones are there, which are written.

        The last segments are written again with the new rows, if two of them are about as large: so
        there are few segments however often a text is added, and a text is copied few times.
        """
        known = {self.folder / name for name in self.manifest.files}
        for file in self.folder.joinpath("segments").glob("*"):
            if file not in known:  # of a writer that died, or from before a merge
                file.unlink()
        now, removed = self, self.removed
        if gone:
            removed = np.unique(np.array([*removed, *gone], np.int64))
            now = Snapshot.open(self.folder, self.manifest, removed)
        if new is not None:
            lengths = [segment.rows for segment in then.segments]
            covered = 0 if then.ann is None else [*accumulate(lengths)].index(then.ann.rows) + 1
            first, total = len(lengths) - 1, lengths[-1]
            while first > covered and lengths[first - 1] <= min(2 * total, _LARGE - total):
                first -= 1
                total += lengths[first]
            if first == len(lengths) - 1:
                first = len(lengths)
            then, removed = now._merged(then, first, new)
        return replace(then, removed=self._write_removed(removed, then.writes))

    def _merged(
        self, then: IndexManifest, first: int, new: Iterable[IndexRows] = ()
    ) -> tuple[IndexManifest, np.ndarray]:
        """The manifest after segments from ``first`` on and ``new`` rows are one; removed rows."""
        start = sum(segment.rows for segment in then.segments[:first])
        removed = self.removed[self.removed < start]
        old = self.manifest.rows - start - (len(self.removed) - len(removed))
        rows = chain(self.blocks(first), new)
        segment = write_segment(self.folder, then.writes, rows, then.encoder.width)
        given, segments = then.next_number + segment.rows - old, (*then.segments[:first], segment)
        return replace(then, segments=segments, given=given), removed

    def _write_removed(self, rows: np.ndarray, number: int) -> str | None:
        """Write the sorted numbers of removed rows, unless these are; the name of their file."""
        if np.array_equal(rows, self.removed):
            return self.manifest.removed
        if not rows.size:
            return None
        name = _REMOVED.format(number)
        with writing(self.folder / name) as path, path.open("wb") as file:
            np.save(file, rows.astype("<i8"), allow_pickle=False)
        return name

    def optimized(self, kind: str | None, on_rows: Callable[[int], object]) -> IndexManifest:
        """The manifest after removed rows are gone and a ``kind``, or its own, covers the rest."""
        if kind in MILVUS:
            raise ConfigError(
                f"{self.folder} is not in Milvus; move it with: contrasent index copy "
                f"{self.folder} NEW --kind {kind}"
            )
        manifest, similarity = self.manifest, self.manifest.similarity
        if kind is not None:
            kind_for(self.texts, kind, similarity)
        if not self.texts:
            return manifest
        asked = manifest.kind if kind is None else kind
        enough = asked in KINDS and self.texts >= KINDS[asked].least
        chosen = kind_for(self.texts, asked if enough else "auto", similarity)
        old, whole = manifest.ann, self
        manifest = replace(manifest, kind=asked, given=manifest.next_number, ann=None)
        if self.removed.size or len(manifest.segments) > 1:
            then, _ = self._merged(replace(manifest, writes=manifest.next_write), 0)
            manifest = replace(then, removed=None)
            whole = Snapshot.open(self.folder, manifest, self.removed[:0])
        elif old is not None and old.kind == chosen and old.rows == manifest.rows:
            return replace(manifest, ann=old)
        if chosen == "flat":
            return manifest
        vectors, writes = [segment.vectors for segment in whole.segments], manifest.next_write
        ann = write_ann(vectors, chosen, self.folder, writes, on_rows, similarity)
        return replace(manifest, ann=ann, writes=writes)
