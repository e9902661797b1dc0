"""The index folder: vectors, texts, ids, and the fingerprint of the encoder that made them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from contrasent.errors import CheckpointError, ConfigError, DataError, pick
from contrasent.files import exclusive, recover_folder, writing_folder
from contrasent.model.precision import PRECISIONS
from contrasent.model.protocol import Encoder
from contrasent.model.st_layers import role_options
from contrasent.progress import progress_bar
from contrasent.search.nearest import KINDS, kind_for
from contrasent.search.snapshot import (
    LARGE,
    Hit,
    Snapshot,
    merged,
    optimized,
    require_ids,
    require_query,
    require_search,
)
from contrasent.search.storage import (
    Blocks,
    IndexManifest,
    IndexRows,
    embed,
    maker_of,
    remove_unlisted,
    require_folder,
    require_texts,
    with_ids,
    write_manifest,
    write_removed,
    write_segment,
)

if TYPE_CHECKING:
    from contrasent.model.loading import LoadedEncoder


def similarity(encoder: Encoder, a: str, b: str, *, precision: str = "auto") -> float:
    """Cosine of the embeddings of two texts, in [-1, 1]; an empty text is refused."""
    for text in (a, b):
        if not text.strip():
            raise DataError(f"{text!r} is empty; a similarity needs two texts")
    rows = np.concatenate([*encoder.encode_stream([a, b], precision=precision)]).astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1)
    if not (np.isfinite(lengths).all() and lengths.all()):
        raise CheckpointError(f"{encoder.name} gives a vector without a direction; check it")
    return float(np.clip(rows[0] @ rows[1] / (lengths[0] * lengths[1]), -1.0, 1.0))


class Index:
    """Search by cosine over embedded texts that lie in a folder.

    ``len(index)`` is the number of texts. Vectors and texts stay on disk, memory-mapped. Search is
    exact over few texts, and approximate over many; scores are always exact cosines. Threads may
    search, add and remove together; a process sees what others wrote after :meth:`refresh`. When a
    writing method returns, its change is on disk and survives whatever ends the process.
    """

    def __init__(self, folder: Path, snapshot: Snapshot) -> None:
        """Use :meth:`open` or :meth:`build`."""
        self.folder = folder
        self._snapshot = snapshot
        self._lock = RLock()
        self._checked: weakref.ref[Encoder] | None = None

    @classmethod
    def build(  # noqa: PLR0913 - what an index is made of, by name
        cls,
        encoder: Encoder,
        texts: Iterable[str],
        folder: str | Path,
        ids: Sequence[str | int] | None = None,
        *,
        precision: str = "auto",
        kind: str = "auto",
        overwrite: bool = False,
        show_progress: bool = False,
    ) -> Self:
        """Embed texts and write an index, as a whole or not at all.

        Args:
            encoder: what embeds the texts, and later the queries.
            texts: the texts, read once, as a stream.
            folder: where to write the index.
            ids: one different id per text; by default the numbers of the rows.
            precision: ``fp32``, ``bf16`` or ``auto``; queries use the same.
            kind: ``flat`` (exact), ``hnsw``, ``ivfpq`` (OPQ+IVF-PQ, the smallest), or ``auto``:
                chosen by the number of texts.
            overwrite: replace an index that is there already.
            show_progress: a progress bar on standard error.

        Raises:
            ConfigError: no such precision or kind, or too few texts for it; something else is at
                ``folder``, or an index and ``overwrite`` is off; or another process writes it.
            DataError: there is no text, a text is empty, or ids are repeated, empty or too few.
        """
        folder = Path(folder)
        require_folder(folder, overwrite)
        pick("precision", precision, PRECISIONS)
        pick("kind of index", kind, ("auto", *KINDS))
        maker = maker_of(encoder, precision)
        names = require_ids(texts, ids)
        with exclusive(folder), writing_folder(folder.resolve()) as partial:
            blocks = with_ids(embed(encoder, texts, precision, show_progress), names)
            first = write_segment(partial, 1, blocks, encoder.width)
            kind_for(first.rows, kind)
            manifest = IndexManifest(maker, (first,), ids is None, kind=kind, writes=1)
            with _indexing(first.rows, show_progress) as advance:
                write_manifest(partial, optimized(partial, manifest, kind, advance))
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open an index.

        Raises:
            CheckpointError: there is none at ``folder``, or it is damaged.
        """
        folder = Path(folder)
        recover_folder(folder.resolve())
        return cls(folder, Snapshot.open(folder))

    def __len__(self) -> int:
        return self._snapshot.texts

    @property
    def manifest(self) -> IndexManifest:
        """Its encoder, its segments, and its approximate index with the recall, if it has one."""
        return self._snapshot.manifest

    @property
    def kind(self) -> str:
        """``flat``, ``hnsw`` or ``ivfpq``."""
        ann = self.manifest.ann
        return "flat" if ann is None else ann.kind

    def refresh(self) -> None:
        """Take over what other processes wrote since the index was opened."""
        self._snapshot = Snapshot.open(self.folder, self._snapshot)

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
            DataError: as for :meth:`build`; or an id is in the index already.
        """
        self.require(encoder)
        names = require_ids(texts, ids)
        precision = self.manifest.encoder.precision
        self._append(embed(encoder, texts, precision, show_progress), names)

    def add_vectors(
        self, vectors: np.ndarray, texts: Sequence[str], ids: Sequence[str | int] | None = None
    ) -> list[str]:
        """Append texts whose embeddings are known, all or none; the ids that they have.

        Args:
            vectors: ``(n, D)`` embeddings by the encoder that built the index, of any length.
            texts: n texts.
            ids: n ids; by default the next numbers.

        Raises:
            CheckpointError: a vector is zero or not finite.
            ConfigError: another process writes to the index; or the shape is another.
            DataError: as for :meth:`add`.
        """
        names = require_ids(texts, ids)
        list(require_texts(texts))
        vectors, width = np.asarray(vectors, np.float32), self.manifest.encoder.width
        if vectors.shape != (len(texts), width):
            raise ConfigError(
                f"vectors have shape {vectors.shape}; expected {(len(texts), width)}, a row for "
                "each text"
            )
        first, end = self._append(iter([(vectors, list(texts))] if texts else []), names)
        return list(map(str, range(first, end))) if names is None else names

    def remove(self, ids: Iterable[str | int], *, missing_ok: bool = False) -> int:
        """Remove the texts with ``ids``, all or none; how many they were.

        Raises:
            ConfigError: another process writes to the index; or one string was given.
            DataError: an id is not in the index, unless ``missing_ok``.
        """
        if isinstance(ids, str):
            raise ConfigError("ids must be a list, not one string: put it in [ ]")
        names = list(dict.fromkeys(map(str, ids)))
        with self._writing() as now:
            rows = now.rows_of(names)
            missing = [name for name in names if name not in rows]
            if missing and not missing_ok:
                raise DataError(
                    f"no text of {self.folder} has the id {missing[0]!r}"
                    + (f", nor have {len(missing) - 1} others" if missing[1:] else "")
                    + "; nothing was removed"
                )
            if rows:
                removed = np.union1d(now.removed, np.fromiter(rows.values(), np.int64))
                number, was = now.manifest.next_write, now.manifest
                file, given = write_removed(self.folder, number, removed), was.next_number
                write_manifest(self.folder, replace(was, removed=file, given=given, writes=number))
        return len(rows)

    def optimize(self, kind: str | None = None, *, show_progress: bool = False) -> None:
        """Drop removed rows from disk, and let a kind of index cover all texts.

        Without it, texts that were added later are searched exactly, beside the approximate index.
        Others can search meanwhile, but not write. Nothing is lost if the process dies.

        Args:
            kind: as for :meth:`build`; by default what was asked for then.
            show_progress: a progress bar on standard error.

        Raises:
            ConfigError: no such kind, or too few texts for it; or another process writes.
        """
        with self._writing() as now, _indexing(now.texts, show_progress) as advance:
            asked = now.manifest.kind
            if kind is not None and kind_for(now.texts, kind):
                asked = kind
            write_manifest(self.folder, optimized(self.folder, now.manifest, asked, advance))

    @property
    def needs_optimizing(self) -> bool:
        """Whether many texts are searched one by one though their number asks for an index."""
        manifest, removed = self.manifest, self.manifest.rows - len(self)
        if removed > manifest.rows // 4:
            return True
        exact = manifest.rows - (0 if manifest.ann is None else manifest.ann.rows)
        return manifest.kind != "flat" and exact > LARGE and kind_for(len(self)) != "flat"

    def search(
        self,
        encoder: Encoder,
        queries: Sequence[str],
        top_k: int = 10,
        threshold: float | None = None,
    ) -> list[list[Hit]]:
        """The ``top_k`` texts nearest to each query by cosine, best first.

        Equal scores are in the order of the rows. Fewer hits than ``top_k`` come back only when
        the index holds fewer texts, or fewer have a score of ``threshold`` or more. An encoder is
        checked when it searches for the first time.

        Raises:
            CheckpointError: another encoder built the index.
            ConfigError: ``top_k`` is below 1, ``threshold`` is no cosine, or one string was given
                instead of a list.
            DataError: a query is empty.
        """
        if isinstance(queries, str):
            raise ConfigError("queries must be a list of strings, not one string: put it in [ ]")
        for number, query in enumerate(queries):
            require_query(query, top_k, f"query {number}", threshold)
        if self._checked is None or self._checked() is not encoder:
            self.require(encoder)
            self._checked = weakref.ref(encoder)  # hashing all weights takes longer than a search
        precision = self.manifest.encoder.precision
        how: dict[str, Any] = {"precision": precision, **role_options(encoder, "query")}
        blocks = list(encoder.encode_stream(queries, normalize=True, **how))
        return self._snapshot.search(np.concatenate(blocks), top_k, threshold) if blocks else []

    def search_vectors(
        self, queries: np.ndarray, top_k: int = 10, threshold: float | None = None
    ) -> list[list[Hit]]:
        """:meth:`search` for ``(Q, D)`` embeddings, of any length, by the encoder of the index.

        Raises:
            ConfigError: as for :meth:`search`; or the shape is another.
            DataError: a vector is zero or not finite.
        """
        require_search(top_k, threshold)
        queries, width = np.asarray(queries, np.float32), self.manifest.encoder.width
        if queries.ndim != 2 or queries.shape[1] != width:
            raise ConfigError(f"queries have shape {queries.shape}; expected (Q, {width})")
        length = np.linalg.norm(queries, axis=1, keepdims=True)
        if not (np.isfinite(length).all() and length.all()):
            raise DataError("a query's vector is zero or not finite: it has no direction")
        return self._snapshot.search(queries / length, top_k, threshold)

    def blocks(self) -> Iterator[IndexRows]:
        """All texts with ids and ``(n, D)`` unit vectors, some at a time, in the order of rows."""
        return self._snapshot.blocks()

    def require(self, encoder: Encoder) -> None:
        """Make sure that ``encoder`` is the one that built the index; the refusal names both."""
        maker, fingerprint = self.manifest.encoder, encoder.fingerprint()
        if fingerprint != maker.fingerprint:
            raise CheckpointError(
                f"{self.folder} was built with {maker.name} (pooler {maker.pooler}, head "
                f"{maker.head}, engine {maker.engine}, fingerprint {maker.fingerprint}), not with "
                f"{encoder.name} (pooler {encoder.pooler}, head {encoder.head_name}, engine "
                f"{encoder.engine}, fingerprint {fingerprint}): their vectors cannot be compared; "
                "use that encoder, or build an index with this one"
            )

    @contextmanager
    def _writing(self) -> Iterator[Snapshot]:
        """The newest state, which nobody else changes inside; afterwards what it is then."""
        with self._lock, exclusive(self.folder):
            self.refresh()
            yield self._snapshot
            self.refresh()

    def _append(self, blocks: Blocks, names: list[str] | None) -> tuple[int, int]:
        """Append rows; the numbers that they get if they have no ids, from the first to the end."""
        encoder = self.manifest.encoder
        with self._writing() as now:
            was = now.manifest
            if was.encoder != encoder:
                raise CheckpointError(
                    f"{self.folder} was built anew, with {was.encoder.name}; open it again"
                )
            self._require_new(now, names)
            remove_unlisted(self.folder, was)
            number, given = was.next_write, was.next_number
            rows = with_ids(blocks, names, given)
            more = write_segment(self.folder, number, rows, encoder.width)
            grown = replace(
                was,
                segments=(*was.segments, more),
                numbered=was.numbered and names is None,
                given=given + more.rows,
                writes=number,
            )
            write_manifest(self.folder, merged(self.folder, grown))
        return given, given + more.rows

    def _require_new(self, now: Snapshot, names: list[str] | None) -> None:
        """Make sure that no text has an id of a new one."""
        if names is not None:
            known = now.rows_of(names)
            for row, name in enumerate(names):
                if name in known:
                    raise DataError(f"id {name!r} of text {row} is in the index already")
        elif not now.manifest.numbered:
            raise DataError(
                f"the texts of {self.folder} have ids of their own, so the new ones need ids too: "
                "give them with --ids COLUMN (ids=[...] in Python)"
            )


def _indexing(rows: int, shown: bool) -> AbstractContextManager[Callable[..., None]]:
    return progress_bar("indexing", "bar", "count", "elapsed", total=rows, shown=shown)


def encoder_of(index: Index, name: str | None = None, device: str | None = None) -> LoadedEncoder:
    """Load the encoder that the index names, or ``name``, which must be equal to it."""
    from contrasent.model.loading import load_encoder

    maker = index.manifest.encoder
    try:
        encoder = load_encoder(
            name or maker.name,
            pooler=maker.pooler,
            head=maker.head,
            engine=maker.engine,
            device=device,
            truncate_dim=maker.truncate_dim,
            prompt_name=maker.prompt_name,
        )
    except CheckpointError as error:
        if name is not None:
            raise
        raise CheckpointError(
            f"{index.folder} was built with {maker.name}, which cannot be loaded: {error}; "
            "if the encoder has moved, say where it is with --encoder FOLDER"
        ) from error
    index.require(encoder)
    return encoder
