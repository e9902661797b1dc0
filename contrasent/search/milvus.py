"""An index whose texts lie in Milvus Lite, with the methods of any other.

Its folder holds a manifest as every index does, and beside it Milvus's own folder, with one
collection: the id, the text, the vector, and the number of the row in the order of adding.
The manifest counts the texts, in a segment named milvus. It is written after the rows: those with
its next number and above are of an addition that was cut off.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from contrasent.errors import (
    ConfigError,
    ContrasentError,
    DataError,
    MissingExtraError,
    install_command,
    pick,
)
from contrasent.files import BusyError, exclusive
from contrasent.search.index import Index
from contrasent.search.nearest import MILVUS, best_rows
from contrasent.search.snapshot import Hit, OpenRows
from contrasent.search.storage import (
    MILVUS_FOLDER,
    IndexManifest,
    IndexRows,
    Segment,
    close_milvus,
    read_manifest,
    write_manifest,
)

_NAME = "texts"
_LONGEST = 65_535  # characters of a VARCHAR
_FIELDS = ["id", "text", "row", "vector"]
_ROWS_AT_ONCE = 2_048
_MOST_HITS = 16_384 - 8
_EXTRA = 8  # hits by float32 scores, among which the best by float64 are
_FOUND_AT_ONCE = 4_096  # vectors in one answer
_HNSW = {"M": 32, "efConstruction": 100}
_LEAST_EF = 128


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn what Milvus raises into an error with the folder in it."""
    from pymilvus.exceptions import MilvusException

    try:
        yield
    except MilvusException as error:
        raise ContrasentError(f"{folder}: Milvus says: {error.message}") from error


