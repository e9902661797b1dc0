"""Routes over an index: search, changes, its map, and the page at ``/``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import TypeVar

import numpy as np
import orjson
from fastapi import APIRouter, Request, Response
from starlette.responses import FileResponse

from contrasent.errors import CheckpointError, DataError, install_command
from contrasent.files import BusyError
from contrasent.search.index import Index
from contrasent.search.storage import Hit
from contrasent.serve.application import RefusalError, Service
from contrasent.serve.bodies import IndexChange, QueryRequest
from contrasent.serve.embedding_routes import EmbeddingRoutes, json_answer, require_at_most
from contrasent.serve.vector_cache import Embedded

T = TypeVar("T")

_PAGE = Path(__file__).parent / "page"
_ASSETS = {"page.css": "text/css", "page.js": "text/javascript"}
_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "frame-ancestors 'none'"
)
"""The page runs and loads nothing from elsewhere; the plots style themselves."""
_WRITE_SECONDS = 5.0
_HITS = 100_000
_MAPPED = 2000
"""Points of a map; of a larger index it shows every so-manieth text."""


@dataclass(slots=True)
class Searched:
    """An index with what embeds its queries; ``name`` is what the page calls them."""

    index: Index
    embedding: EmbeddingRoutes
    name: str
    lock: Lock = field(default_factory=Lock)
    written: int = 0  # when, in nanoseconds: also a rebuilt index, whose writes begin anew, differs

    async def search(
        self, request: Request, body: QueryRequest
    ) -> tuple[list[list[Hit]], list[Embedded]]:
        """The hits of each query, and what the encoder read of it."""
        queries = [body.queries] if isinstance(body.queries, str) else body.queries
        require_at_most(_HITS, len(queries) * body.top_k, "hits")
        rows, entries = await self.embedding.vectors(
            request, queries, normalize=self.unit, role="query"
        )
        index = await asyncio.to_thread(self.newest)
        how = body.top_k, body.threshold, body.only
        return await asyncio.to_thread(index.search_vectors, rows, *how), entries

    @property
    def unit(self) -> bool:
        """Whether its vectors have length 1."""
        return self.index.manifest.similarity == "cosine"

    def newest(self) -> Index:
        """The index, with what other processes wrote; RefusalError if it is no longer the same."""
        with self.lock:
            try:
                written = (self.index.folder / "manifest.json").stat().st_mtime_ns
                if written != self.written:
                    self.index.refresh()
            except (CheckpointError, FileNotFoundError) as error:
                raise RefusalError(503, f"{error}; restart the server", "Unhealthy") from error
            self.written = written
        return self.index


class IndexRoutes:
    """The routes; without an index those of the page remain, which then only compares."""

    def __init__(
        self,
        service: Service,
        searched: Searched | None = None,
        beside: Searched | None = None,
    ) -> None:
        self._service = service
        self._searched = searched
        self._beside = beside
        self._map = 0, b""  # when the index that it shows was written, and its JSON
        self._writing, self._drawing = asyncio.Lock(), asyncio.Lock()
        if searched is not None:
            service.metrics.set(contrasent_index_texts=len(searched.index))

    def router(self) -> APIRouter:
        """All of them."""
        router = APIRouter(tags=["search"])
        if self._searched is not None:
            router.post("/search", summary="Nearest texts of the index")(self.search)
            router.post("/index", summary="Remove and add texts")(self.change)
            router.get("/index", summary="What the index holds")(self.facts)
            router.get("/map", summary="The index in two dimensions")(self.map)
        if self._beside is not None:
            router.post("/neighbours", summary="Nearest texts in two encoders")(self.neighbours)
        router.get("/", include_in_schema=False)(self.page)
        router.get("/page/about", include_in_schema=False)(self.about)
        router.get("/page/plotly.js", include_in_schema=False)(self.plots)
        router.get("/page/{name}", include_in_schema=False)(self.asset)
        return router

    @property
    def _index(self) -> Searched:
        if self._searched is None:
            raise RefusalError(404, "no index is served; start with --index DIR")
        return self._searched

    async def search(self, request: Request, body: QueryRequest) -> Response:
        """For each query the texts that are nearest by the index's similarity, best first."""
        hits, entries = await self._index.search(request, body)
        return json_answer({"results": hits}, entries)

    async def change(self, request: Request, body: IndexChange) -> Response:
        """Remove, then add, all or none; when the answer comes, both are on disk."""
        index, removed, added = self._index.index, 0, list[str]()
        read = list[Embedded]()
        rows = np.zeros((0, index.manifest.encoder.width), np.float32)
        if body.texts:
            rows, read = await self._index.embedding.vectors(
                request, body.texts, normalize=self._index.unit, role="document"
            )
        given = rows, body.texts, body.ids
        async with self._writing:  # those that wait take no thread from searches
            await asyncio.to_thread(self._index.newest)
            if body.texts or body.ids:
                removed, added = await _write(
                    lambda: index.change(body.remove, *given, missing_ok=body.missing_ok)
                )
            elif body.remove:
                removed = await _write(
                    lambda: index.remove(body.remove, missing_ok=body.missing_ok)
                )
        self._service.metrics.set(contrasent_index_texts=len(index))
        return json_answer({"removed": removed, "added": added, "texts": len(index)}, read)

    async def facts(self) -> Response:
        """Its size, kind, recall and encoder."""
        index = await asyncio.to_thread(self._index.newest)
        self._service.metrics.set(contrasent_index_texts=len(index))
        ann = index.manifest.ann
        return json_answer(
            {
                "texts": len(index),
                "kind": index.kind,
                "similarity": index.manifest.similarity,
                "approximate": None if ann is None else asdict(ann),
                "encoder": asdict(index.manifest.encoder),
            }
        )

    async def neighbours(self, request: Request, body: QueryRequest) -> Response:
        """The nearest texts to each query, by the encoder of the index and by the one beside it."""
        both = [pair for pair in (self._index, self._beside) if pair is not None]
        answers = [await pair.search(request, body) for pair in both]
        sides = [
            {"name": pair.name, "results": hits}
            for pair, (hits, _) in zip(both, answers, strict=True)
        ]
        return json_answer({"encoders": sides}, *(entries for _, entries in answers))

    async def map(self) -> Response:
        """Points of the plane, by principal components."""
        index = await asyncio.to_thread(self._index.newest)
        async with self._drawing:
            if self._map[0] != self._index.written:
                self._map = self._index.written, await asyncio.to_thread(_draw, index)
        return Response(self._map[1], media_type="application/json")

    async def page(self) -> Response:
        """The page."""
        headers = {"Content-Security-Policy": _POLICY}
        return FileResponse(_PAGE / "page.html", headers=headers, media_type="text/html")

    async def asset(self, name: str) -> Response:
        """What the page loads."""
        if name not in _ASSETS:
            raise RefusalError(404, "the page has no such part")
        return FileResponse(_PAGE / name, media_type=_ASSETS[name])

    async def plots(self) -> Response:
        """The plotting library, from its own package."""
        spec = find_spec("plotly")
        if spec is None or spec.origin is None:
            raise RefusalError(404, f"the map needs plotly: {install_command('serve')}")
        path = Path(spec.origin).parent / "package_data" / "plotly.min.js"
        return FileResponse(path, headers={"Cache-Control": "max-age=86400"})

    async def about(self) -> Response:
        """What the page can do here."""
        return json_answer(
            {
                "model": self._service.settings.name,
                "key": self._service.settings.api_key is not None,
                "index": self._searched is not None,
                "beside": self._beside is not None,
            }
        )


