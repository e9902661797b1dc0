"""The vectors of an index that lie in Milvus.

Its folder holds the manifest, texts and tables of words as that of every index, and Milvus Lite's
own folder. Its collection has the vector of each row, its number, which never changes, and its id,
text and metadata. The manifest is written after new rows, and before those that are gone leave:
what Milvus has beside the rows of the manifest is of a change that was cut off.
"""

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from contrasent.errors import CheckpointError, ConfigError, ContrasentError, require_extra
from contrasent.files import BusyError, exclusive
from contrasent.search.metadata import IndexRows
from contrasent.search.nearest import KINDS, best_rows, row_similarities
from contrasent.search.storage import (
    MILVUS_FOLDER,
    IndexManifest,
    Snapshot,
    read_manifest,
    write_table,
)

_NAME = "texts"
_LONGEST = 65_535  # characters of a VARCHAR
_FIELDS = ["id", "text", "row", "vector", "metadata"]
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
        cls, folder: Path, manifest: IndexManifest, rows: Iterable[IndexRows]
    ) -> IndexManifest:
        """Make the collection of a new index, and close it; the manifest with its rows."""
        from pymilvus import DataType

        none, client = np.empty(0, bool), _open_client(folder)
        opened = cls(folder, manifest, [], None, none, None, [], client=client)
        try:
            schema, params = client.create_schema(), client.prepare_index_params()
            schema.add_field("row", DataType.INT64, is_primary=True)
            schema.add_field("id", DataType.VARCHAR, max_length=_LONGEST)
            schema.add_field("text", DataType.VARCHAR, max_length=_LONGEST)
            schema.add_field("metadata", DataType.JSON)
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=manifest.encoder.width)
            metric = "L2" if manifest.similarity == "euclidean" else "IP"
            params.add_index("vector", metric_type=metric, **(KINDS[manifest.kind].milvus or {}))
            how = {"index_params": params, "consistency_level": "Strong"}
            opened._call("create_collection", schema=schema, **how)
            segment = write_table(folder, manifest, opened._inserted(rows))
            opened._call("flush")
        finally:
            close_milvus(folder)
        return replace(manifest, segments=(segment,))

    @classmethod
    def open(cls, folder: Path, manifest: IndexManifest, last: object = None) -> "MilvusRows":
        """Open it, by the client of ``last`` if it is it, or mend what a killed process left."""
        if manifest.segments[0].name == "milvus":
            raise CheckpointError(f"{folder} is of an earlier checkout; build the index again")
        opened = super().open(folder, manifest)
        if isinstance(last, MilvusRows):
            opened = replace(opened, client=last.client)
        else:
            opened = replace(opened, client=_open_client(folder))
            opened._call("load_collection")
            with suppress(ConfigError), exclusive(folder):  # else somebody is adding
                if read_manifest(folder) == manifest:
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
        self._call("delete", filter=f"row >= {len(self.live)}")  # of a change that failed
        then = super().changed(then, gone, new)
        with suppress(ContrasentError):  # whoever opens it again removes them
            self._delete(gone)
        return then

    def optimized(self, *_: Any, **__: Any) -> IndexManifest:
        """Let Milvus free room, and make the segments one."""
        self._call("flush")
        return self._merged(replace(self.manifest, writes=self.manifest.next_write), 0)[0]

    def _merged(
        self, then: IndexManifest, first: int, new: Iterable[IndexRows] = ()
    ) -> tuple[IndexManifest, np.ndarray]:
        start, rows = sum(it.rows for it in then.segments[:first]), np.arange(len(self.live))
        rows = np.where(self.live, rows, self.live.argmax())[start:]  # the gone leave their numbers
        old = IndexRows(np.empty(0), self.table.take(rows))
        segment = write_table(self.folder, then, chain([old], self._inserted(new)))
        added = np.ones(start + segment.rows - len(self.live), bool)
        given, segments = then.next_number + len(added), (*then.segments[:first], segment)
        return replace(then, segments=segments, given=given), np.append(self.live, added)

    def _inserted(self, blocks: Iterable[IndexRows]) -> Iterator[IndexRows]:
        number = len(self.live)
        for block in blocks:
            numbers = range(number, number := number + len(block.vectors))
            metadata = [values or {} for values in block.metadata]
            columns = block.ids, block.texts, numbers, block.vectors, metadata
            for some in _batched([*zip(*columns, strict=True)]):
                rows = [dict(zip(_FIELDS, cell, strict=True)) for cell in some]
                self._call("insert", data=rows)
            yield block

    def _nearest(
        self, queries: np.ndarray, count: int, live: np.ndarray
    ) -> list[list[tuple[int, float]]]:
        kept, enough = np.flatnonzero(live), count + _EXTRA
        near = list[list[tuple[int, float]]]()
        among, asked = f"row in {kept.tolist()}", enough
        if few := len(kept) <= _ROWS_AT_ONCE:
            wanted = among
        else:  # so many of all rows that enough of them are among those that are searched
            wanted, share = f"row < {len(live)}", (2 * self.texts - len(kept)) / len(kept)
            asked = max(enough, min(int(enough * share), _MOST_HITS))
        step = max(1, _FOUND_AT_ONCE // asked)
        for start in range(0, len(queries), step):
            block = queries[start : start + step]
            for query, hits in zip(block, self._found(block, asked, wanted), strict=True):
                found = {row: vector for row, vector in hits.items() if live[row]}
                if not few and len(found) < enough:
                    [found] = self._found(query[None], enough, among)
                rows, similarity = np.array(sorted(found), int), self.manifest.similarity
                vectors = np.array([found[row] for row in rows], np.float32)
                vectors, places = vectors.reshape(-1, len(query)), np.arange(len(rows))
                best = best_rows([vectors], query, places, count, similarity)
                near.append([(int(rows[n]), score) for n, score in best])
        return near

    def _found(self, queries: np.ndarray, count: int, wanted: str) -> list[dict[int, Any]]:
        """For each query vectors by the numbers of their rows."""
        way = {"limit": count, "output_fields": ["row", "vector"], "filter": wanted}
        way["search_params"] = {"params": {"ef": max(_LEAST_EF, count)}}
        found = self._call("search", data=queries, **way)
        entities = ([hit["entity"] for hit in hits] for hits in found)
        return [{it["row"]: it["vector"] for it in hits} for hits in entities]

    def _similarities(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        vectors, places = self.vectors_at(rows.tolist()), np.arange(len(rows))
        return row_similarities([vectors], self.manifest.similarity, query, places)

    @cached_property
    def _vectors(self) -> Any:
        @lru_cache(4)  # every hybrid query needs those of one sample of rows
        def vectors(rows: tuple[int, ...]) -> np.ndarray:
            how = {"filter": f"row in {[*rows]}", "output_fields": ["row", "vector"]}
            known = {it["row"]: it["vector"] for it in self._call("query", **how)}
            gone = [np.nan] * self.manifest.encoder.width
            return np.array([known.get(row, gone) for row in rows], np.float32)

        return vectors

    def _mend(self) -> None:
        """Remove what the manifest has not, and the second of rows that a kill doubled."""
        [counted] = self._call("query", filter="row >= 0", output_fields=["count(*)"])
        if int(counted["count(*)"]) == self.texts:
            return
        self._call("delete", filter=f"row >= {len(self.live)}")
        self._delete(np.flatnonzero(~self.live).tolist())
        for some in _batched(np.flatnonzero(self.live)):
            rows = self._call("query", filter=f"row in {some.tolist()}", output_fields=_FIELDS)
            if len(kept := {row["row"]: row for row in rows}) < len(rows):
                self._call("upsert", data=list(kept.values()))

    def _delete(self, rows: Sequence[int]) -> None:
        for some in _batched(rows):
            self._call("delete", filter=f"row in {[*some]}")

    def _call(self, method: str, **how: Any) -> Any:
        from pymilvus.exceptions import MilvusException

        try:
            return getattr(self.client, method)(_NAME, **how)
        except MilvusException as error:
            raise ContrasentError(f"{self.folder}: Milvus says: {error.message}") from error


def close_milvus(folder: Path) -> None:
    """Close the Milvus of an index, if this process has one open: so that others can open it."""
    if lite := sys.modules.get("milvus_lite.server_manager"):
        lite.server_manager_instance.release_server(str(folder.resolve() / MILVUS_FOLDER))


def _batched(values: Any) -> Iterator[Any]:
    yield from (values[n : n + _ROWS_AT_ONCE] for n in range(0, len(values), _ROWS_AT_ONCE))


def _open_client(folder: Path) -> Any:
    require_extra("an index in Milvus", "milvus", "pymilvus", "milvus_lite")
    from pymilvus import MilvusClient
    from pymilvus.exceptions import ConnectionConfigException

    for library in ("pymilvus", "milvus_lite"):  # they log a traceback of what they raise
        logging.getLogger(library).setLevel(logging.CRITICAL + 1)
    try:
        return MilvusClient(str(folder.resolve() / MILVUS_FOLDER))
    except ConnectionConfigException as error:
        raise BusyError(
            f"{folder} cannot be opened: Milvus Lite lets one process at a time use it; end the "
            "other process, or serve the index and ask the server"
        ) from error
