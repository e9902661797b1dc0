"""The rows of an index that lie in Milvus Lite.

Its folder holds a manifest as every index does, and beside it Milvus's own folder, with one
collection: the id, the text, the vector, and the number of the row in the order of adding. The
manifest counts the texts, in a segment named milvus. It is written after the rows: those with its
next number and above are of a change that was cut off. The rows that it replaces lie in a file
until then, with the number of the write, and come back from there.
"""

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from contrasent.errors import ConfigError, ContrasentError, DataError, pick, require_extra
from contrasent.files import BusyError, exclusive, inside, write_text
from contrasent.options import SearchOptions
from contrasent.search.metadata import IndexRows, metadata_table, read_filter, rows_with
from contrasent.search.nearest import KINDS, best_rows
from contrasent.search.storage import MILVUS_FOLDER, IndexManifest, Segment, write_manifest
from contrasent.search.words import Hit, Ranked, hit_of, least_score

_NAME = "texts"
_LONGEST = 65_535  # characters of a VARCHAR
_FIELDS = ["id", "text", "row", "vector", "metadata"]
_REPLACED = "replaced.json"
_ROWS_AT_ONCE = 2_048
_EXTRA = 8  # hits by float32 scores, among which the best by float64 are
_FOUND_AT_ONCE = 4_096  # vectors in one answer
_LEAST_EF = 128