@dataclass(frozen=True, slots=True)
class Collection:
    """The rows of an index in Milvus."""

    folder: Path
    manifest: IndexManifest
    client: Any

    @property
    def texts(self) -> int:
        """How many there are."""
        return self.manifest.rows

    def _count(self, rows: str) -> int:
        with _explained(self.folder):
            [counted] = self.client.query(_NAME, filter=rows, output_fields=["count(*)"])
        return int(counted["count(*)"])

    def search(
        self, queries: np.ndarray, top_k: int, threshold: float | None, only: str | None
    ) -> list[list[Hit]]:
        """The hits of ``(Q, D)`` queries, best first; their scores are computed in float64."""
        if top_k > _MOST_HITS:
            raise ConfigError(f"Milvus finds at most {_MOST_HITS} texts, not {top_k}")
        count = top_k + _EXTRA
        how: dict[str, Any] = {
            "limit": count,
            "output_fields": ["row", "text", "vector"],
            "search_params": {"params": {"ef": max(_LEAST_EF, count)}},
        }
        if only is not None:
            how["filter"] = f"id like {_quoted(only)}"
        hits: list[list[Hit]] = []
        step = max(1, _FOUND_AT_ONCE // count)
        for start in range(0, len(queries), step):
            block = queries[start : start + step]
            with _explained(self.folder):
                matches = self.client.search(_NAME, block, **how)
            hits += [
                _best(*each, top_k, threshold, self.manifest.similarity)
                for each in zip(block, matches, strict=True)
            ]
        return hits

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """The numbers of the rows that have any of ``ids``."""
        rows = dict[str, int]()
        for start in range(0, len(ids), _ROWS_AT_ONCE):
            some = f"id in {_quoted(list(ids[start : start + _ROWS_AT_ONCE]))}"
            with _explained(self.folder):
                matches = self.client.query(_NAME, filter=some, output_fields=["id", "row"])
            rows |= {each["id"]: each["row"] for each in matches}
        return rows

    def blocks(self) -> Iterator[IndexRows]:
        """All rows in order, some at a time."""
        for rows in self._parts():
            if rows:
                vectors = np.array([each["vector"] for each in rows], np.float32)
                ids, texts = ([each[field] for each in rows] for field in ("id", "text"))
                yield IndexRows(vectors, ids, texts)

    def _parts(self) -> Iterator[list[dict[str, Any]]]:
        """The rows as Milvus has them, in order, some at a time."""
        for first in range(0, self.manifest.next_number, _ROWS_AT_ONCE):
            window = f"row >= {first} and row < {first + _ROWS_AT_ONCE}"
            with _explained(self.folder):
                matches = self.client.query(_NAME, filter=window, output_fields=_FIELDS)
            yield sorted(matches, key=lambda each: int(each["row"]))

    def recover(self) -> Collection:
        """Mend what a process left that was killed; what is there then.

        Rows of an addition that was cut off go. Milvus Lite may hold rows twice if it was killed
        while it flushed; writing them again leaves one of each.
        """
        self.drop_from(self.manifest.next_number)
        if self._count("row >= 0") == self.manifest.rows:
            return self
        count = 0
        for rows in self._parts():
            kept = {row["row"]: row for row in rows}
            count += len(kept)
            if len(kept) < len(rows):
                with _explained(self.folder):
                    self.client.upsert(_NAME, list(kept.values()))
        manifest = replace(self.manifest, segments=(Segment("milvus", count),))
        write_manifest(self.folder, manifest)
        return replace(self, manifest=manifest)

    def insert(self, rows: Iterable[IndexRows], first: int) -> int:
        """Insert rows, numbered from ``first``, all or none; how many they were."""
        number = first
        try:
            for block in rows:
                cells = zip(block.ids, block.texts, block.vectors, strict=True)
                named = [
                    {"id": name, "text": text, "row": number + i, "vector": vector}
                    for i, (name, text, vector) in enumerate(cells)
                ]
                self.put(named)
                number += len(named)
        except BaseException:
            self.drop_from(first)
            raise
        if number == first:
            raise DataError("there is no text to index")
        return number - first

    def delete(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Delete the rows with these numbers, and give them back as Milvus has them."""
        left = list[dict[str, Any]]()
        for start in range(0, len(numbers), _ROWS_AT_ONCE):
            some = f"row in {list(numbers[start : start + _ROWS_AT_ONCE])}"
            with _explained(self.folder):
                left += self.client.query(_NAME, filter=some, output_fields=_FIELDS)
        if numbers:
            with _explained(self.folder):
                self.client.delete(_NAME, filter=f"row in {list(numbers)}")
        return left

    def put(self, rows: list[dict[str, Any]]) -> None:
        """Insert rows as Milvus has them."""
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            with _explained(self.folder):
                self.client.insert(_NAME, rows[start : start + _ROWS_AT_ONCE])

    def drop_from(self, number: int) -> None:
        """Delete the rows from ``number`` on, if there are any."""
        if self._count(rows := f"row >= {number}"):
            with _explained(self.folder):
                self.client.delete(_NAME, filter=rows)

    def index_params(self, kind: str) -> Any:
        """What Milvus searches by."""
        params = self.client.prepare_index_params()
        exact = {"index_type": "FLAT"}
        how = {"index_type": "HNSW", "params": _HNSW} if kind == MILVUS[1] else exact
        metric = "L2" if self.manifest.similarity == "euclidean" else "IP"
        params.add_index("vector", metric_type=metric, **how)
        return params

    def index_by(self, kind: str) -> None:
        """Let Milvus search exactly, or by HNSW."""
        with _explained(self.folder):
            self.client.flush(_NAME)
            self.client.release_collection(_NAME)
            self.client.drop_index(_NAME, "vector")
            self.client.create_index(_NAME, self.index_params(kind))
            self.client.load_collection(_NAME)


def _quoted(words: str | list[str]) -> str:
    """Text in an expression of Milvus."""
    return json.dumps(words, ensure_ascii=False)


def _best(
    query: np.ndarray, matches: Any, top_k: int, threshold: float | None, similarity: str
) -> list[Hit]:
    """The ``top_k`` hits by scores in float64, then in the order of the rows."""
    if not matches:
        return []
    some = sorted(matches, key=lambda each: int(each["entity"]["row"]))
    vectors = np.array([each["entity"]["vector"] for each in some], np.float32)
    least = -np.inf if threshold is None else threshold
    return [
        Hit(id=some[row]["id"], score=score, text=some[row]["entity"]["text"])
        for row, score in best_rows([vectors], query, [np.arange(len(some))], top_k, similarity)
        if score >= least
    ]


def open_client(folder: Path) -> Any:
    """Open the Milvus of an index; BusyError if another process has it open."""
    try:
        from pymilvus import MilvusClient
        from pymilvus.exceptions import ConnectionConfigException
    except ImportError as error:
        raise MissingExtraError(
            f"an index in Milvus needs Milvus Lite: {install_command('milvus')}"
        ) from error
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


def build_collection(
    folder: Path, manifest: IndexManifest, rows: Iterable[IndexRows]
) -> IndexManifest:
    """Make the collection of a new index, and close it; the manifest with its rows."""
    from pymilvus import DataType

    client, width = open_client(folder), manifest.encoder.width
    try:
        schema = client.create_schema(auto_id=False)
        schema.add_field("id", DataType.VARCHAR, is_primary=True, max_length=_LONGEST)
        schema.add_field("text", DataType.VARCHAR, max_length=_LONGEST)
        schema.add_field("row", DataType.INT64)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=width)
        collection = Collection(folder, manifest, client)
        params = collection.index_params(manifest.kind)
        client.create_collection(_NAME, schema=schema, index_params=params)
        count = collection.insert(rows, 0)
        with _explained(folder):
            client.flush(_NAME)
    finally:
        close_milvus(folder)
    given = max(count, manifest.given or 0)
    return replace(manifest, segments=(Segment("milvus", count),), given=given)


class MilvusIndex(Index):
    """An :class:`Index` in Milvus Lite, which one process at a time can open."""

    @classmethod
    def _opened(cls, folder: Path, last: OpenRows | None) -> OpenRows:
        manifest = read_manifest(folder)
        if isinstance(last, Collection):
            return replace(last, manifest=manifest)
        opened = Collection(folder, manifest, open_client(folder))
        with _explained(folder):
            if not opened.client.list_indexes(_NAME):  # killed between dropping and creating it
                opened.client.create_index(_NAME, opened.index_params(manifest.kind))
            opened.client.load_collection(_NAME)
        with suppress(ConfigError), exclusive(folder):  # else a thread of this process is adding
            return opened.recover()
        return opened

    @property
    def _collection(self) -> Collection:
        return cast("Collection", self._snapshot)

    @property
    def kind(self) -> str:
        return self.manifest.kind

    def optimize(self, kind: str | None = None, *, show_progress: bool = False) -> None:
        """Search exactly (``milvus``) or by HNSW (``milvus-hnsw``), and free room."""
        chosen = self.kind if kind is None else pick("kind of index in Milvus", kind, MILVUS)
        with self._writing():
            was = self.manifest
            self._collection.index_by(chosen)
            write_manifest(self.folder, replace(was, kind=chosen, writes=was.next_write))

    @property
    def needs_optimizing(self) -> bool:
        return False

    def close(self) -> None:
        """Let other processes open it; this one is of no more use then."""
        close_milvus(self.folder)

    def _changed(
        self, was: IndexManifest, gone: dict[str, int], new: Iterator[IndexRows] | None
    ) -> IndexManifest:
        rows = None if new is None else list(new) if gone else new  # refused before any leaves
        left = self._collection.delete([*gone.values()])
        added = 0
        try:
            if rows is not None:
                added = self._collection.insert(rows, was.next_number)
        except BaseException:
            self._collection.put(left)
            raise
        return replace(
            was,
            segments=(Segment("milvus", was.rows - len(gone) + added),),
            given=was.next_number + added,
            writes=was.next_write,
        )
