"""An index folder: its manifest, its segments, and what is open of them.

The manifest is replaced last and as a whole: a segment that it does not list does not exist. A
snapshot never changes: threads search it while another writes the next one.

Shapes: Q queries, N rows of a segment, D dimensions of a vector.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate, chain
from math import inf
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import ConfigDict, Field, NonNegativeInt, TypeAdapter, ValidationError

from contrasent.data.tokenizer import require_text
from contrasent.encode.shards import FILE
from contrasent.encode.vectors import SmallVectors, Vectors, npy_writer, open_rows, write_ranges
from contrasent.errors import CheckpointError, ConfigError, shown
from contrasent.files import inside, readable, write_json, writing
from contrasent.model.protocol import Conventions, Encoder
from contrasent.options import SearchOptions
from contrasent.search import nearest as knn
from contrasent.search import words as bm25
from contrasent.search.metadata import COLUMNS, IndexRows, Kind, matching_rows, typed
from contrasent.search.nearest import KINDS, MILVUS, Ann, AnnInfo, Recall, VectorsInfo, kind_for
from contrasent.search.words import Hit, Ranked, WordIndex, WordsInfo

MILVUS_FOLDER, LITE = "milvus.db", "texts"  # of an index in Milvus Lite, and its collection
_COLLECTION = rf"^({LITE}|contrasent_\d+_[0-9a-f]{{16}})$"
_VECTORS, _TABLE, _WORDS = "segments/{}.npy", "segments/{}.arrow", "segments/{}.words"
_FILES = (_VECTORS, _TABLE)  # of a segment; of an index with words that of its words too
_REMOVED = "segments/{:06d}.removed.npy"
_RANGES = "segments/ranges.npy"  # ``(2, D)``, if vectors are bytes
_REBUILD = "restore the folder from a copy or build the index again"
_BLOCK, _CANDIDATES = 16_384, 200
_LARGE = 65_536  # rows from which a segment is merged with no other, except by `optimized`


@dataclass(frozen=True, slots=True)
class EncoderIdentity:
    """The encoder whose vectors an index holds."""

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
        made = f"pooler {self.pooler}, head {self.head}, engine {self.engine}"
        return f"{self.name} ({made}, fingerprint {self.fingerprint})"


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows that were written together; ``name`` is the stem of their files."""

    name: str
    rows: NonNegativeInt


@dataclass(frozen=True, slots=True)
class IndexManifest:
    """What an index holds."""

    __pydantic_config__ = ConfigDict(strict=True, extra="forbid")  # of all that it holds, too
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
    vectors: VectorsInfo = field(default_factory=VectorsInfo)  # float32 in all older indexes
    words: WordsInfo | None = None  # None without tables of words, as in all older indexes
    columns: dict[str, Kind] = field(default_factory=dict)  # of metadata, by name
    collection: Annotated[str, Field(pattern=_COLLECTION)] | None = None  # in Milvus
    format: Annotated[str, Field(pattern="^contrasent-index-[1-5]$")] = "contrasent-index-5"

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
        paths = _FILES if self.words is None else (*_FILES, _WORDS)
        segments = (path.format(s.name) for s in self.segments for path in paths)
        others = (self.removed, self.ann.file if self.ann else None, _RANGES)
        return {*segments, *(name for name in others if name)}

    def search_options(
        self, how: SearchOptions, queries: Sequence[str] | None, can_embed: bool = True
    ) -> SearchOptions:
        """Options with the mode that ``auto`` is, and the weight of the index; else ConfigError."""
        words, similarity, least = self.words, self.similarity, how.threshold
        mode, weighted, ranks, problem = how.mode, how.weight is not None, how.fusion == "ranks", ""
        low, high = (-1, 1) if similarity == "cosine" else (-inf, inf if similarity == "dot" else 0)
        if mode == "auto":
            fused = words and queries is not None and (words.hybrid or weighted or ranks)
            mode = "hybrid" if fused else "dense"
        if empty := [n for n, it in enumerate(queries or ()) if not str(it or "").strip()]:
            problem = f"query {empty[0]} is empty; write what to look for"
        elif mode != "dense" and queries and words is None:
            problem = "the index has no words to search by; contrasent index tune adds them"
        elif mode != "dense" and (queries is None or words is None):
            problem = "give the texts of the queries"
        elif mode != "words" and not can_embed:
            problem = f"a search of the mode {mode} needs the encoder of the index"
        elif mode == "words" and least is not None:
            problem = "a threshold is one of similarity, which the mode words does not know"
        elif least is not None and not low <= least <= high:
            problem = f"a threshold by {similarity} goes from {low} to {high}, not {least:g}"
        elif ((weighted or ranks) and mode != "hybrid") or (weighted and ranks):
            problem = "a weight is one of hybrid searches that sum scores, ranks are of others"
        if problem:
            raise ConfigError(problem)
        weight = how.weight if weighted or words is None else words.weight
        return replace(how, mode=mode, weight=weight)


