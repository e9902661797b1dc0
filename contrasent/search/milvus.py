"""The vectors of an index that lie in Milvus.

Its folder holds the manifest, texts and tables of words as that of every index, and Milvus Lite's
own folder, if no server has its collection: the vector of each row, and its number, which never
changes. The manifest is written after new rows, and before those that are gone leave: what Milvus
has beside the rows of the manifest is of a change that was cut off.

A collection of a server is named after the number of its folder in the file system: a copy of the
folder only reads it. A file beside the folder, of its name, is there as long as a collection may be
of no use: a new one until the manifest names it, and one that is replaced.
"""

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from glob import escape
from itertools import chain, count
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np

from contrasent.errors import CheckpointError, ConfigError, ContrasentError, require_extra
from contrasent.files import BusyError, beside, exclusive
from contrasent.search import storage
from contrasent.search.metadata import IndexRows
from contrasent.search.nearest import KINDS, best_rows, row_similarities
from contrasent.search.storage import LITE, IndexManifest, Snapshot

_ADDRESS, _TOKEN = "CONTRASENT_MILVUS_URI", "CONTRASENT_MILVUS_TOKEN"
_CONNECTING, _ANSWERING = 10, 60  # seconds that a server has for it
_FIELDS = ["row", "vector"]
_ROWS_AT_ONCE = 2_048
_EXTRA = 8  # hits by float32 scores, among which the best by float64 are
_FOUND_AT_ONCE = 4_096  # vectors in one answer
_LEAST_EF, _MOST_HITS = 128, 16_384