async def _write(change: Callable[[], T]) -> T:
    """Change the index; another process that writes at the same time is waited for."""
    end = time.monotonic() + _WRITE_SECONDS
    while True:
        try:
            return await asyncio.to_thread(change)
        except BusyError as error:
            if time.monotonic() > end:
                raise RefusalError(503, str(error), "Overloaded") from error
            await asyncio.sleep(0.05)
        except DataError as error:
            raise RefusalError(409, str(error)) from error


def _draw(index: Index) -> bytes:
    """The JSON of a map by principal components: columns ``x``, ``y``, ``id`` and ``text``."""
    every = max(1, -(-len(index) // _MAPPED))
    rows: list[np.ndarray] = []
    ids: list[str] = []
    texts: list[str] = []
    before = 0
    for block in index.blocks():
        kept = slice(-before % every, None, every)
        rows.append(block.vectors[kept])
        ids += block.ids[kept]
        texts += [text[:200] for text in block.texts[kept]]
        before += len(block.ids)
    vectors = np.concatenate(rows) if rows else np.zeros((0, 2), np.float32)
    centred = vectors - vectors.mean(axis=0) if len(vectors) else vectors
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(vectors), 2))
    points[:, : len(axes)] = centred @ axes[:2].T
    x, y = points.T.astype(float).round(4).tolist()
    return orjson.dumps(
        {"x": x, "y": y, "id": ids, "text": texts, "shown": len(ids), "texts": len(index)}
    )
