"""An index folder as one manifest describes it, and how it is tidied.

A snapshot never changes: threads search it while another writes the next one.

Shapes: Q queries, N rows of all segments, D dimensions of a unit vector.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Protocol, Self

import numpy as np

from contrasent.errors import CheckpointError, ConfigError, DataError
from contrasent.files import exclusive, writing_folder
from contrasent.progress import progress_bar
from contrasent.search.nearest import (
    LEAST,
    MILVUS,
    TARGET,
    Ann,
    kind_for,
    nearest,
    split_rows,
    write_ann,
)
from contrasent.search.storage import (
    MILVUS_FOLDER,
    IndexManifest,
    IndexRows,
    SegmentRows,
    close_milvus,
    read_manifest,
    read_removed,
    read_segment,
    write_manifest,
    write_removed,
    write_segment,
)

_BLOCK = 16_384
LARGE = 65_536
"""Rows from which a segment is merged with no other, except by :func:`optimized`."""


@dataclass(frozen=True, slots=True)
class Hit:
    """An indexed text that was found."""

    id: str  # the id it was given, or its number
    text: str
    score: float  # its similarity with the query, as the encoder states it; else the cosine


class OpenRows(Protocol):
    """The rows of an open index, which never change."""

    @property
    def manifest(self) -> IndexManifest:
        """What the folder holds."""

    @property
    def texts(self) -> int:
        """How many there are."""

    def search(
        self, queries: np.ndarray, top_k: int, threshold: float | None, only: str | None
    ) -> list[list[Hit]]:
        """The hits of ``(Q, D)`` queries."""

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """The numbers of the rows that have any of ``ids``."""

    def blocks(self) -> Iterator[IndexRows]:
        """All rows in order, some at a time."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An open index: its manifest, its segments, the sorted numbers of removed rows."""

    folder: Path
    manifest: IndexManifest
    segments: list[SegmentRows]
    removed: np.ndarray
    ann: Ann | None

    @classmethod
    def open(cls, folder: Path, last: Snapshot | None = None) -> Self:
        """Open a folder; what ``last`` has open already is used again.

        CheckpointError if there is no index, or it is damaged.
        """
        manifest = read_manifest(folder)
        while True:
            try:
                return cls.of(folder, manifest, last)
            except CheckpointError:  # a writer may have replaced files since the manifest was read
                before, manifest = manifest, read_manifest(folder)
                if manifest == before:
                    raise

    @classmethod
    def of(cls, folder: Path, manifest: IndexManifest, last: Snapshot | None = None) -> Self:
        """Open the files of a manifest, which need not be the one of the folder yet."""
        width = manifest.encoder.width
        removed = read_removed(folder, manifest)
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

    def search(
        self, queries: np.ndarray, top_k: int, threshold: float | None, only: str | None
    ) -> list[list[Hit]]:
        """The hits of ``(Q, D)`` queries, best first, each scores of ``threshold`` or more.

        ``only`` is a LIKE pattern of their ids.
        """
        vectors = [segment.vectors for segment in self.segments]
        live, ann = [segment.live for segment in self.segments], self.ann
        if only is not None:
            kept = [_matching(segment, only) for segment in self.segments]
            live, ann = [*kept], ann and ann.with_live(np.concatenate(kept)[: ann.rows])
        nearby = nearest(vectors, queries, top_k, live, ann, self.manifest.similarity)
        ends = list(accumulate(map(len, vectors)))
        least = -np.inf if threshold is None else threshold
        return [
            [self._hit(ends, row, score) for row, score in hits if score >= least]
            for hits in nearby
        ]

    def _hit(self, ends: list[int], row: int, score: float) -> Hit:
        number = bisect_right(ends, row)
        segment, offset = self.segments[number], row - (ends[number - 1] if number else 0)
        return Hit(segment.ids[offset].as_py(), segment.texts[offset].as_py(), score)

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

    def rewritten(self, first: int) -> IndexManifest:
        """The manifest after the segments from ``first`` on are one, without removed rows.

        That segment is written; the approximate index must not cover it.
        """
        was = self.manifest
        number, start = was.next_write, sum(s.rows for s in was.segments[:first])
        segment = write_segment(self.folder, number, self.blocks(first), was.encoder.width)
        left, removed = self.removed[self.removed < start], was.removed
        if len(left) < len(self.removed):
            removed = write_removed(self.folder, number, left) if left.size else None
        segments = (*was.segments[:first], segment)
        return replace(
            was, segments=segments, removed=removed, given=was.next_number, writes=number
        )


def _matching(segment: SegmentRows, pattern: str) -> np.ndarray:
    """``(N,)`` bool: the rows that were not removed and whose id is like ``pattern``."""
    import pyarrow.compute as pc

    like: np.ndarray = pc.match_like(segment.ids, pattern).to_numpy(zero_copy_only=False)
    return like if segment.live is None else like & segment.live


def merged(folder: Path, manifest: IndexManifest) -> IndexManifest:
    """The manifest after its last segments are one, if they are small beside what was added last.

    So there are few segments however often a text is added, and a text is copied few times.
    """
    lengths = [segment.rows for segment in manifest.segments]
    covered = 0 if manifest.ann is None else [*accumulate(lengths)].index(manifest.ann.rows) + 1
    first, total = len(lengths) - 1, lengths[-1]
    while first > covered and lengths[first - 1] <= min(2 * total, LARGE - total):
        first -= 1
        total += lengths[first]
    whole = first == len(lengths) - 1
    return manifest if whole else Snapshot.of(folder, manifest).rewritten(first)


