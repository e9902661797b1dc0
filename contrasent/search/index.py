"""The index folder: vectors, texts, ids, and the fingerprint of the encoder that made them."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from contrasent.data.tokenizer import sentences_of
from contrasent.errors import CheckpointError, ConfigError, DataError, pick, warn
from contrasent.files import exclusive, recover_folder
from contrasent.model.conventions import role_options, similarity_of
from contrasent.model.precision import PRECISIONS
from contrasent.model.protocol import Encoder
from contrasent.search.makers import maker_of
from contrasent.search.nearest import KINDS, MILVUS, kind_for
from contrasent.search.shard_writers import FinishedShards
from contrasent.search.snapshot import (
    LARGE,
    Hit,
    OpenRows,
    Snapshot,
    create,
    indexing,
    merged,
    optimized,
    require_ids,
    require_new,
    require_query,
    require_search,
    rows_of_all,
)
from contrasent.search.storage import (
    Blocks,
    IndexManifest,
    IndexRows,
    embed,
    read_manifest,
    read_removed,
    remove_unlisted,
    require_folder,
    require_texts,
    with_ids,
    write_manifest,
    write_removed,
    write_segment,
)


class Index:
    """Search by the encoder's similarity over embedded texts that lie in a folder.

    ``len(index)`` is the number of texts. Vectors and texts stay on disk, memory-mapped. Search is
    exact over few texts, and approximate over many; scores are always exact. Threads may search,
    add and remove together; a process sees what others wrote after `refresh`. When a writing method
    returns, its change is on disk and survives whatever ends the process.
    """

    def __init__(self, folder: Path, snapshot: OpenRows) -> None:
        """Use `open` or `build`."""
        self.folder = folder
        self._snapshot = snapshot
        self._lock = RLock()
        self._checked: weakref.ref[Encoder] | None = None

    @classmethod
    def build(  # noqa: PLR0913 - what an index is made of, by name
        cls,
        encoder: Encoder,
        texts: Iterable[str] | FinishedShards,
        folder: str | Path,
        ids: Sequence[str | int] | None = None,
        *,
        precision: str = "auto",
        kind: str = "auto",
        overwrite: bool = False,
        show_progress: bool = False,
    ) -> Index:
        """Embed texts and write an index, as a whole or not at all.

        Args:
            encoder: what embeds the texts, and later the queries.
            texts: the texts, read once, as a stream; or shards that hold their vectors too.
            folder: where to write the index.
            ids: one different id per text; by default the numbers of the rows.
            precision: ``fp32``, ``bf16`` or ``auto``; queries use the same.
            kind: ``flat`` (exact), ``hnsw``, ``ivfpq`` (OPQ+IVF-PQ, the smallest), or ``auto``:
                one of these, by the number of texts; ``milvus`` (exact) or ``milvus-hnsw`` to keep
                the texts in Milvus Lite.
            overwrite: replace an index that is there already.
            show_progress: a progress bar on standard error.

        Raises:
            ConfigError: no such precision or kind, or too few texts for it; something else is at
                ``folder``, or an index and ``overwrite`` is off; or another process writes it.
            DataError: there is no text, a text is empty, or ids are repeated, empty or too few.
            MissingExtraError: Milvus Lite is asked for and not installed.
        """
        folder = Path(folder)
        require_folder(folder, overwrite)
        pick("precision", precision, PRECISIONS)
        names, similarity = None, similarity_of(encoder)
        kind_for(sys.maxsize, kind, similarity)
        if isinstance(texts, FinishedShards):
            precision, blocks = texts.precision, texts.blocks(encoder)
        else:
            sentences = sentences_of(texts, "texts")
            names = require_ids(sentences, ids)
            blocks = embed(encoder, sentences, precision, similarity, show_progress)
        rows = with_ids(blocks, names, similarity)
        maker, numbered = maker_of(encoder, precision), names is None
        manifest = IndexManifest(maker, (), numbered, kind, writes=1, similarity=similarity)
        create(folder, manifest, rows, show_progress)
        return cls.open(folder)

    def copy(
        self,
        folder: str | Path,
        kind: str | None = None,
        *,
        overwrite: bool = False,
        show_progress: bool = False,
    ) -> Index:
        """Write the texts, ids and vectors to another index, of another ``kind`` if it is given.

        So texts move to Milvus and back. Errors as for `build`.
        """
        folder = Path(folder)
        require_folder(folder, overwrite)
        was = self.manifest
        chosen = pick("kind of index", kind or was.kind, ("auto", *KINDS))
        given = was.next_number
        kind_for(len(self), chosen, was.similarity)
        fields: dict[str, Any] = {"given": given, "writes": 1, "similarity": was.similarity}
        manifest = IndexManifest(was.encoder, (), was.numbered, chosen, **fields)
        create(folder, manifest, self.blocks(), show_progress)
        return Index.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> Index:
        """Open an index.

        Raises:
            CheckpointError: there is none at ``folder``, or it is damaged.
            ConfigError: it lies in Milvus Lite, and another process has it open.
        """
        folder = Path(folder)
        recover_folder(folder.resolve())
        if cls is Index and read_manifest(folder).kind in MILVUS:
            from contrasent.search.milvus import MilvusIndex

            return MilvusIndex.open(folder)
        return cls(folder, cls._opened(folder, None))

    @classmethod
    def _opened(cls, folder: Path, last: OpenRows | None) -> OpenRows:
        """What the folder holds now; what ``last`` has open is used again."""
        return Snapshot.open(folder, last if isinstance(last, Snapshot) else None)

    def __len__(self) -> int:
        return self._snapshot.texts

    @property
    def manifest(self) -> IndexManifest:
        """Its encoder, its segments, and its approximate index with the recall, if it has one."""
        return self._snapshot.manifest

    @property
    def kind(self) -> str:
        """``flat``, ``hnsw``, ``ivfpq``, ``milvus`` or ``milvus-hnsw``."""
        ann = self.manifest.ann
        return "flat" if ann is None else ann.kind

    def refresh(self) -> None:
        """Take over what others wrote; CheckpointError if they built it with another encoder."""
        newest = self._opened(self.folder, self._snapshot)
        maker = newest.manifest.encoder
        if maker != self.manifest.encoder:
            raise CheckpointError(f"{self.folder} was built anew, with {maker.name}; open it again")
        self._snapshot = newest

    def add(
        self,
        encoder: Encoder,
        texts: Iterable[str],
        ids: Sequence[str | int] | None = None,
        *,
        show_progress: bool = False,
    ) -> None:
        """Embed more texts with the encoder that built the index and append them, all or none.

        Raises:
            CheckpointError: another encoder built the index.
            ConfigError: another process writes to the index.
            DataError: as for `build`; or an id is in the index already.
        """
        self.require(encoder)
        texts = sentences_of(texts, "texts")
        names = require_ids(texts, ids)
        how = self.manifest.encoder.precision, self.manifest.similarity, show_progress
        self._change((), embed(encoder, texts, *how), names)

    def add_vectors(
        self, vectors: np.ndarray, texts: Sequence[str], ids: Sequence[str | int] | None = None
    ) -> list[str]:
        """Append texts whose embeddings are known, all or none; the ids that they have.

        Args:
            vectors: ``(n, D)`` embeddings by the encoder that built the index, for cosines of any
                length.
            texts: n texts.
            ids: n ids; by default the next numbers.

        Raises:
            CheckpointError: a vector is zero or not finite.
            ConfigError: another process writes to the index; or the shape is another.
            DataError: as for `add`.
        """
        return self.change((), vectors, texts, ids)[1]

    def change(
        self,
        remove: Iterable[str | int],
        vectors: np.ndarray,
        texts: Sequence[str],
        ids: Sequence[str | int] | None = None,
        *,
        missing_ok: bool = False,
    ) -> tuple[int, list[str]]:
        """`remove`, then `add_vectors`, in one write, all or none; how many left, and the new ids.

        A new text may have the id of one that leaves. Errors as for both.
        """
        texts = list(sentences_of(texts, "texts"))
        names, gone = require_ids(texts, ids), _names(remove)
        list(require_texts(texts))
        vectors, width = np.asarray(vectors, np.float32), self.manifest.encoder.width
        if vectors.shape != (len(texts), width):
            expected = len(texts), width
            raise ConfigError(f"vectors have shape {vectors.shape}; expected {expected}")
        blocks = iter([(vectors, list(texts))] if texts else [])
        removed, numbers = self._change(gone, blocks, names, missing_ok)
        return removed, list(map(str, numbers)) if names is None else names

    def remove(self, ids: Iterable[str | int], *, missing_ok: bool = False) -> int:
        """Remove the texts with ``ids``, all or none; how many they were.

        Raises:
            ConfigError: another process writes to the index; or one string was given.
            DataError: an id is not in the index, unless ``missing_ok``.
        """
        return self._change(_names(ids), None, None, missing_ok)[0]

    def optimize(self, kind: str | None = None, *, show_progress: bool = False) -> None:
        """Drop removed rows from disk, and let a kind of index cover all texts.

        Without it, texts that were added later are searched exactly, beside the approximate index.
        Others can search meanwhile, but not write. Nothing is lost if the process dies.

        Args:
            kind: as for `build`; by default what was asked for then.
            show_progress: a progress bar on standard error.

        Raises:
            ConfigError: no such kind, or too few texts for it; or another process writes.
        """
        with self._writing() as now, indexing(now.texts, show_progress) as advance:
            asked = now.manifest.kind
            if kind in MILVUS:
                raise ConfigError(
                    f"{self.folder} is not in Milvus; move it with: contrasent index copy "
                    f"{self.folder} NEW --kind {kind}"
                )
            if kind is not None and kind_for(now.texts, kind, now.manifest.similarity):
                asked = kind
            write_manifest(self.folder, optimized(self.folder, now.manifest, asked, advance))

    @property
    def needs_optimizing(self) -> bool:
        """Whether many texts are searched one by one though their number asks for an index."""
        manifest, removed = self.manifest, self.manifest.rows - len(self)
        if removed > manifest.rows // 4:
            return True
        exact = manifest.rows - (0 if manifest.ann is None else manifest.ann.rows)
        best = kind_for(len(self), similarity=manifest.similarity)
        return manifest.kind != "flat" and exact > LARGE and best != "flat"

    def search(
        self,
        encoder: Encoder,
        queries: Sequence[str],
        top_k: int = 10,
        threshold: float | None = None,
        only: str | None = None,
    ) -> list[list[Hit]]:
        """The ``top_k`` texts nearest to each query by the index's similarity, best first.

        Equal scores are in the order of the rows. Fewer hits than ``top_k`` come back only when
        the index holds fewer texts, or fewer have a score of ``threshold`` or more, or an id that
        is like the pattern ``only``, in which % stands for any characters and _ for one. An encoder
        is checked when it searches for the first time.

        Raises:
            CheckpointError: another encoder built the index.
            ConfigError: ``top_k`` is below 1, ``threshold`` is no cosine where these rank, or
                ``queries`` are one string, a table or a mapping.
            DataError: a query is empty.
        """
        queries = list(sentences_of(queries, "queries"))
        for number, query in enumerate(queries):
            require_query(query, top_k, f"query {number}", threshold, self.manifest.similarity)
        if self._checked is None or self._checked() is not encoder:
            self.require(encoder)
            self._checked = weakref.ref(encoder)  # hashing all weights takes longer than a search
        precision = self.manifest.encoder.precision
        normalize = True if self.manifest.similarity == "cosine" else None
        how: dict[str, Any] = {"precision": precision, **role_options(encoder, "query")}
        blocks = list(encoder.encode_stream(queries, normalize=normalize, **how))
        if not blocks:
            return []
        return self._snapshot.search(np.concatenate(blocks), top_k, threshold, only)

    def search_vectors(
        self,
        queries: np.ndarray,
        top_k: int = 10,
        threshold: float | None = None,
        only: str | None = None,
    ) -> list[list[Hit]]:
        """`search` for ``(Q, D)`` embeddings by the index's encoder, for cosines of any length.

        Raises:
            ConfigError: as for `search`; or the shape is another.
            DataError: a vector is zero or not finite.
        """
        similarity = self.manifest.similarity
        require_search(top_k, threshold, similarity)
        queries, width = np.asarray(queries, np.float32), self.manifest.encoder.width
        if queries.ndim != 2 or queries.shape[1] != width:
            raise ConfigError(f"queries have shape {queries.shape}; expected (Q, {width})")
        length = np.linalg.norm(queries, axis=1, keepdims=True)
        if not np.isfinite(length).all() or (similarity == "cosine" and not length.all()):
            raise DataError("a query's vector is zero or not finite: it has no direction")
        rows = queries / length if similarity == "cosine" else queries
        return self._snapshot.search(rows, top_k, threshold, only)

    def blocks(self) -> Iterator[IndexRows]:
        """All texts with ids and ``(n, D)`` vectors, some at a time, in the order of rows."""
        return self._snapshot.blocks()

    def require(self, encoder: Encoder) -> None:
        """Make sure that ``encoder`` is the one that built the index; the refusal names both.

        A warning, if it states another similarity than the index ranks by.
        """
        self.manifest.encoder.require(encoder, self.folder)
        own, stated = self.manifest.similarity, similarity_of(encoder)
        if own != stated:
            warn(
                f"{self.folder} ranks by {own}, as it was built, but {encoder.name} states "
                f"{stated}; build the index again to rank by that"
            )

    @contextmanager
    def _writing(self) -> Iterator[OpenRows]:
        """The newest state, which nobody else changes inside; afterwards what it is then."""
        with self._lock, exclusive(self.folder):
            self.refresh()
            yield self._snapshot
            self.refresh()

    def _change(
        self,
        gone: Sequence[str],
        blocks: Blocks | None,
        names: list[str] | None,
        missing_ok: bool = False,
    ) -> tuple[int, range]:
        """Remove and append rows; how many left, and the numbers of new ones without ids."""
        with self._writing() as now:
            was, rows = now.manifest, rows_of_all(now, self.folder, gone, missing_ok)
            new, then, first = None, was, was.next_number
            if blocks is not None:
                require_new(now, self.folder, names, rows)
                new = with_ids(blocks, names, was.similarity, first)
                was = replace(was, numbered=was.numbered and names is None)
            if rows or new is not None:
                then = self._changed(was, rows, new)
                write_manifest(self.folder, then)
        return len(rows), range(first, then.next_number)

    def _changed(
        self, was: IndexManifest, gone: dict[str, int], new: Iterator[IndexRows] | None
    ) -> IndexManifest:
        """Write changes; the manifest by which rows are gone, and others are there."""
        remove_unlisted(self.folder, was)
        number, given = was.next_write, was.next_number
        then = replace(was, given=given, writes=number)
        if gone:
            removed = [*read_removed(self.folder, was), *gone.values()]
            file = write_removed(self.folder, number, np.unique(np.array(removed, np.int64)))
            then = replace(then, removed=file)
        if new is None:
            return then
        more = write_segment(self.folder, number, new, was.encoder.width)
        given += more.rows
        return merged(self.folder, replace(then, segments=(*was.segments, more), given=given))


def _names(ids: Iterable[str | int]) -> list[str]:
    if isinstance(ids, str):
        raise ConfigError("ids must be a list, not one string: put it in [ ]")
    return list(dict.fromkeys(map(str, ids)))