@dataclass(frozen=True)
class MilvusRows(Snapshot):
    """An open index whose vectors are in Milvus."""

    client: Any = None

    @classmethod
    def build(
        cls, folder: Path, manifest: IndexManifest, rows: Iterable[IndexRows], home: Path
    ) -> IndexManifest:
        """Make a collection of ``rows`` for an index that is to be at ``home``; its manifest."""
        from pymilvus import DataType

        name, none = LITE, np.empty(0, bool)
        if manifest.collection != LITE and os.environ.get(_ADDRESS):
            name = f"contrasent_{folder.stat().st_ino}_{token_hex(8)}"
        manifest, client = replace(manifest, collection=name), _open_client(folder, name)
        if name != LITE:
            beside(home.resolve(), name).touch()
        opened = cls(folder, manifest, [], None, none, None, [], client=client)
        try:
            schema, params = client.create_schema(), client.prepare_index_params()
            schema.add_field("row", DataType.INT64, is_primary=True)
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=manifest.encoder.width)
            metric = "L2" if manifest.similarity == "euclidean" else "IP"
            params.add_index("vector", metric_type=metric, **(KINDS[manifest.kind].milvus or {}))
            how = {"index_params": params, "consistency_level": "Strong"}
            opened._call("create_collection", schema=schema, **how)
            segment = storage.write_table(folder, manifest, opened._inserted(rows))
            opened._call("flush")
        finally:
            close_milvus(folder)
        return replace(manifest, segments=(segment,))

    @classmethod
    def open(cls, folder: Path, manifest: IndexManifest, last: object = None) -> "MilvusRows":
        """Open it, by the client of ``last`` if it is it, or mend what a killed process left."""
        if manifest.collection is None:
            raise CheckpointError(f"{folder} is of an earlier checkout; build the index again")
        opened = super().open(folder, manifest)
        if isinstance(last, MilvusRows) and last.manifest.collection == manifest.collection:
            return replace(opened, client=last.client)
        opened = replace(opened, client=_open_client(folder, manifest.collection))
        if not opened._call("has_collection"):
            problem = f"Milvus has no collection {manifest.collection}; build the index again"
            raise CheckpointError(f"{folder}: {problem}, or see if {_ADDRESS} names its server")
        opened._call("load_collection")
        [counted] = opened._call("query", filter="row >= 0", output_fields=["count(*)"])
        if _owns(folder, manifest.collection) and int(counted["count(*)"]) != opened.texts:
            with suppress(ConfigError), writing_index(folder):  # else somebody is adding
                if storage.read_manifest(folder) == manifest:
                    opened._mend()
        return opened

    def vectors_at(self, rows: Sequence[int]) -> np.ndarray:
        """The vectors ``(n, D)`` of rows; NaN of those that others removed meanwhile."""
        return np.asarray(self._vectors(tuple(rows)))

    def blocks(self, first: int = 0) -> Iterator[IndexRows]:
        """The rows that were not removed, some at a time."""
        for rows in _batched(np.flatnonzero(self.live)):
            vectors = self.vectors_at(rows.tolist())
            kept = ~np.isnan(vectors[:, 0])
            yield IndexRows(vectors[kept], self.table.take(rows[kept]))

    def changed(
        self, then: IndexManifest, gone: Sequence[int], new: Iterable[IndexRows] | None
    ) -> IndexManifest:
        """Append rows, write the manifest, and remove rows that are gone; all or nothing."""
        if not _owns(self.folder, self.manifest.collection):
            problem = f"{self.folder} is a copy, and may not change the vectors of another folder"
            raise ConfigError(f"{problem}; first: contrasent index optimize {self.folder}")
        self._call("delete", filter=f"row >= {len(self.live)}")  # of a change that failed
        then = super().changed(then, gone, new)
        with suppress(ContrasentError):  # whoever opens it again removes them
            self._call("delete", filter=f"row in {[*gone]}")
        return then

    def optimized(self, *_: Any, **__: Any) -> IndexManifest:
        """Let Milvus free room, and make the segments one; a copy gets its own collection."""
        was = self.manifest
        then = replace(was, writes=was.next_write, given=was.next_number)
        if not _owns(self.folder, was.collection):
            return self.build(self.folder, replace(then, removed=None), self.blocks(), self.folder)
        self._call("flush")
        return self._merged(then, 0)[0]

    def _merged(
        self, then: IndexManifest, first: int, new: Iterable[IndexRows] = ()
    ) -> tuple[IndexManifest, np.ndarray]:
        start, rows = sum(it.rows for it in then.segments[:first]), np.arange(len(self.live))
        rows = np.where(self.live, rows, self.live.argmax())[start:]  # the gone leave their numbers
        old = IndexRows(np.empty(0), self.table.take(rows))
        segment = storage.write_table(self.folder, then, chain([old], self._inserted(new)))
        added = np.ones(start + segment.rows - len(self.live), bool)
        given, segments = then.next_number + len(added), (*then.segments[:first], segment)
        return replace(then, segments=segments, given=given), np.append(self.live, added)

    def _inserted(self, blocks: Iterable[IndexRows]) -> Iterator[IndexRows]:
        numbers = count(len(self.live))
        for block in blocks:
            rows = [{"row": next(numbers), "vector": vector} for vector in block.vectors]
            for some in _batched(rows):
                self._call("insert", data=some)
            yield block

    def _nearest(
        self, queries: np.ndarray, count: int, live: np.ndarray
    ) -> list[list[tuple[int, float]]]:
        kept, enough = np.flatnonzero(live), count + _EXTRA
        near, is_small = list[list[tuple[int, float]]](), len(kept) <= _ROWS_AT_ONCE
        # Lite looks at a condition after its approximate search, which then misses few rows
        is_lossy = self.manifest.collection == LITE and self.manifest.kind == "milvus-hnsw"
        if is_small and is_lossy:
            known = self._vectors_of(kept)
            return [self._best(known, query, count) for query in queries]
        if is_small:
            wanted, asked = f"row in {kept.tolist()}", enough
        else:  # so many of all rows that enough of them are among those that are searched
            wanted, share = f"row < {len(live)}", (2 * self.texts - len(kept)) / len(kept)
            asked = max(enough, min(int(enough * share), _MOST_HITS))
        step = max(1, _FOUND_AT_ONCE // asked)
        for start in range(0, len(queries), step):
            block = queries[start : start + step]
            for query, hits in zip(block, self._vectors_near(block, asked, wanted), strict=True):
                candidates = {row: vector for row, vector in hits.items() if live[row]}
                if not is_small and len(candidates) < enough and is_lossy:
                    candidates = self._vectors_of(kept)
                elif not is_small and len(candidates) < enough:
                    among = f"row in {kept.tolist()}"
                    [candidates] = self._vectors_near(query[None], enough, among)
                near.append(self._best(candidates, query, count))
        return near

    def _best(self, candidates: Any, query: np.ndarray, count: int) -> list[tuple[int, float]]:
        rows, similarity = sorted(candidates), self.manifest.similarity
        vectors = np.array([*map(candidates.get, rows)], np.float32).reshape(-1, len(query))
        best = best_rows([vectors], query, np.arange(len(rows)), count, similarity)
        return [(rows[n], score) for n, score in best]

    def _vectors_of(self, rows: np.ndarray) -> dict[int, Any]:
        vectors = chain.from_iterable(self.vectors_at(some.tolist()) for some in _batched(rows))
        known = zip(rows.tolist(), vectors, strict=True)
        return {row: vector for row, vector in known if not np.isnan(vector[0])}

    def _vectors_near(self, queries: np.ndarray, count: int, wanted: str) -> list[dict[int, Any]]:
        """For each query vectors by the numbers of their rows."""
        options = {"limit": count, "output_fields": _FIELDS, "filter": wanted}
        options["search_params"] = {"params": {"ef": max(_LEAST_EF, count)}}
        candidates = self._call("search", data=queries, **options)
        return [{it["entity"]["row"]: it["entity"]["vector"] for it in hits} for hits in candidates]

    def _similarities(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        vectors, places = self.vectors_at(rows.tolist()), np.arange(len(rows))
        return row_similarities([vectors], self.manifest.similarity, query, places)

    @cached_property
    def _vectors(self) -> Any:
        @lru_cache(4)  # every hybrid query needs those of one sample of rows
        def vectors(rows: tuple[int, ...]) -> np.ndarray:
            how = {"filter": f"row in {[*rows]}", "output_fields": _FIELDS}
            known = {it["row"]: it["vector"] for it in self._call("query", **how)}
            gone = [np.nan] * self.manifest.encoder.width
            return np.array([known.get(row, gone) for row in rows], np.float32)

        return vectors

    def _mend(self) -> None:
        """Remove what the manifest has not, and the second of rows that a kill doubled."""
        gone = np.flatnonzero(~self.live).tolist()
        self._call("delete", filter=f"row >= {len(self.live)} or row in {gone}")
        for some in _batched(np.flatnonzero(self.live)):
            rows = self._call("query", filter=f"row in {some.tolist()}", output_fields=_FIELDS)
            if len(kept := {row["row"]: row for row in rows}) < len(rows):
                self._call("upsert", data=list(kept.values()))
            if len(kept) < len(some):
                raise CheckpointError(f"{self.folder}: Milvus lost vectors; build the index again")

    def _call(self, method: str, **how: Any) -> Any:
        return _ask(self.client, self.folder, method, self.manifest.collection, **how)


@contextmanager
def writing_index(folder: Path, patience: float = 0.1, *, anew: bool = False) -> Iterator[None]:
    """Hold the lock of writing to an index; collections that it then has no use of are dropped."""
    home = folder.resolve()
    with exclusive(folder, patience):
        with suppress(CheckpointError):  # there is no index yet
            old = storage.read_manifest(home).collection if anew else None
            if old not in (None, LITE) and _owns(home, old):
                beside(home, str(old)).touch()
        try:
            yield
        finally:
            for note in home.parent.glob(f"{escape(beside(home, 'contrasent_').name)}*"):
                with suppress(OSError, ContrasentError):  # else the next writer does it
                    name = note.suffix[1:]
                    if not home.exists() or storage.read_manifest(home).collection != name:
                        _ask(_open_client(folder, name), folder, "drop_collection", name)
                    note.unlink()


def _owns(folder: Path, name: str | None) -> bool:  # and is no copy of the folder that does
    return name == LITE or str(name).split("_")[1] == str(folder.stat().st_ino)


def close_milvus(folder: Path) -> None:
    """Close the Milvus of an index, if this process has one open: so that others can open it."""
    if lite := sys.modules.get("milvus_lite.server_manager"):
        lite.server_manager_instance.release_server(str(folder.resolve() / storage.MILVUS_FOLDER))


def _batched(values: Any) -> Iterator[Any]:
    yield from (values[n : n + _ROWS_AT_ONCE] for n in range(0, len(values), _ROWS_AT_ONCE))


def _ask(client: Any, folder: Path, method: str, name: str | None, **how: Any) -> Any:
    from grpc import RpcError
    from pymilvus.exceptions import MilvusException

    if name != LITE and method not in ("load_collection", "flush"):
        how["timeout"] = _ANSWERING
    try:
        return getattr(client, method)(name, **how)
    except (MilvusException, RpcError) as error:
        said = error.message if isinstance(error, MilvusException) else error.details()
        raise ContrasentError(f"{folder}: Milvus says: {said}") from error


def _open_client(folder: Path, name: str | None) -> Any:
    require_extra("an index in Milvus", "milvus", "pymilvus", "milvus_lite")
    from pymilvus import MilvusClient
    from pymilvus.exceptions import ConnectionConfigException, MilvusException

    for library in ("pymilvus", "milvus_lite"):  # they log a traceback of what they raise
        logging.getLogger(library).setLevel(logging.CRITICAL + 1)
    if name == LITE:
        try:
            return MilvusClient(str(folder.resolve() / storage.MILVUS_FOLDER))
        except ConnectionConfigException as error:
            raise BusyError(
                f"{folder} cannot be opened: Milvus Lite lets one process at a time use it; end "
                "the other process, or serve the index and ask the server"
            ) from error
    problem = "names no address such as http://localhost:19530"
    if "://" in (address := os.environ.get(_ADDRESS, "")):
        try:
            return MilvusClient(address, token=os.environ.get(_TOKEN, ""), timeout=_CONNECTING)
        except (MilvusException, ValueError):  # which may show the password of an address
            problem = f"leads to no server, or to one that refuses {_TOKEN}"
    raise ConfigError(f"{folder} has its vectors in a Milvus server, but {_ADDRESS} {problem}")
