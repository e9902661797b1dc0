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
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import ConfigDict, Field, NonNegativeInt, TypeAdapter, ValidationError

from contrasent.encode.row_files import NpyWriter, open_rows
from contrasent.encode.shards import FILE
from contrasent.errors import CheckpointError, ConfigError, DataError, shown
from contrasent.files import inside, write_text, writing
from contrasent.model.conventions import Conventions
from contrasent.model.protocol import Encoder
from contrasent.search.nearest import (
    KINDS,
    MILVUS,
    TARGET,
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
    except OSError as error:
        raise CheckpointError(
            f"there is no index at {folder} ({error.strerror}: {FILE}); make one with: "
            f"contrasent index build MODEL INPUT {folder}"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))} is {shown(first['input'])}: {first['msg']}"
        raise CheckpointError(f"{path} is damaged ({reason}); {_REBUILD}") from error
    for name in ("segments", MILVUS_FOLDER, *manifest.files):  # the folder may be somebody else's
        inside(folder, name)
    return manifest


def close_milvus(folder: Path) -> None:
    """Close the Milvus of an index, if this process has one open: so that others can open it."""
    if lite := sys.modules.get("milvus_lite.server_manager"):
        lite.server_manager_instance.release_server(str(folder.resolve() / MILVUS_FOLDER))


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

    vectors = open_rows(folder / _VECTORS.format(segment.name), segment.rows, width, _REBUILD)
    path = folder / _TEXTS.format(segment.name)
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        if (table.column_names, table.num_rows) != (["id", "text"], segment.rows):
            raise OSError(f"it has {table.num_rows} rows, not {segment.rows}")
    except (OSError, pa.ArrowInvalid) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); {_REBUILD}") from error
    live = None
    if removed.size:
        live = np.ones(segment.rows, bool)
        live[removed] = False
    return SegmentRows(vectors, table.column("id"), table.column("text"), live)


def write_segment(folder: Path, number: int, blocks: Iterable[IndexRows], width: int) -> Segment:
    """Write rows; DataError if there is none, ValueError if they are not one for each text."""
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
        rows = 0
        for block in blocks:
            vectors.append(block.vectors)
            table.write_batch(pa.record_batch([block.ids, block.texts], schema=schema))
            rows += len(block.texts)
        if not rows:
            raise DataError("there is no text to index")
        if rows != vectors.rows:
            raise ValueError(f"there are {vectors.rows} vectors for {rows} texts")
    return Segment(name, rows)


def _write_removed(folder: Path, number: int, rows: np.ndarray) -> str:
    """Write the sorted numbers of removed rows; the name of their file."""
    name = _REMOVED.format(number)
    with writing(folder / name) as path, path.open("wb") as file:
        np.save(file, rows.astype("<i8"), allow_pickle=False)
    return name


