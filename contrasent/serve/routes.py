"""Routes that embed, as OpenAI and text-embeddings-inference (TEI) have them, or use an index.

Vectors are ``(N, D)`` in the order of the texts. Every answer says in ``X-Truncated`` how many
texts were longer than the model reads. In a body null means unset, a field that it does not have is
refused, as it may be misspelt, and nothing is converted: 0 is no boolean.
"""

import asyncio
import base64
import reprlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from threading import Lock
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from contrasent import __version__
from contrasent.data import require_text
from contrasent.errors import CheckpointError, DataError
from contrasent.metrics import all_similarities
from contrasent.model import role_options, unit_rows
from contrasent.report import cluster_map
from contrasent.search import Index, cluster, duplicates
from contrasent.serve.application import RefusalError, refuse, unless_gone
from contrasent.serve.batching import Batcher, Embedded

NOT_BLANK = Field(pattern=r"[^\s\x1c-\x1f\x85]")
"""A character that prints; pydantic finds halves of surrogate pairs only where it looks."""

_FIRST = Field(fail_fast=True)
"""Of a list only the first mistake is told: each takes a thousand times the memory of its item."""
_SOME = Field(fail_fast=True, min_length=1)
Strings = Annotated[list[str], _SOME]
Texts = str | Strings
Line = Annotated[str, NOT_BLANK]
Lines = Annotated[list[Line], _FIRST]
Count = Annotated[int, Field(gt=0)]


def _with_null(schema: dict[str, Any]) -> None:
    fields = schema["properties"]
    for name in fields.keys() - set(schema.get("required", ())):
        fields[name] = {"anyOf": [fields[name], {"type": "null"}]}