def write_manifest(folder: Path, manifest: IndexManifest) -> None:
    """Make ``manifest`` what the folder holds, at once."""
    write_json(folder / FILE, asdict(replace(manifest, format="contrasent-index-5")))


def read_manifest(folder: Path) -> IndexManifest:
    """Read what :func:`write_manifest` wrote; CheckpointError if it is damaged, or not there."""
    path = inside(folder, FILE)
    try:
        manifest = TypeAdapter(IndexManifest).validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            place, given = ".".join(map(str, first["loc"])), shown(first["input"])
            reason = f"{path} is damaged: {place} is {given}: {first['msg']}"
        how = f"make one with: contrasent index build MODEL INPUT {folder}"
        raise CheckpointError(f"there is no index at {folder} ({reason}); {how}") from error
    for name in ("segments", MILVUS_FOLDER, *manifest.files):  # the folder may be somebody else's
        inside(folder, name)
    return manifest


def _read_table(path: Path, columns: Any = None, rows: int | None = None) -> Any:
    import pyarrow as pa

    with readable(path, _REBUILD):
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        if rows not in (None, table.num_rows):
            raise ValueError(f"it has {table.num_rows} rows, not {rows}")
        return table if columns is None else typed(table, columns)


def write_segment(
    folder: Path,
    manifest: IndexManifest,
    blocks: Iterable[IndexRows],
    ranges: np.ndarray | None = None,
) -> Segment:
    """Write rows as the files of the segment that the next write of a manifest adds."""
    path = folder / _VECTORS.format(f"{manifest.writes:06d}")
    form, width = manifest.vectors.form, manifest.encoder.width
    with npy_writer(path, width, form, ranges) as append:

        def appended() -> Iterator[IndexRows]:
            for block in blocks:
                append(block.vectors, ())
                yield block

        return write_table(folder, manifest, appended())


def write_table(folder: Path, manifest: IndexManifest, blocks: Iterable[IndexRows]) -> Segment:
    """Write the files of a segment but its vectors."""
    import pyarrow as pa

    name, rows = f"{manifest.writes:06d}", 0
    kinds = dict.fromkeys(COLUMNS, "string") | manifest.columns
    schema = pa.schema([(column, pa.type_for_alias(kind)) for column, kind in kinds.items()])
    with writing(folder / _TABLE.format(name)) as path, pa.ipc.new_file(path, schema) as table:
        for block in blocks:
            table.write_table(typed(block.table, manifest.columns))
            rows += len(block.table)
    if manifest.words is not None:
        write_words(folder, name)
    return Segment(name, rows)


def write_words(folder: Path, name: str) -> None:
    """Write the table of words of a segment."""
    from pyarrow import feather

    chunks = _read_table(folder / _TABLE.format(name))["text"].chunks
    table = bm25.word_table(text for chunk in chunks for text in chunk.to_pylist())
    with writing(folder / _WORDS.format(name)) as path:  # whole and as it is, to be mapped
        feather.write_feather(table, str(path), compression="uncompressed", chunksize=len(table))