def _read_removed(folder: Path, manifest: IndexManifest) -> np.ndarray:
    if manifest.removed is None:
        return np.empty(0, np.int64)
    path = folder / manifest.removed
    try:
        rows: np.ndarray = np.load(path, allow_pickle=False)
        bounds = np.concatenate([[-1], rows, [manifest.rows]])
        if rows.dtype != np.int64 or not (np.diff(bounds) > 0).all():
            raise ValueError(f"its numbers are not in order, or not below {manifest.rows}")
    except (OSError, ValueError, EOFError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); {_REBUILD}") from error
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
    segments: list[SegmentRows]
    removed: np.ndarray
    ann: Ann | None

    @classmethod
    def open(cls, folder: Path, manifest: IndexManifest, last: object = None) -> Self:
        """Open what the manifest of a folder describes; what ``last`` has open is used again.

        CheckpointError if it is damaged.
        """
        while True:
            try:
                return cls.of(folder, manifest, last if isinstance(last, Snapshot) else None)
            except CheckpointError:  # a writer may have replaced files since the manifest was read
                before, manifest = manifest, read_manifest(folder)
                if manifest == before:
                    raise

    @classmethod
    def of(cls, folder: Path, manifest: IndexManifest, last: Snapshot | None = None) -> Self:
        """Open the files of a manifest, which need not be the one of the folder yet."""
        width, removed = manifest.encoder.width, _read_removed(folder, manifest)
        lengths = [segment.rows for segment in manifest.segments]
        segments = [
            read_segment(folder, segment, width, gone)
            for segment, gone in zip(manifest.segments, split_rows(lengths, removed), strict=True)
        ]
        ann = None
        if manifest.ann is not None:
            if manifest.ann.rows not in accumulate(lengths):
                raise CheckpointError(
                    f"{folder / manifest.ann.file} covers {manifest.ann.rows} rows, which are no "
                    f"whole segments; make it anew with: contrasent index optimize {folder}"
                )
            known = last.ann if last is not None and last.manifest.ann == manifest.ann else None
            ann = Ann.open(folder, manifest.ann, known)
            gone = removed[removed < ann.rows]
            if gone.size or known is not None:
                live = np.ones(ann.rows, bool)
                live[gone] = False
                ann = ann.with_live(live if gone.size else None)
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
        """The hits of ``(Q, D)`` queries, best first, each scores of ``threshold`` or more.

        ``only`` is a LIKE pattern of their ids.
        """
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

    @property
    def needs_optimizing(self) -> bool:
        """Whether many texts are searched one by one though their number asks for an index."""
        manifest = self.manifest
        exact = manifest.rows - (0 if manifest.ann is None else manifest.ann.rows)
        large = exact > _LARGE and kind_for(self.texts, similarity=manifest.similarity) != "flat"
        return len(self.removed) > manifest.rows // 4 or (large and manifest.kind != "flat")

    def changed(
        self, then: IndexManifest, gone: Sequence[int], new: Iterator[IndexRows] | None
    ) -> IndexManifest:
        """The manifest ``then`` after rows are gone and others are there, which are written.

        The last segments become one, if they are small beside what was added last: so there are few
        segments however often a text is added, and a text is copied few times.
        """
        known = {self.folder / name for name in self.manifest.files}
        for file in self.folder.joinpath("segments").glob("*"):
            if file not in known:  # of a writer that died, or from before a merge
                file.unlink()
        if gone:
            rows = np.unique(np.array([*self.removed, *gone], np.int64))
            then = replace(then, removed=_write_removed(self.folder, then.writes, rows))
        if new is None:
            return then
        more = write_segment(self.folder, then.writes, new, then.encoder.width)
        segments, given = (*then.segments, more), then.next_number + more.rows
        then = replace(then, segments=segments, given=given)
        lengths = [segment.rows for segment in segments]
        covered = 0 if then.ann is None else [*accumulate(lengths)].index(then.ann.rows) + 1
        first, total = len(lengths) - 1, lengths[-1]
        while first > covered and lengths[first - 1] <= min(2 * total, _LARGE - total):
            first -= 1
            total += lengths[first]
        whole = first == len(lengths) - 1
        return then if whole else Snapshot.of(self.folder, then)._rewritten(first)

    def _rewritten(self, first: int) -> IndexManifest:
        """The manifest after the segments from ``first`` on are one, without removed rows.

        That segment is written; the approximate index must not cover it.
        """
        was = self.manifest
        number, start = was.next_write, sum(s.rows for s in was.segments[:first])
        segment = write_segment(self.folder, number, self.blocks(first), was.encoder.width)
        left, removed = self.removed[self.removed < start], was.removed
        if len(left) < len(self.removed):
            removed = _write_removed(self.folder, number, left) if left.size else None
        segments = (*was.segments[:first], segment)
        return replace(
            was, segments=segments, removed=removed, given=was.next_number, writes=number
        )

    def optimized(self, kind: str | None, on_rows: Callable[[int], object]) -> IndexManifest:
        """The manifest after removed rows are gone and a kind of index covers all others.

        An approximate index of the same kind is extended, unless rows that it covers were removed,
        it would double, or it would find less than before. Without a ``kind``, that of the manifest
        is taken, or, if too few rows are left for it, their number decides. ``on_rows`` is called
        with numbers of rows that it took. ConfigError if the kind cannot be.
        """
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
        old = manifest.ann
        if old is not None and (old.kind != chosen or (self.removed < old.rows).any()):
            old = None
        whole = Snapshot.of(self.folder, replace(manifest, ann=None))
        if self.removed.size or len(manifest.segments) > 1:
            whole = Snapshot.of(self.folder, whole._rewritten(0))
        manifest = replace(whole.manifest, ann=old, kind=asked)
        if chosen == "flat" or (old is not None and old.rows == manifest.rows):
            return manifest
        vectors = [segment.vectors for segment in whole.segments]
        how = vectors, chosen, self.folder, manifest.next_write
        start = None
        if old is not None and manifest.rows <= 2 * old.rows:
            start = self.folder / old.file
        ann = write_ann(*how, start, on_rows, similarity)
        if start is not None and old is not None and ann.recall < min(TARGET, old.recall):
            # What was trained on the first rows alone tells the others too badly apart.
            ann = write_ann(*how, None, on_rows, similarity)
        return replace(manifest, ann=ann, given=manifest.next_number, writes=manifest.next_write)
