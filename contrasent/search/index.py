"""The index folder: vectors, texts, ids, and the fingerprint of the encoder that made them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from contrasent import model
from contrasent.data.tokenizer import sentences_of
from contrasent.encode.shards import Blocks, FinishedShards, blocks_with_texts, manifest_in
from contrasent.errors import CheckpointError, ConfigError, DataError, pick, warn
from contrasent.files import recover_folder, refuse_existing, writing_folder
from contrasent.model.protocol import Encoder, role_options, similarity_of, unit_rows
from contrasent.options import IndexOptions, SearchOptions
from contrasent.progress import progress_bar
from contrasent.search import storage
from contrasent.search.metadata import (
    IndexRows,
    checked_ids,
    checked_texts,
    joint_columns,
    metadata_table,
    numbered,
)
from contrasent.search.milvus import MilvusRows, close_milvus, writing_index
from contrasent.search.nearest import MILVUS, VectorsInfo, kind_for
from contrasent.search.storage import EncoderIdentity, IndexManifest, Snapshot
from contrasent.search.words import Hit, WordsInfo
from contrasent.settings import checked, takes

Metadata = Iterable[Mapping[str, Any]] | None
Given = Encoder | str | Path | None  # an encoder, or the name of one
_CHUNK = 16_384


class Index:
    """Search by the encoder's similarity over embedded texts that lie in a folder.

    ``len(index)`` is the number of texts. Vectors and texts stay on disk, memory-mapped. Search is
    exact over few texts, and approximate over many; scores are always exact. Threads may search,
    add and remove together; a process sees what others wrote after `refresh`. When a writing method
    returns, its change is on disk and survives whatever ends the process.
    """

    def __init__(self, folder: Path, rows: Snapshot) -> None:
        """Use `open` or `build`."""
        self.folder, self.snapshot, self._lock = folder, rows, RLock()
        self._checked: tuple[Given, Any] = None, None  # the encoder of the last search
        self._written = 0  # when, in nanoseconds: a rebuilt index differs too
        self.patience = 0.1  # seconds in which another process that writes may end

    @classmethod
    @takes(IndexOptions)
    def build(
        cls,
        encoder: Encoder | str | Path,
        texts: Iterable[str] | FinishedShards,
        folder: str | Path,
        ids: Sequence[str | int] | None = None,
        *,
        metadata: Metadata = None,
        show_progress: bool = False,
        **options: Any,
    ) -> "Index":
        """Embed texts and write an index, as a whole or not at all.

        Args:
            encoder: what embeds the texts, and later the queries, or its name.
            texts: the texts, read once, as a stream; or shards that hold their vectors too.
            folder: where to write the index.
            ids: one different id per text; by default the numbers of the rows.
            metadata: values by name for each text, which hits have and searches can ask for.
            show_progress: a progress bar on standard error.
            **options: by name. `contrasent.tune_index` measures if searches by words help.

        Raises:
            ConfigError: something else is at ``folder``, or another process writes it.
            DataError: there is no text, a text is empty, or ids are repeated, empty or too few.
        """
        asked, embeds = checked(IndexOptions, options), model.encoder_of(encoder)
        names, similarity = checked_ids(ids), similarity_of(embeds)
        kind, form, precision = asked.kind, asked.vectors, str(asked.precision)
        chosen = kind_for(inf, kind, similarity, form)
        if form == "binary":
            kind, form = chosen, "int8"
        if isinstance(texts, FinishedShards):
            precision = str(texts.manifest["precision"])
            pick("precision of the shards", asked.precision, {"auto", precision})
        folder, table = Path(folder), None if metadata is None else metadata_table(metadata)
        manifest = IndexManifest(
            EncoderIdentity.of(embeds, precision),
            (),
            numbered=names is None,
            kind=kind,
            writes=1,
            similarity=similarity,
            vectors=VectorsInfo(form),
            words=WordsInfo() if asked.words else None,
            columns=joint_columns({}, table),
        )
        if isinstance(texts, FinishedShards):
            blocks = texts.blocks(embeds)
        else:
            given = sentences_of(texts, "texts")
            blocks = embedded(embeds, given, manifest, show_progress=show_progress)
        rows = numbered(blocks, names, similarity, table)
        recover_folder(folder.resolve())
        remedy = "it is not an index, so it is left alone: name another folder"
        if is_index := bool(manifest_in(folder, "contrasent-index-")):
            remedy = "pass --overwrite to replace it, or add to it with: contrasent index add"
        if not (is_index and asked.overwrite):
            refuse_existing(folder, remedy)
        with writing_index(folder, anew=True):
            _write_index(folder, manifest, rows, None if kind == "auto" else kind, show_progress)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> "Index":
        """Open an index; CheckpointError if there is none at ``folder``, or it is damaged."""
        folder = Path(folder)
        recover_folder(folder.resolve())
        return cls(folder, _opened(folder))

    def __len__(self) -> int:
        return self.snapshot.texts

    @property
    def manifest(self) -> IndexManifest:
        """Its encoder, its segments, and its approximate index with the recall, if it has one."""
        return self.snapshot.manifest

    @property
    def kind(self) -> str:
        """A name of `contrasent.search.nearest.KINDS`."""
        exact = self.manifest.kind if self.manifest.kind in MILVUS else "flat"
        return exact if self.manifest.ann is None else self.manifest.ann.kind

    def facts(self) -> dict[str, Any]:
        """Size, kind, similarity, form of vectors, recall, fusion with words, and encoder."""
        known = asdict(self.manifest) | {"texts": len(self), "kind": self.kind}
        known |= {"approximate": known["ann"], "segments": len(known["segments"])}
        names = "texts kind similarity segments vectors approximate words columns encoder"
        return {name: known[name] for name in names.split()}

    def refresh(self) -> None:
        """Take over what others wrote; CheckpointError if they built it with another encoder."""
        newest = _opened(self.folder, self.snapshot)
        if newest.manifest.encoder != self.manifest.encoder:
            name = newest.manifest.encoder.name
            raise CheckpointError(f"{self.folder} was built anew, with {name}; open it again")
        self.snapshot = newest

    def refresh_if_written(self) -> None:
        """`refresh`, if somebody wrote since the last time; OSError if the folder is gone."""
        written = self.folder.joinpath("manifest.json").stat().st_mtime_ns
        if written != self._written:
            self.refresh()
        self._written = written

    def add(
        self,
        encoder: Given,
        texts: Iterable[str],
        ids: Sequence[str | int] | None = None,
        *,
        metadata: Metadata = None,
        show_progress: bool = False,
    ) -> None:
        """Embed more texts with the encoder that built the index and append them, all or none."""
        embeds, texts = self.encoder(encoder), sentences_of(texts, "texts")
        blocks = embedded(embeds, texts, self.manifest, show_progress=show_progress)
        self._change((), blocks, checked_ids(ids), metadata)

    def change(
        self,
        remove: Iterable[str | int],
        vectors: np.ndarray,
        texts: Sequence[str],
        ids: Sequence[str | int] | None = None,
        *,
        metadata: Metadata = None,
        missing_ok: bool = False,
    ) -> tuple[int, list[str]]:
        """`remove`, and add texts of ``(n, D)`` embeddings, all or none; how many left, new ids."""
        texts = [*checked_texts(sentences_of(texts, "texts"))]
        names = checked_ids(ids)
        gone = list(dict.fromkeys(map(str, sentences_of(remove, "ids"))))
        blocks = iter([(self._matrix(vectors, len(texts)), texts)])
        given = blocks if texts or names or metadata else None
        removed, new = self._change(gone, given, names, metadata, missing_ok)
        return removed, list(map(str, new)) if names is None else names

    def reembed(
        self, encoder: Encoder | str | Path, *, precision: str = "auto", show_progress: bool = False
    ) -> None:
        """Embed all texts by another encoder, beside what is there, which is replaced in the end.

        Ids, metadata, the kind of index and, until `contrasent.tune_index` chooses another, the
        weight of words stay. Others can search meanwhile, but not write, and open it again then.
        """
        embeds = model.encoder_of(encoder)
        with self._lock, writing_index(self.folder, self.patience, anew=True):
            self.refresh()
            was, table = self.manifest, self.snapshot.table.filter(self.snapshot.live)
            texts = (text for part in table.column("text").chunks for text in part.to_pylist())
            similarity = similarity_of(embeds)
            kind_for(inf, was.kind, similarity)
            known, identity = was.words, EncoderIdentity.of(embeds, precision)
            words = known and WordsInfo(known.weight, known.chosen_by, known.hybrid)
            manifest = replace(was, encoder=identity, similarity=similarity, words=words)
            manifest = replace(manifest, given=was.next_number, segments=(), ann=None, removed=None)
            blocks = embedded(embeds, texts, manifest, show_progress=show_progress)
            metadata = table.drop_columns(["id", "text"]) if was.columns else None
            rows = numbered(blocks, table.column("id").to_pylist(), similarity, metadata)
            _write_index(self.folder, manifest, rows, None, show_progress)
            self.snapshot, self._checked = _opened(self.folder), (None, None)

    def remove(self, ids: Iterable[str | int], *, missing_ok: bool = False) -> int:
        """Remove texts, all or none; how many. DataError if an id is missing, unless that is ok."""
        none = np.empty((0, self.manifest.encoder.width))
        return self.change(ids, none, (), missing_ok=missing_ok)[0]

    def optimize(self, kind: str | None = None, *, show_progress: bool = False) -> None:
        """Drop removed rows from disk, and let a kind of index cover all texts.

        Without it, texts that were added later are searched exactly, beside the approximate index.
        Others can search meanwhile, but not write. Nothing is lost if the process dies. ``kind`` is
        as for `build`, by default what was asked for then.
        """
        if kind not in (None, self.kind) and {kind, self.kind} & {*MILVUS}:
            raise ConfigError(f"{self.folder} is {self.kind}; build it anew as {kind}")
        with (
            self._writing() as now,
            progress_bar("indexing", now.texts, shown=show_progress) as advance,
        ):
            storage.write_manifest(self.folder, now.optimized(kind, advance))

    def set_words(self, words: WordsInfo) -> None:
        """Take a weight of BM25 for hybrid searches, and write tables of words if there are none.

        `contrasent.tune_index` chooses one.
        """
        with self._writing():
            now = self.snapshot.manifest
            for segment in () if now.words else now.segments:
                storage.write_words(self.folder, segment.name)
            storage.write_manifest(self.folder, replace(now, words=words))

    def close(self) -> None:
        """Let other processes open an index in Milvus; this one is of no more use then."""
        close_milvus(self.folder)

    @takes(SearchOptions)
    def search(
        self,
        encoder: Given,
        queries: Sequence[str],
        top_k: int = 10,
        threshold: float | None = None,
        **options: Any,
    ) -> list[list[Hit]]:
        """The ``top_k`` best texts for each query, best first, equal scores in the order of rows.

        Fewer come back only when the index holds fewer, or fewer are at least as similar as
        ``threshold``, satisfy the ``filter`` or, by words, have a word of the query.

        Args:
            encoder: the one that built the index, or its name; None will do for the mode ``words``.
            queries: texts to look for.
            top_k: hits to find.
            threshold: least similarity of a hit.
            **options: by name.

        Raises:
            CheckpointError: another encoder built the index, found at its first search.
            ConfigError: a query is empty, or the index cannot be searched so.
        """
        queries, manifest = [*sentences_of(queries, "queries")], self.manifest
        options |= {"top_k": top_k, "threshold": threshold}
        how = manifest.search_options(checked(SearchOptions, options), queries, encoder is not None)
        if encoder is None or how.mode == "words":
            return self.snapshot.search(None, how, queries)
        if self._checked[0] != encoder:  # hashing all weights takes longer than a search
            self._checked = encoder, self.encoder(encoder)
        rows = [it for it, _ in embedded(self._checked[1], queries, manifest, role="query")]
        return self.snapshot.search(np.concatenate(rows), how, queries) if queries else []

    @takes(SearchOptions)
    def search_vectors(
        self,
        queries: np.ndarray,
        top_k: int = 10,
        threshold: float | None = None,
        texts: Sequence[str] | None = None,
        **options: Any,
    ) -> list[list[Hit]]:
        """`search` for ``(Q, D)`` embeddings by the index's encoder, for cosines of any length.

        Hybrid searches, and those by words, need the ``texts`` of the queries too.
        """
        options |= {"top_k": top_k, "threshold": threshold}
        how = self.manifest.search_options(checked(SearchOptions, options), texts)
        queries = self._matrix(queries, len(np.atleast_2d(queries) if texts is None else texts))
        if self.manifest.similarity == "cosine":
            queries = unit_rows(queries.astype(np.float64)).astype(np.float32)
        return self.snapshot.search(queries, how, texts or ())

    def similar(self, id: str | int, top_k: int = 10) -> list[Hit]:  # noqa: A002 - a hit's word
        """The ``top_k`` other texts that are nearest to one of the index; DataError without it."""
        name = str(id)
        numbers = [*self.snapshot.rows_of([name]).values()]
        if not numbers:
            raise DataError(f"no text of {self.folder} has the id {name!r}")
        [hits] = self.search_vectors(self.snapshot.vectors_at(numbers), top_k + 1)
        return [hit for hit in hits if hit.id != name][:top_k]

    def blocks(self) -> Iterator[IndexRows]:
        """All texts with ids and ``(n, D)`` vectors, some at a time, in the order of rows."""
        return self.snapshot.blocks()

    def require(self, encoder: Encoder) -> None:
        """Refuse another encoder than the one that built the index, with CheckpointError."""
        built_by = self.manifest.encoder
        if encoder.fingerprint() != built_by.fingerprint:
            raise CheckpointError(
                f"{self.folder} was built with {built_by}, not with "
                f"{EncoderIdentity.of(encoder, built_by.precision)}: their vectors cannot be "
                "compared; use that encoder, or build an index with this one"
            )
        own, stated = self.manifest.similarity, similarity_of(encoder)
        if own != stated:
            how = f"ranks by {own}, as it was built, but {encoder.name} states {stated}"
            warn(f"{self.folder} {how}; build the index again to rank by that")

    def encoder(self, name: Given = None, device: str | None = None) -> Any:
        """Load the encoder that the index names, or ``name``, which must be equal to it."""
        built_by = self.manifest.encoder
        fields = ("pooler", "head", "engine", "truncate_dim", "prompt_name")
        how: dict[str, Any] = {field: getattr(built_by, field) for field in fields}
        encoder = model.encoder_of(name or built_by.name, device=device, **how)
        self.require(encoder)
        return encoder

    def _matrix(self, vectors: np.ndarray, rows: int) -> np.ndarray:
        """``(rows, D)`` vectors that were given: finite, and for cosines none of length 0."""
        vectors, expected = np.asarray(vectors, np.float32), (rows, self.manifest.encoder.width)
        usable = vectors.shape == expected and bool(np.isfinite(vectors).all())
        if not usable or (self.manifest.similarity == "cosine" and not vectors.any(axis=1).all()):
            raise ConfigError(
                f"vectors have shape {vectors.shape}; expected {expected}, finite, and a direction"
            )
        return vectors

    @contextmanager
    def _writing(self) -> Iterator[Snapshot]:
        """The newest state, which nobody else changes inside."""
        with self._lock, writing_index(self.folder, self.patience):
            self.refresh()
            yield self.snapshot
            self.refresh()

    def _change(
        self,
        removed_ids: Sequence[str],
        blocks: Blocks | None,
        names: list[str] | None,
        metadata: Metadata = None,
        missing_ok: bool = False,
    ) -> tuple[int, range]:
        table = None if metadata is None else metadata_table(metadata)
        with self._writing() as now:
            before, rows = now.manifest, now.rows_of(removed_ids)
            missing = next((name for name in removed_ids if name not in rows), None)
            first = before.next_number
            after, added, problem = replace(before, given=first, writes=before.next_write), None, ""
            if missing is not None and not missing_ok:
                problem = f"no text of {self.folder} has the id {missing!r}; nothing was removed"
            if blocks is not None:
                known = now.rows_of(names or ()).keys() - rows.keys()
                if names is None and not before.numbered:
                    problem = f"texts of {self.folder} have ids of their own: give ids (--ids)"
                elif taken := next((name for name in names or () if name in known), None):
                    problem = f"id {taken!r} is in the index already"
                added = numbered(blocks, names, before.similarity, table, first)
                columns = joint_columns(before.columns, table, now.table)
                after = replace(after, numbered=before.numbered and names is None, columns=columns)
            if problem:
                raise DataError(problem)
            if rows or added is not None:
                after = now.changed(after, [*rows.values()], added)
        return len(rows), range(first, after.next_number)


def _write_index(
    folder: Path,
    manifest: IndexManifest,
    rows: Iterator[IndexRows],
    kind: str | None,
    show_progress: bool,
) -> None:
    with writing_folder(folder.resolve()) as partial:
        if manifest.kind in MILVUS:
            manifest = MilvusRows.build(partial, manifest, rows, folder)
        else:
            form, manifest = manifest.vectors.form, replace(manifest, vectors=VectorsInfo())
            first = storage.write_segment(partial, manifest, rows)
            kind_for(first.rows, kind or "auto", manifest.similarity, form)
            manifest = replace(manifest, segments=(first,))
            with progress_bar("indexing", first.rows, shown=show_progress) as advance:
                manifest = Snapshot.open(partial, manifest).built(kind, form, advance)
        storage.write_manifest(partial, manifest)
        close_milvus(folder)  # of what is replaced


def _opened(folder: Path, last: object = None) -> Snapshot:
    manifest = storage.read_manifest(folder)
    if manifest.kind in MILVUS:
        return MilvusRows.open(folder, manifest, last)
    while True:
        try:
            return Snapshot.open(folder, manifest)
        except CheckpointError as error:  # a writer may have replaced files since it was read
            before, manifest = manifest, storage.read_manifest(folder)
            if manifest == before:
                whole = Snapshot.open(folder, replace(manifest, ann=None))
                warn(f"{error}; until then it is searched exactly")
                return whole


def embedded(
    encoder: Encoder, texts: Iterable[str], like: IndexManifest, role: str = "document", **how: Any
) -> Blocks:
    """Rows of texts for an index that is ``like`` that, and these; ``how`` as `encode_stream`."""
    return blocks_with_texts(
        encoder,
        checked_texts(texts),
        chunk=_CHUNK,
        normalize=True if like.similarity == "cosine" else None,
        precision=like.encoder.precision,
        **role_options(encoder, role),
        **how,
    )