@dataclass(frozen=True)
class Snapshot:
    """An open index, mapped from disk; its N rows are numbered through all segments."""

    folder: Path
    manifest: IndexManifest
    vectors: list[Vectors]  # of each segment
    table: Any  # of all segments, zero-copy
    live: np.ndarray  # ``(N,)`` bool: the rows that were not removed
    ann: Ann | None
    word_tables: list[Any]  # of each segment, if there are any
    ranges: np.ndarray | None = None  # of bytes
    numbers: dict[str, Any] = field(default_factory=dict)  # columns of texts, read as numbers

    @classmethod
    def open(cls, folder: Path, manifest: IndexManifest) -> Self:
        """Open the files of a manifest, which need not be the one of the folder yet."""
        import pyarrow as pa

        live = np.ones(manifest.rows, bool)
        if manifest.removed is not None:
            path = folder / manifest.removed
            with readable(path, _REBUILD):
                live[np.load(path, allow_pickle=False)] = False
        parts, how = manifest.segments, (manifest.encoder.width, _REBUILD)
        form = manifest.vectors.form
        ranges = open_rows(folder / _RANGES, 2, *how) if form == "int8" else None
        vectors = list[Vectors]()
        for it in () if manifest.kind in MILVUS else parts:
            codes = open_rows(folder / _VECTORS.format(it.name), it.rows, *how, form)
            vectors.append(codes if form == "float32" else SmallVectors(codes, ranges))
        columns = manifest.columns
        tables = [_read_table(folder / _TABLE.format(it.name), columns, it.rows) for it in parts]
        with_words = parts if manifest.words else ()
        words = [_read_table(folder / _WORDS.format(it.name)) for it in with_words]
        ann = None if manifest.ann is None else Ann.open(folder, manifest.ann)
        return cls(folder, manifest, vectors, pa.concat_tables(tables), live, ann, words, ranges)

    @property
    def texts(self) -> int:
        """Texts that were not removed."""
        return int(np.count_nonzero(self.live))

    @cached_property
    def words(self) -> WordIndex:
        """BM25 over all texts that were not removed."""
        with readable(self.folder, _REBUILD):
            lengths = [segment.rows for segment in self.manifest.segments]
            return WordIndex(self.word_tables, lengths, self.live)

    def search(
        self, queries: np.ndarray | None, how: SearchOptions, texts: Sequence[str]
    ) -> list[list[Hit]]:
        """The hits of ``(Q, D)`` queries, best first; by words alone they need no vectors."""
        live = self.live
        if how.filter is not None:
            live = matching_rows(self.table, live, how.filter, self.numbers)
        by_words = (self.words.scores_of(text) * live for text in texts)
        if queries is None or how.mode == "words":
            ranked = [bm25.nearest_by_words(scores, how.top_k) for scores in by_words]
        else:
            is_hybrid = how.mode == "hybrid" and live.any()
            least = -inf if how.threshold is None else how.threshold
            count = max(_CANDIDATES, 10 * how.top_k) if is_hybrid else how.top_k
            near = self._nearest(queries, count, live)
            ranked = [[Ranked(*hit) for hit in hits if hit[1] >= least] for hits in near]
            if is_hybrid:
                exact = (partial(self._similarities, it) for it in queries)
                sides = zip(near, exact, by_words, strict=True)
                ranked = [bm25.nearest_by_both(*side, np.flatnonzero(live), how) for side in sides]
        return [[self._hit(it) for it in rows] for rows in ranked]

    def _nearest(
        self, queries: np.ndarray, count: int, live: np.ndarray
    ) -> list[list[tuple[int, float]]]:
        kept = None if live.all() else live
        return knn.nearest(self.vectors, queries, count, kept, self.ann, self.manifest.similarity)

    def _similarities(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return knn.row_similarities(self.vectors, self.manifest.similarity, query, rows)

    def _hit(self, ranked: Ranked) -> Hit:
        [cells] = self.table.slice(ranked.row, 1).to_pylist()
        known = {n: v for n, v in cells.items() if v is not None and n != "_file"}  # ours
        return Hit(known.pop("id"), known.pop("text"), *ranked[1:], known or None)

    def rows_of(self, values: Sequence[str], name: str = "id") -> dict[str, int]:
        """The numbers of the rows that have any of some ids, or values of another column."""
        import pyarrow as pa
        import pyarrow.compute as pc

        column = self.table.column(name)
        require_text(values, name)
        equal = pc.is_in(column, value_set=pa.array(values, pa.string())).to_numpy()
        return {column[row].as_py(): row for row in np.flatnonzero(self.live & equal).tolist()}

    def vectors_at(self, rows: Sequence[int]) -> np.ndarray:
        """The vectors ``(n, D)`` of rows, which are sorted."""
        of_each = knn.split_rows(map(len, self.vectors), np.array(rows, int))
        return np.concatenate([part[own] for part, own in zip(self.vectors, of_each, strict=True)])

    def blocks(self, first: int = 0) -> Iterator[IndexRows]:
        """The rows that were not removed, from segment ``first`` on, some at a time."""
        starts = [0, *accumulate(map(len, self.vectors))]
        for start, vectors in list(zip(starts, self.vectors, strict=False))[first:]:
            for n in range(0, len(vectors), _BLOCK):
                some, row = vectors[n : n + _BLOCK], start + n
                kept = self.live[row : row + len(some)]
                if kept.any():
                    yield IndexRows(some[kept], self.table.slice(row, len(some)).filter(kept))

    def changed(
        self, then: IndexManifest, gone: Sequence[int], new: Iterable[IndexRows] | None
    ) -> IndexManifest:
        """Write new rows, merged with segments about as large, and the manifest ``then``."""
        known = {self.folder / name for name in self.manifest.files}
        for file in self.folder.joinpath("segments").glob("*"):
            if file not in known:  # of a writer that died, or from before a merge
                file.unlink()
        live = self.live.copy()
        live[list(gone)] = False
        if new is not None:
            lengths = [segment.rows for segment in then.segments]
            covered = 0 if then.ann is None else [*accumulate(lengths)].index(then.ann.rows) + 1
            first, total = len(lengths) - 1, lengths[-1]
            while first > covered and lengths[first - 1] <= min(2 * total, _LARGE - total):
                first -= 1
                total += lengths[first]
            if first == len(lengths) - 1:
                first = len(lengths)
            then, live = replace(self, live=live)._merged(then, first, new)
        removed = np.flatnonzero(~live)
        name = self.manifest.removed
        if not np.array_equal(removed, np.flatnonzero(~self.live)):
            name = _REMOVED.format(then.writes) if removed.size else None
            if name:
                with writing(self.folder / name) as path, path.open("wb") as opened:
                    np.save(opened, removed.astype("<i8"), allow_pickle=False)
        then = replace(then, removed=name)
        write_manifest(self.folder, then)
        return then

    def _merged(
        self, then: IndexManifest, first: int, new: Iterable[IndexRows] = ()
    ) -> tuple[IndexManifest, np.ndarray]:
        """The manifest after segments from ``first`` on and ``new`` rows are one; its live rows."""
        start = sum(segment.rows for segment in then.segments[:first])
        segment = write_segment(self.folder, then, chain(self.blocks(first), new), self.ranges)
        given = then.next_number + segment.rows - int(self.live[start:].sum())
        then = replace(then, segments=(*then.segments[:first], segment), given=given)
        return then, np.concatenate([self.live[:start], np.ones(segment.rows, bool)])

    def built(self, kind: str | None, form: Any, on_rows: Callable[[int], object]) -> IndexManifest:
        """The manifest of a new index after it has a kind, and vectors of a form, measured."""
        if form == "float32":
            return self.optimized(kind, on_rows)
        [segment], ranges = self.manifest.segments, None
        full: Any = self.vectors[0]  # float32 so far
        blocks = np.split(full, range(_BLOCK, len(full), _BLOCK))
        if form == "int8":
            ranges = write_ranges(self.folder / _RANGES, blocks)
        path = self.folder / _VECTORS.format(segment.name)
        with npy_writer(path, full.shape[1], form, ranges) as append:
            for block in blocks:
                append(block, ())
        manifest = replace(self.manifest, vectors=VectorsInfo(form))
        small = Snapshot.open(self.folder, manifest)
        recall_of = knn.recall_beside(self.vectors, manifest.similarity)
        then = small.optimized(kind, on_rows, recall_of)
        recall = then.ann.recall if then.ann else recall_of(small.vectors, None)
        return replace(then, vectors=VectorsInfo(form, recall))

    def optimized(
        self, kind: str | None, on_rows: Callable[[int], object], recall_of: Recall | None = None
    ) -> IndexManifest:
        """The manifest after removed rows are gone and a ``kind``, or its own, covers the rest."""
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
        if not self.live.all() or len(manifest.segments) > 1:
            then, _ = self._merged(replace(manifest, writes=manifest.next_write), 0)
            manifest = replace(then, removed=None)
            whole = Snapshot.open(self.folder, manifest)
        elif old is not None and old.kind == chosen and old.rows == manifest.rows:
            return replace(manifest, ann=old)
        if chosen == "flat":
            return manifest
        number, rows = manifest.next_write, whole.vectors
        ann = knn.write_ann(rows, chosen, self.folder, number, on_rows, similarity, recall_of)
        return replace(manifest, ann=ann, writes=number)