def optimized(
    folder: Path, manifest: IndexManifest, kind: str, on_rows: Callable[[int], object]
) -> IndexManifest:
    """The manifest after removed rows are gone and a kind of index covers all others.

    An approximate index of the same kind is extended, unless rows that it covers were removed, it
    would double, or it would find less than before. If too few rows are left for ``kind``, their
    number decides. ``on_rows`` is called with numbers of rows that it took.
    """
    snapshot = Snapshot.of(folder, replace(manifest, ann=None))
    if not snapshot.texts:
        return manifest
    asked = kind if snapshot.texts >= LEAST.get(kind, 1) else "auto"
    chosen = kind_for(snapshot.texts, asked, manifest.similarity)
    old = manifest.ann
    if old is not None and (old.kind != chosen or (snapshot.removed < old.rows).any()):
        old = None
    if snapshot.removed.size or len(manifest.segments) > 1:
        snapshot = Snapshot.of(folder, snapshot.rewritten(0))
    manifest = replace(snapshot.manifest, ann=old, kind=kind)
    if chosen == "flat" or (old is not None and old.rows == manifest.rows):
        return manifest
    start = folder / old.file if old is not None and manifest.rows <= 2 * old.rows else None
    vectors = [segment.vectors for segment in snapshot.segments]
    how = on_rows, manifest.similarity
    ann = write_ann(vectors, chosen, folder, manifest.next_write, start, *how)
    if start is not None and old is not None and ann.recall < min(TARGET, old.recall):
        # What was trained on the first rows alone tells the others too badly apart.
        ann = write_ann(vectors, chosen, folder, manifest.next_write, None, *how)
    return replace(manifest, ann=ann, given=manifest.next_number, writes=manifest.next_write)


def create(folder: Path, manifest: IndexManifest, rows: Iterable[IndexRows], shown: bool) -> None:
    """Write an index of ``rows``, as a whole or not at all.

    ConfigError if another process writes to ``folder``, or has the Milvus there open, or if that is
    damaged.
    """
    with exclusive(folder), writing_folder(folder.resolve()) as partial, ExitStack() as closing:
        if (folder / MILVUS_FOLDER).is_dir() and not (folder / MILVUS_FOLDER).is_symlink():
            from contrasent.search.milvus import open_client

            open_client(folder)  # until the end: nobody else opens what is about to be replaced
            closing.callback(close_milvus, folder)
        if manifest.kind in MILVUS:
            from contrasent.search.milvus import build_collection

            manifest = build_collection(partial, manifest, rows)
        else:
            first = write_segment(partial, 1, rows, manifest.encoder.width)
            kind_for(first.rows, manifest.kind, manifest.similarity)
            manifest = replace(manifest, segments=(first,))
            with indexing(first.rows, shown) as advance:
                manifest = optimized(partial, manifest, manifest.kind, advance)
        write_manifest(partial, manifest)


def indexing(rows: int, shown: bool) -> AbstractContextManager[Callable[..., None]]:
    """Show how many rows are indexed."""
    return progress_bar("indexing", "bar", "count", "elapsed", total=rows, shown=shown)


def require_query(
    query: str,
    top_k: int,
    name: str = "the query",
    threshold: float | None = None,
    similarity: str = "cosine",
) -> None:
    """Make sure that something is looked for."""
    require_search(top_k, threshold, similarity)
    if not isinstance(query, str) or not query.strip():
        raise DataError(f"{name} is {query!r}; write what to look for")


def require_search(top_k: int, threshold: float | None, similarity: str = "cosine") -> None:
    """Make sure that a hit is possible."""
    if top_k < 1:
        raise ConfigError(f"top_k must be at least 1, not {top_k}")
    if similarity == "cosine" and threshold is not None and not -1 <= threshold <= 1:
        raise ConfigError(f"threshold is a cosine, from -1 to 1, not {threshold:g}")


def require_new(
    now: OpenRows, folder: Path, ids: list[str] | None, gone: Collection[str] = ()
) -> None:
    """Make sure that no text of an index but those ``gone`` has an id of a new one."""
    if ids is not None:
        known = now.rows_of(ids)
        for row, name in enumerate(ids):
            if name in known and name not in gone:
                raise DataError(f"id {name!r} of text {row} is in the index already")
    elif not now.manifest.numbered:
        raise DataError(
            f"the texts of {folder} have ids of their own, so the new ones need ids too: "
            "give them with --ids COLUMN (ids=[...] in Python)"
        )


def rows_of_all(
    now: OpenRows, folder: Path, ids: Sequence[str], missing_ok: bool
) -> dict[str, int]:
    """The rows of ``ids``; DataError if one is not there, unless ``missing_ok``."""
    rows = now.rows_of(ids)
    missing = [name for name in ids if name not in rows]
    if missing and not missing_ok:
        raise DataError(
            f"no text of {folder} has the id {missing[0]!r}"
            + (f", nor have {len(missing) - 1} others" if missing[1:] else "")
            + "; nothing was removed"
        )
    return rows


def require_ids(texts: Iterable[str], ids: Sequence[str | int] | None) -> list[str] | None:
    """The ids as text, checked before anything is embedded."""
    if ids is None:
        return None
    if isinstance(texts, Sequence) and len(texts) != len(ids):
        raise DataError(f"there are {len(ids)} ids, but {len(texts)} texts")
    names, new = [str(name) for name in ids], set[str]()
    for row, name in enumerate(names):
        if not name.strip():
            raise DataError(f"the id of text {row} is empty; every text needs its own")
        if name in new:
            raise DataError(f"id {name!r} of text {row} was given to text {names.index(name)} too")
        new.add(name)
    return names