@dataclass(frozen=True, slots=True)
class MilvusRows:
    """The rows of an index in Milvus; it covers what is added at once."""

    folder: Path
    manifest: IndexManifest
    client: Any

    @classmethod
    def build(
        cls, folder: Path, manifest: IndexManifest, rows: Iterable[IndexRows]
    ) -> IndexManifest:
        """Make the collection of a new index, and close it; the manifest with its rows."""
        from pymilvus import DataType

        opened = cls(folder, manifest, _open_client(folder))
        try:
            schema, params = opened.client.create_schema(), opened.client.prepare_index_params()
            schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=_LONGEST)
            schema.add_field("text", DataType.VARCHAR, max_length=_LONGEST)
            schema.add_field("row", DataType.INT64)
            schema.add_field("metadata", DataType.JSON, nullable=True)
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=manifest.encoder.width)
            metric = "L2" if manifest.similarity == "euclidean" else "IP"
            params.add_index("vector", metric_type=metric, **(KINDS[manifest.kind].milvus or {}))
            opened._call("create_collection", schema=schema, index_params=params)
            manifest = opened.changed(manifest, (), rows)
            opened._call("flush")
        finally:
            close_milvus(folder)
        return manifest

    @classmethod
    def open(cls, folder: Path, manifest: IndexManifest, last: object = None) -> "MilvusRows":
        """Open it, unless ``last`` is it, and mend what a killed process left."""
        if isinstance(last, MilvusRows):
            return replace(last, manifest=manifest)
        opened = cls(folder, manifest, _open_client(folder))
        opened._call("load_collection")
        with suppress(ConfigError), exclusive(folder):  # else a thread of this process is adding
            opened._undo()
            if opened._count("row >= 0") != manifest.rows:  # a kill while it flushed doubles rows
                count = 0
                for rows in opened._parts():
                    kept = {row["row"]: row for row in rows}
                    count += len(kept)
                    if len(kept) < len(rows):
                        opened._call("upsert", data=list(kept.values()))
                counted = replace(manifest, segments=(Segment("milvus", count),))
                opened = replace(opened, manifest=counted)
                write_manifest(folder, opened.manifest)
        return opened

    @property
    def texts(self) -> int:
        """How many there are."""
        return self.manifest.rows

    @property
    def kind(self) -> str:
        """How Milvus searches them."""
        return self.manifest.kind

    def search(self, queries: Any, how: SearchOptions, _: object) -> list[list[Hit]]:
        """The hits of ``(Q, D)`` queries, best first; their scores are computed in float64."""
        least, top_k, count = least_score(how), how.top_k, how.top_k + _EXTRA
        params = {"params": {"ef": max(_LEAST_EF, count)}}
        way = {"limit": count, "output_fields": _FIELDS[1:], "search_params": params}
        parts = [] if how.only is None else [f"id like {json.dumps(how.only, ensure_ascii=False)}"]
        if how.filter is not None:
            condition, names = read_filter(how.filter, in_milvus=True)
            for name in names:
                pick("column", name, ["id", "text", *self.manifest.columns])
            parts.append(str(condition))
        way["filter"] = " and ".join(parts)
        hits: list[list[Hit]] = []
        step = max(1, _FOUND_AT_ONCE // count)
        for start in range(0, len(queries), step):
            block = queries[start : start + step]
            for query, matches in zip(block, self._call("search", data=block, **way), strict=True):
                entities = ({"id": it["id"], **it["entity"]} for it in matches)
                ordered = sorted(entities, key=lambda it: int(it["row"]))
                stored = [it["vector"] for it in ordered]
                vectors = np.array(stored, np.float32).reshape(-1, len(query))
                rows = np.arange(len(ordered))
                best = best_rows([vectors], query, rows, top_k, self.manifest.similarity)
                of_query = (hit_of(ordered[n], Ranked(n, score)) for n, score in best)
                hits.append([hit for hit in of_query if hit.score >= least])
        return hits

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """The numbers of the rows that have any of ``ids``."""
        rows = dict[str, int]()
        for some in _batched(ids):
            wanted = f"id in {json.dumps(some, ensure_ascii=False)}"
            known = self._call("query", filter=wanted, output_fields=["id", "row"])
            rows |= {row["id"]: row["row"] for row in known}
        return rows

    def vectors_at(self, rows: Sequence[int]) -> np.ndarray:
        """The vectors ``(n, D)`` of rows, which are sorted."""
        return np.array([row["vector"] for row in self._rows(f"row in {list(rows)}")], np.float32)

    def blocks(self) -> Iterator[IndexRows]:
        """All rows in order, some at a time."""
        for rows in self._parts():
            ids, texts, vectors = ([row[it] for row in rows] for it in ("id", "text", "vector"))
            cells = metadata_table(row["metadata"] or {} for row in rows)
            yield rows_with(np.array(vectors, np.float32), ids, texts, cells)

    def changed(
        self, then: IndexManifest, gone: Sequence[int], new: Iterable[IndexRows] | None
    ) -> IndexManifest:
        """Append rows, remove those that are gone, and write the manifest; all or nothing."""
        for name, kind in self.manifest.columns.items():  # what is stored keeps its type
            if then.columns[name] not in (kind, "double"):
                raise DataError(f"metadata {name!r} is {kind} in {self.folder}; build it anew")
        number = first = then.next_number
        blocks = list(new or ()) if gone else new or ()  # refused before one takes another's place
        try:
            if gone and new is not None:  # a removal alone is one call, which is whole by itself
                left = [row for some in _batched(gone) for row in self._rows(f"row in {some}")]
                write_text(self.folder / _REPLACED, json.dumps([then.writes, left], default=float))
            for block in blocks:
                numbers = range(number, number := number + len(block.vectors))
                columns = block.ids, block.texts, numbers, block.vectors, block.metadata
                for some in _batched([*zip(*columns, strict=True)]):
                    rows = [dict(zip(_FIELDS, cell, strict=True)) for cell in some]
                    self._call("upsert" if gone else "insert", data=rows)
            if gone:
                self._call("delete", filter=f"row in {list(gone)}")
            count = then.rows - len(gone) + number - first
            then = replace(then, segments=(Segment("milvus", count),), given=number)
            write_manifest(self.folder, then)
        except BaseException:
            try:
                self._undo()
            except BaseException:  # whoever opens it again undoes it
                close_milvus(self.folder)
                raise
            raise
        self.folder.joinpath(_REPLACED).unlink(missing_ok=True)
        return then

    def optimized(self, *_: object) -> IndexManifest:
        """Let Milvus free room."""
        self._call("flush")
        return replace(self.manifest, writes=self.manifest.next_write)

    def _undo(self) -> None:
        if self._count(new := f"row >= {self.manifest.next_number}"):
            self._call("delete", filter=new)
        path = inside(self.folder, _REPLACED)
        if path.exists():
            write, rows = json.loads(path.read_text(encoding="utf-8"))
            for some in _batched(rows if write > self.manifest.writes else ()):
                self._call("upsert", data=some)
            path.unlink()

    def _count(self, rows: str) -> int:
        [counted] = self._call("query", filter=rows, output_fields=["count(*)"])
        return int(counted["count(*)"])

    def _rows(self, wanted: str) -> list[dict[str, Any]]:
        stored = self._call("query", filter=wanted, output_fields=_FIELDS)
        return sorted(stored, key=lambda row: int(row["row"]))

    def _parts(self) -> Iterator[list[dict[str, Any]]]:
        for first in range(0, self.manifest.next_number, _ROWS_AT_ONCE):
            if rows := self._rows(f"row >= {first} and row < {first + _ROWS_AT_ONCE}"):
                yield rows

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


def _batched(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
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
