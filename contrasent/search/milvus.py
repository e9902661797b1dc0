"""The rows of an index that lie in Milvus Lite.

Its folder holds a manifest as every index does, and beside it Milvus's own folder, with one
collection: the id, the text, the vector, and the number of the row in the order of adding. The
manifest counts the texts, in a segment named milvus. It is written after the rows: those with its
next number and above are of an addition that was cut off.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from contrasent.errors import ConfigError, ContrasentError, pick, require_extra
from contrasent.files import BusyError, exclusive
from contrasent.search.nearest import KINDS, MILVUS, best_rows
from contrasent.search.storage import (
    MILVUS_FOLDER,
    Hit,
    IndexManifest,
    IndexRows,
    Segment,
    close_milvus,
    write_manifest,
)

_NAME = "texts"
_LONGEST = 65_535  # characters of a VARCHAR
_FIELDS = ["id", "text", "row", "vector"]
_ROWS_AT_ONCE = 2_048
_EXTRA = 8  # hits by float32 scores, among which the best by float64 are
_FOUND_AT_ONCE = 4_096  # vectors in one answer
_LEAST_EF = 128

Row = dict[str, Any]
"""A row as Milvus has it."""


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

        made = cls(folder, manifest, _open_client(folder))
        try:
            schema = made.client.create_schema(auto_id=False)
            schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=_LONGEST)
            schema.add_field("text", DataType.VARCHAR, max_length=_LONGEST)
            schema.add_field("row", DataType.INT64)
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=manifest.encoder.width)
            params = made._index_params(manifest.kind)
            made._call("create_collection", schema=schema, index_params=params)
            count = made._insert(rows, 0)
            made._call("flush")
        finally:
            close_milvus(folder)
        given = max(count, manifest.given or 0)
        return replace(manifest, segments=(Segment("milvus", count),), given=given)

    @classmethod
    def open(cls, folder: Path, manifest: IndexManifest, last: object = None) -> MilvusRows:
        """Open it, unless ``last`` is it, and mend what a killed process left."""
        if isinstance(last, MilvusRows):
            return replace(last, manifest=manifest)
        opened = cls(folder, manifest, _open_client(folder))
        if not opened._call("list_indexes"):  # killed between dropping and creating it
            opened._call("create_index", index_params=opened._index_params(manifest.kind))
        opened._call("load_collection")
        with suppress(ConfigError), exclusive(folder):  # else a thread of this process is adding
            return opened._recovered()
        return opened

    @property
    def texts(self) -> int:
        """How many there are."""
        return self.manifest.rows

    @property
    def kind(self) -> str:
        """How Milvus searches them."""
        return self.manifest.kind

    def search(
        self, queries: np.ndarray, top_k: int, threshold: float | None, only: str | None
    ) -> list[list[Hit]]:
        """The hits of ``(Q, D)`` queries, best first; their scores are computed in float64."""
        count, least = top_k + _EXTRA, -np.inf if threshold is None else threshold
        params = {"params": {"ef": max(_LEAST_EF, count)}}
        how = {"limit": count, "output_fields": _FIELDS[1:], "search_params": params}
        if only is not None:
            how["filter"] = f"id like {_quoted(only)}"
        hits: list[list[Hit]] = []
        step = max(1, _FOUND_AT_ONCE // count)
        for start in range(0, len(queries), step):
            block = queries[start : start + step]
            for query, matches in zip(block, self._call("search", data=block, **how), strict=True):
                found = _in_order({"id": it["id"], **it["entity"]} for it in matches)
                vectors, rows = _vectors(found), [np.arange(len(found))]
                best = best_rows([vectors], query, rows, top_k, self.manifest.similarity)
                named = [Hit(found[n]["id"], found[n]["text"], score) for n, score in best]
                hits.append([hit for hit in named if hit.score >= least])
        return hits

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """The numbers of the rows that have any of ``ids``."""
        return {row["id"]: row["row"] for row in self._rows_with("id", ids, ["id", "row"])}

    def blocks(self) -> Iterator[IndexRows]:
        """All rows in order, some at a time."""
        for rows in self._parts():
            ids, texts = [row["id"] for row in rows], [row["text"] for row in rows]
            yield IndexRows(_vectors(rows), ids, texts)

    def changed(
        self, then: IndexManifest, gone: Sequence[int], new: Iterator[IndexRows] | None
    ) -> IndexManifest:
        """Remove and append rows; those that are gone come back if a new one is refused."""
        rows = None if new is None else list(new) if gone else new  # refused before any leaves
        left, added = self._rows_with("row", gone, _FIELDS), 0
        if gone:
            self._call("delete", filter=f"row in {list(gone)}")
        try:
            if rows is not None:
                added = self._insert(rows, then.next_number)
        except BaseException:
            self._put(left)
            raise
        count, given = then.rows - len(gone) + added, then.next_number + added
        return replace(then, segments=(Segment("milvus", count),), given=given)

    def optimized(self, kind: str | None, _: object) -> IndexManifest:
        """Let Milvus search exactly, or by HNSW, and free room."""
        chosen = self.kind if kind is None else pick("kind of index in Milvus", kind, MILVUS)
        for step in ("flush", "release_collection"):
            self._call(step)
        self._call("drop_index", index_name="vector")
        self._call("create_index", index_params=self._index_params(chosen))
        self._call("load_collection")
        return replace(self.manifest, kind=chosen, writes=self.manifest.next_write)

    def _recovered(self) -> MilvusRows:
        """Itself, without rows of an addition cut off; a kill while it flushed may double rows."""
        self._drop_from(self.manifest.next_number)
        if self._count("row >= 0") == self.manifest.rows:
            return self
        count = 0
        for rows in self._parts():
            kept = {row["row"]: row for row in rows}
            count += len(kept)
            if len(kept) < len(rows):
                self._call("upsert", data=list(kept.values()))
        manifest = replace(self.manifest, segments=(Segment("milvus", count),))
        write_manifest(self.folder, manifest)
        return replace(self, manifest=manifest)

    def _insert(self, rows: Iterable[IndexRows], first: int) -> int:
        """Insert rows, numbered from ``first``, all or none; how many they were."""
        number = first
        try:
            for block in rows:
                numbers = range(number, number + len(block.ids))
                cells = zip(block.ids, block.texts, numbers, block.vectors, strict=True)
                self._put([dict(zip(_FIELDS, cell, strict=True)) for cell in cells])
                number += len(numbers)
        except BaseException:
            self._drop_from(first)
            raise
        return number - first

    def _put(self, rows: list[Row]) -> None:
        for some in _batched(rows):
            self._call("insert", data=some)

    def _drop_from(self, number: int) -> None:
        if self._count(rows := f"row >= {number}"):
            self._call("delete", filter=rows)

    def _count(self, rows: str) -> int:
        [counted] = self._call("query", filter=rows, output_fields=["count(*)"])
        return int(counted["count(*)"])

    def _parts(self) -> Iterator[list[Row]]:
        """All rows in order, some at a time."""
        for first in range(0, self.manifest.next_number, _ROWS_AT_ONCE):
            window = f"row >= {first} and row < {first + _ROWS_AT_ONCE}"
            if rows := self._call("query", filter=window, output_fields=_FIELDS):
                yield _in_order(rows)

    def _rows_with(self, field: str, values: Sequence[Any], fields: list[str]) -> list[Row]:
        """The rows with any of the values."""
        some = (f"{field} in {_quoted(list(part))}" for part in _batched(values))
        return [row for it in some for row in self._call("query", filter=it, output_fields=fields)]

    def _index_params(self, kind: str) -> Any:
        params = self.client.prepare_index_params()
        metric = "L2" if self.manifest.similarity == "euclidean" else "IP"
        params.add_index("vector", metric_type=metric, **(KINDS[kind].milvus or {}))
        return params

    def _call(self, method: str, **how: Any) -> Any:
        """Call Milvus for the collection; what it raises becomes an error with the folder in it."""
        from pymilvus.exceptions import MilvusException

        try:
            return getattr(self.client, method)(_NAME, **how)
        except MilvusException as error:
            raise ContrasentError(f"{self.folder}: Milvus says: {error.message}") from error


def _batched(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    yield from (values[n : n + _ROWS_AT_ONCE] for n in range(0, len(values), _ROWS_AT_ONCE))


def _in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: int(row["row"]))


def _vectors(rows: Sequence[Row]) -> np.ndarray:
    return np.array([row["vector"] for row in rows], np.float32)


def _quoted(words: object) -> str:
    """Text or a list in an expression of Milvus."""
    return json.dumps(words, ensure_ascii=False)


def _open_client(folder: Path) -> Any:
    """Open the Milvus of an index; BusyError if another process has it open."""
    require_extra("an index in Milvus", "milvus", "pymilvus", "milvus_lite")
    from pymilvus import MilvusClient
    from pymilvus.exceptions import ConnectionConfigException

    for library in ("pymilvus", "milvus_lite"):  # they log a traceback of what they raise
        logging.getLogger(library).setLevel(logging.CRITICAL + 1)
    try:
        return MilvusClient(str(folder.resolve() / MILVUS_FOLDER))
    except ConnectionConfigException as error:
        raise BusyError(
            f"{folder} cannot be opened: Milvus Lite lets one process at a time use it, or it is "
            "damaged; end the other process, or serve the index and ask the server; a damaged one "
            "remove"
        ) from error