class Body(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=_with_null)

    @model_validator(mode="before")
    @classmethod
    def _drop_unset(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        fields = cls.model_fields
        for name in given.keys() - fields.keys():  # only the first is told, as of a list
            raise ValueError(f"there is no field {reprlib.repr(name)}, only {', '.join(fields)}")
        required = {name for name, field in fields.items() if field.is_required()}
        return {name: it for name, it in given.items() if it is not None or name in required}


_Input = Literal["query", "document", "passage", "search_query", "search_document"]
_ROLES = {"search_query": "query", "search_document": "document", "passage": "document"}


class TextOptions(Body):
    """How texts are read; ``prompt_name`` goes before ``input_type``."""

    prompt_name: str | None = None
    input_type: _Input | None = None
    truncate: bool | None = None


def _text(value: object) -> object:
    """Refuse token ids, which clients send that tokenize for a model of OpenAI's."""
    if isinstance(value, list) and value and isinstance(value[0], int | list):
        raise ValueError("send text, not token ids (LangChain: check_embedding_ctx_length=False)")
    return value


class OpenAIRequest(TextOptions):
    """OpenAI's request for embeddings."""

    input: Annotated[Texts, BeforeValidator(_text)]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Count | None = None
    user: str | None = None


class EmbedRequest(TextOptions):
    """TEI's request for embeddings, with what huggingface_hub adds."""

    inputs: Texts
    normalize: bool = True
    dimensions: Count | None = None
    encoding_format: Literal["float", "base64"] = "float"
    truncation_direction: Literal["right", "Right"] = "right"


class SimilarityInputs(Body):
    """A sentence, and those it is compared with."""

    source_sentence: str
    sentences: Strings


class SimilarityRequest(Body):
    """TEI's request for cosines."""

    inputs: SimilarityInputs
    parameters: TextOptions = TextOptions()


class MatrixRequest(Body):
    """Two lists, all sentences of which are compared."""

    first: Strings
    second: Strings


class QueryRequest(Body):
    """Queries, and which hits are wanted; ``filter`` is a condition such as ``year >= 2020``."""

    queries: Line | Annotated[list[Line], _SOME]
    top_k: Annotated[int, Field(ge=1, le=1000)] = 10
    threshold: Annotated[float, Field(allow_inf_nan=False)] | None = None
    filter: Annotated[str, Field(max_length=1000, examples=['id like "1%"'])] | None = None
    mode: Literal["auto", "dense", "words", "hybrid"] = "auto"
    weight: Annotated[float, Field(ge=0, le=1)] | None = None
    fusion: Literal["scores", "ranks"] = "scores"


class IndexChange(Body):
    """Ids to remove, then texts to add, with one id and metadata each or with none."""

    remove: Lines = []
    missing_ok: bool = False
    texts: Lines = []
    ids: Lines | None = None
    metadata: list[dict[str, str | int | float | bool | None]] | None = None


_WRITE_SECONDS = 5.0  # in which another process that writes the index may end
_HITS = 100_000
_MAPPED, _CLUSTERS = 2_000, 20  # texts of a map, which takes some seconds, and their clusters
_INLINE = 64  # answers of more rows are written in a thread, so that others do not wait for them
_CHARACTERS, _CELLS = 1_000_000, 1_000_000  # of the largest text, and the largest matrix


class EmbeddingRoutes:
    """The routes, and what they share: from texts to vectors, with limits and counts."""

    def __init__(self, batcher: Batcher) -> None:
        self.batcher, self._encoder, self._options = batcher, batcher.encoder, batcher.options
        self._started = int(time.time())
        self._fingerprint = self._encoder.fingerprint()

    def router(self) -> APIRouter:
        """All of them."""
        router = APIRouter(tags=["embeddings"])
        router.post("/v1/embeddings", summary="OpenAI's embeddings")(self.openai)
        router.get("/v1/models", summary="OpenAI's list of models")(self.models)
        router.post("/embed", summary="TEI's embeddings")(self.embed)
        router.post("/similarity", summary="TEI's similarities of a sentence")(self.similarity)
        router.post("/matrix", summary="The similarities of two lists")(self.matrix)
        router.get("/info", summary="The model and the limits")(self.info)
        router.post("/", include_in_schema=False)(self.by_inputs)
        return router

    async def vectors(
        self,
        request: Request,
        texts: Sequence[str],
        options: TextOptions = TextOptions(),  # noqa: B008 - is not changed
        dimensions: int | None = None,
        normalize: bool | None = True,
        role: str | None = None,
    ) -> tuple[np.ndarray, list[Embedded]]:
        """Vectors ``(N, dimensions)`` by the options or role; as the encoder has them for None."""
        encoder, prompt_name, asked = self._encoder, options.prompt_name, options.input_type
        role = None if prompt_name is not None else _ROLES.get(asked or "", asked) or role
        of_role = {} if role is None else role_options(encoder, role)
        prompt = encoder.conventions.resolve(of_role.get("prompt"), prompt_name)
        texts, task = [prompt + text for text in texts], of_role.get("task")
        few = f"dimensions is {dimensions}, but the model has only {encoder.width}"
        refuse(
            ((dimensions or 0) > encoder.width, 422, few),
            _more(len(texts), self._options.max_texts, "texts"),
            _more(max(map(len, texts)), _CHARACTERS, "characters of a text"),
        )
        require_text(texts, "text")
        entries = await unless_gone(request, self.batcher.embed([(text, task) for text in texts]))
        state, cut = request.state, [entry.truncated for entry in entries]
        state.texts, state.tokens = len(entries), sum(entry.tokens for entry in entries)
        self.batcher.metrics.put(
            contrasent_texts=state.texts,
            contrasent_tokens=state.tokens,
            contrasent_truncated_texts=sum(cut),
        )
        at = cut.index(True) if any(cut) else -1
        most, long = encoder.limit(task), options.truncate is False and at >= 0
        refuse((long, 413, f"text {at} has more than {most} tokens; shorten it, or set truncate"))
        rows = np.stack([entry.row for entry in entries])
        rows = unit_rows(rows) if normalize is None and encoder.route(task).normalize else rows
        rows = rows[:, : dimensions or encoder.width].copy()
        return (unit_rows(rows) if normalize else rows), entries

    async def openai(self, request: Request, body: OpenAIRequest) -> Response:
        """Unit vectors of texts."""
        texts = [body.input] if isinstance(body.input, str) else body.input
        rows, entries = await self.vectors(request, texts, body, body.dimensions)
        tokens = sum(entry.tokens for entry in entries)
        rest = {
            "object": "list",
            "model": self._options.served_name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "truncated": [n for n, entry in enumerate(entries) if entry.truncated],
        }

        def write() -> bytes:
            numbered = enumerate(_formatted(rows, body.encoding_format))
            data = [{"object": "embedding", "index": n, "embedding": it} for n, it in numbered]
            return _dumped({"data": data, **rest})

        return await _answer(write, entries)

    async def models(self) -> Response:
        """The one that is served."""
        about = {"created": self._started, "object": "model", "owned_by": "contrasent"}
        return _json({"object": "list", "data": [{"id": self._options.served_name, **about}]})

    async def embed(self, request: Request, body: EmbedRequest) -> Response:
        """A list of vectors."""
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        rows, entries = await self.vectors(request, texts, body, body.dimensions, body.normalize)
        return await _answer(lambda: _dumped(_formatted(rows, body.encoding_format)), entries)

    async def similarity(self, request: Request, body: SimilarityRequest) -> Response:
        """The similarity, by the model's function, of the source sentence to each of the others."""
        texts = [body.inputs.source_sentence, *body.inputs.sentences]
        return await self._compare(request, texts, 1, body.parameters)

    async def matrix(self, request: Request, body: MatrixRequest) -> Response:
        """A row for each sentence of the first list, a column for each of the second."""
        refuse(_more(len(body.first) * len(body.second), _CELLS, "similarities"))
        return await self._compare(request, [*body.first, *body.second], len(body.first))

    async def _compare(
        self, request: Request, texts: Sequence[str], first: int, options: TextOptions | None = None
    ) -> Response:
        name, how = self._encoder.similarity_fn_name, options or TextOptions()
        rows, entries = await self.vectors(request, texts, how, normalize=name == "cosine" or None)

        def write() -> bytes:
            scores = all_similarities(name, rows[:first], rows[first:])
            scores = np.clip(scores, -1, 1) if name == "cosine" else scores
            return _dumped(scores if options is None else scores[0])

        return await _answer(write, entries)

    async def by_inputs(self, request: Request, body: EmbedRequest | SimilarityRequest) -> Response:
        """The route that huggingface_hub's InferenceClient calls."""
        if isinstance(body, EmbedRequest):
            return await self.embed(request, body)
        return await self.similarity(request, body)

    async def info(self) -> Response:
        """The encoder that is served, with the fingerprint that indexes and records have too."""
        encoder, options = self._encoder, self._options
        return _json(
            {
                "model_id": encoder.name,
                "model_sha": None,
                "model_dtype": self.batcher.precision,
                "model_type": {"embedding": {"pooling": encoder.pooler}},
                "served_model_name": options.served_name,
                "fingerprint": self._fingerprint,
                "head": encoder.head_name,
                "transform": encoder.transform_described,
                "dimensions": encoder.width,
                "engine": encoder.engine,
                "bitwise": options.bitwise,
                "max_input_length": encoder.max_tokens,
                "max_batch_tokens": options.batch_tokens,
                "max_concurrent_requests": options.max_requests,
                "max_client_batch_size": options.max_texts,
                "payload_limit": options.payload_limit,
                "auto_truncate": True,
                "version": __version__,
            }
        )


def _more(asked: int, limit: int, name: str) -> tuple[bool, int, str]:
    return asked > limit, 413, f"{asked} {name} are more than {limit}; ask for fewer at once"


def _formatted(rows: np.ndarray, encoding_format: str) -> Any:
    if encoding_format == "float":
        return rows
    return [base64.b64encode(row.tobytes()).decode() for row in rows.astype("<f4", copy=False)]


def _dumped(content: Any) -> bytes:
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def _json(content: Any, read: Sequence[Embedded] | None = None) -> Response:
    written = content if isinstance(content, bytes) else _dumped(content)
    headers = None if read is None else {"X-Truncated": str(sum(it.truncated for it in read))}
    return Response(written, headers=headers, media_type="application/json")


async def _answer(write: Callable[[], bytes], entries: Sequence[Embedded]) -> Response:
    written = write() if len(entries) <= _INLINE else await asyncio.to_thread(write)
    return _json(written, entries)


class IndexRoutes:
    """The routes over an index, whose queries and new texts are embedded by ``embedding``."""

    def __init__(self, index: Index, embedding: EmbeddingRoutes) -> None:
        self._metrics, self._index, self._embedding = embedding.batcher.metrics, index, embedding
        index.patience = _WRITE_SECONDS
        self._lock, self._writing, self._mapping = Lock(), asyncio.Lock(), asyncio.Lock()
        self._mapped: tuple[object, bytes] = None, b""  # of a manifest
        self._metrics.put(contrasent_index_texts=len(index))

    def router(self) -> APIRouter:
        """All of them."""
        router = APIRouter(tags=["search"])
        router.post("/search", summary="Nearest texts of the index")(self.search)
        router.post("/index", summary="Remove and add texts")(self.change)
        router.get("/index", summary="What the index holds")(self.facts)
        if find_spec("sklearn"):
            router.get("/index/map", summary="Clusters and duplicates on a map")(self.map)
        return router

    def _newest(self) -> Index:
        """The index, with what other processes wrote; RefusalError if it is no longer the same."""
        with self._lock:
            try:
                self._index.refresh_if_written()
            except (CheckpointError, FileNotFoundError) as error:
                raise RefusalError(503, f"{error}; restart the server", "Unhealthy") from error
        return self._index

    async def _embed(
        self, request: Request, texts: list[str], role: str
    ) -> tuple[np.ndarray, list[Embedded]]:
        unit = self._index.manifest.similarity == "cosine" or None
        return await self._embedding.vectors(request, texts, normalize=unit, role=role)

    async def search(self, request: Request, body: QueryRequest) -> Response:
        """For each query the texts that are nearest by the index's similarity, best first."""
        queries = [body.queries] if isinstance(body.queries, str) else body.queries
        refuse(_more(len(queries) * body.top_k, _HITS, "hits"))
        rows, entries = await self._embed(request, queries, "query")
        index = await asyncio.to_thread(self._newest)
        options = {**body.model_dump(exclude={"queries"}), "texts": queries}
        results = await asyncio.to_thread(index.search_vectors, rows, **options)
        return _json({"results": [[hit.known for hit in hits] for hits in results]}, entries)

    async def change(self, request: Request, body: IndexChange) -> Response:
        """Remove, then add, all or none; when the answer comes, both are on disk."""
        index = self._index
        rows, read = np.zeros((0, index.manifest.encoder.width), np.float32), list[Embedded]()
        if body.texts:
            rows, read = await self._embed(request, body.texts, "document")
        given = body.remove, rows, body.texts, body.ids
        async with self._writing:  # those that wait take no thread from searches
            await asyncio.to_thread(self._newest)
            before = index.manifest.columns
            try:
                removed, added = await asyncio.to_thread(
                    index.change, *given, metadata=body.metadata, missing_ok=body.missing_ok
                )
            except DataError as error:
                raise RefusalError(409, str(error)) from error
        self._metrics.put(contrasent_index_texts=len(index))
        now = index.manifest.columns.items()
        retyped = {name: kind for name, kind in now if before.get(name, kind) != kind}
        facts = {"removed": removed, "added": added, "texts": len(index)}
        return _json(facts | ({"retyped": retyped} if retyped else {}), read)

    async def facts(self) -> Response:
        """Its size, kind, recall and encoder, and a text as an example of a query."""
        index = await asyncio.to_thread(self._newest)
        self._metrics.put(contrasent_index_texts=len(index))
        first = next(index.blocks(), None)
        return _json({**index.facts(), "example": None if first is None else first.texts[0]})

    async def map(self) -> Response:
        """Clusters and duplicates of up to 2,000 texts, drawn at random, and their map (SVG)."""
        index = await asyncio.to_thread(self._newest)
        async with self._mapping:  # once for all who ask, until somebody writes
            now = index.snapshot
            if self._mapped[0] != now.manifest:
                self._mapped = now.manifest, await asyncio.to_thread(_map_of, index, now)
        return _json(self._mapped[1])


def _map_of(index: Index, snapshot: Any) -> bytes:
    rows = np.random.default_rng(0).permutation(np.flatnonzero(snapshot.live))[:_MAPPED]
    live = np.isin(np.arange(len(snapshot.live)), rows)
    sample = Index(index.folder, replace(snapshot, live=live))
    groups = cluster(sample, clusters=max(2, min(len(sample) // 10, _CLUSTERS)))
    repeated = duplicates(sample)
    facts = {"clusters": groups.facts(), "duplicates": repeated.facts()}
    return _dumped({**facts, "svg": cluster_map(groups, repeated)})
