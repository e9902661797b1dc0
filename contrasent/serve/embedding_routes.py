"""Routes that embed, as OpenAI and as text-embeddings-inference (TEI) have them.

Vectors are ``(N, D)`` in the order of the texts. Every answer says in ``X-Truncated`` how many
texts were longer than the model reads.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
from fastapi import APIRouter, Request, Response

from contrasent import __version__
from contrasent.data.tokenizer import require_text
from contrasent.metrics import all_similarities
from contrasent.model.conventions import role_options
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.protocol import unit_rows
from contrasent.serve.application import RefusalError, Service, unless_gone
from contrasent.serve.batching import cut_ids, is_framed
from contrasent.serve.bodies import (
    EmbedRequest,
    MatrixRequest,
    OpenAIRequest,
    SimilarityRequest,
    TextOptions,
    TokenizeRequest,
)
from contrasent.serve.vector_cache import Embedded, Text

_BYTES = "application/octet-stream"
_INLINE = 64
"""Answers of more rows are written in a thread, so that others do not wait for them."""
_CHARACTERS, _CELLS = 1_000_000, 1_000_000
"""Largest text and largest input of the tokenizer's route, and largest matrix."""


class EmbeddingRoutes:
    """The routes, and what they share: from texts to vectors, with limits and counts."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._encoder = service.batcher.encoder
        self._model = {
            "id": service.settings.name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "contrasent",
        }
        self._fingerprint = self._encoder.fingerprint()
        tokenizer = getattr(self._encoder, "tokenizer", None)
        self._truncation_side: str = getattr(tokenizer, "truncation_side", "right")

    def router(self) -> APIRouter:
        """All of them."""
        router = APIRouter(tags=["embeddings"])
        router.post("/v1/embeddings", summary="OpenAI's embeddings")(self.openai)
        router.get("/v1/models", summary="OpenAI's list of models")(self.models)
        router.get("/v1/models/{name:path}", summary="OpenAI's model")(self.model)
        router.post("/embed", summary="TEI's embeddings")(self.embed)
        router.post(
            "/similarity", summary="The similarities of one sentence with others, as in TEI"
        )(self.similarity)
        router.post("/matrix", summary="The similarities of two lists")(self.matrix)
        router.post("/tokenize", summary="TEI's tokens")(self.tokenize)
        router.get("/info", summary="The model and the limits")(self.info)
        router.post("/", include_in_schema=False)(self.by_inputs)
        return router

    async def embedded(self, request: Request, texts: Sequence[Text]) -> list[Embedded]:
        """Embed the texts of a request; RefusalError or OverloadedError if that cannot be."""
        batcher, counts = self._service.batcher, self._service.metrics
        self._require_texts(texts)
        entries = batcher.cached(texts)
        if entries is None:
            batcher.require_room()
            entries = await unless_gone(request, batcher.embed(texts))
        state = request.state
        state.texts, state.tokens = len(entries), sum(entry.tokens for entry in entries)
        counts.count("texts", state.texts)
        counts.count("tokens", state.tokens)
        counts.count("truncated_texts", sum(entry.truncated for entry in entries))
        return entries

    def _require_texts(self, texts: Sequence[Text]) -> None:
        require_at_most(self._service.settings.max_texts, len(texts), "texts")
        require_at_most(_CHARACTERS, max(map(len, texts)), "characters of a text")
        require_text((text if isinstance(text, str) else "" for text in texts), "text")

    async def vectors(
        self,
        request: Request,
        texts: Sequence[Text],
        options: TextOptions = TextOptions(),  # noqa: B008 - is not changed
        dimensions: int | None = None,
        normalize: bool = True,
        role: str | None = None,
    ) -> tuple[np.ndarray, list[Embedded]]:
        """The first ``dimensions`` of each vector, ``(N, dimensions)``.

        Texts have the prompt of the ``options`` before them, else that of their ``role`` in an
        index (query or document), else the encoder's default one.
        """
        encoder, prompt_name = self._encoder, options.prompt_name
        direction = options.truncation_direction
        side, width, longest = self._truncation_side, encoder.width, encoder.max_tokens
        problems = {
            f"prompt_name is {prompt_name!r}; the model's are: {', '.join(encoder.prompts)}": (
                prompt_name is not None and prompt_name not in encoder.prompts
            ),
            f"dimensions is {dimensions}, but the model has only {width}": (
                dimensions is not None and dimensions > width
            ),
            f"truncation_direction is {direction!r}, but this model cuts texts at the {side}": (
                (direction or side).lower() != side
            ),
        }
        if problem := next((text for text, there in problems.items() if there), None):
            raise RefusalError(422, problem)
        role = None if prompt_name is not None else options.role or role
        of_role = {} if role is None else role_options(encoder, role)
        prompt = encoder.conventions.resolve(of_role.get("prompt"), prompt_name)
        texts = [prompt + text if isinstance(text, str) else text for text in texts]
        limit = options.truncate_prompt_tokens or self._length_of(of_role.get("task"))
        if limit < 0 or (longest is not None and limit >= longest):
            entries = await self.embedded(request, texts)
        elif not isinstance(encoder, SentenceEncoder):
            message = f"truncate_prompt_tokens is {limit}: word vectors have no tokens"
            raise RefusalError(422, message)
        else:
            self._require_texts(texts)
            ids, was_cut = await asyncio.to_thread(cut_ids, encoder, texts, limit)
            entries = [
                replace(entry, truncated=entry.truncated or early)
                for entry, early in zip(
                    await self.embedded(request, [tuple(row.tolist()) for row in ids]),
                    was_cut,
                    strict=True,
                )
            ]
        cut = next((n for n, entry in enumerate(entries) if entry.truncated), None)
        if cut is not None and options.truncate is False:
            most = longest if limit < 0 else limit
            raise RefusalError(
                413, f"text {cut} has more than {most} tokens; shorten it, or set truncate"
            )
        rows = np.stack([entry.row[: dimensions or width] for entry in entries])
        return (unit_rows(rows) if normalize else rows), entries

    def _length_of(self, task: str | None) -> int:
        """The tokens of a query or document, -1 for those of any text."""
        conventions, most = self._encoder.conventions, self._encoder.max_tokens
        expansion, length = conventions.expansion_of(task), conventions.length_of(task) or -1
        if (expansion is not None and expansion.attend) or length > most:
            raise RefusalError(
                424, f"this model reads a {task} longer than other text, which is not served here"
            )
        return length

    async def openai(self, request: Request, body: OpenAIRequest) -> Response:
        """Unit vectors of texts, or of the token ids that `/tokenize` gives."""
        texts = _texts_of(body.input)
        for number, text in enumerate(() if self._service.settings.raw_ids else texts):
            if not (isinstance(text, str) or is_framed(self._encoder, text)):
                raise RefusalError(
                    400,
                    f"input {number} is token ids without the special tokens that /tokenize adds, "
                    "as clients send them that tokenize for a model of OpenAI's; send text "
                    "(LangChain: check_embedding_ctx_length=False), or start the server with "
                    "--raw-token-ids if they are ids of this model",
                    "Validation",
                )
        rows, entries = await self.vectors(request, texts, body, body.dimensions)
        if _BYTES in request.headers.get("accept", ""):
            return _bytes_answer(rows, entries)
        tokens = sum(entry.tokens for entry in entries)
        rest = {
            "object": "list",
            "model": self._service.settings.name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "truncated": [n for n, entry in enumerate(entries) if entry.truncated],
        }

        def write() -> bytes:
            data = [
                {"object": "embedding", "index": n, "embedding": embedding}
                for n, embedding in enumerate(_formatted(rows, body.encoding_format))
            ]
            return _dumped({"data": data, **rest})

        return await _answer(write, entries)

    async def models(self) -> Response:
        """The one that is served."""
        return json_answer({"object": "list", "data": [self._model]})

    async def model(self, name: str) -> Response:
        """The model of this name."""
        if name != self._model["id"]:
            raise RefusalError(404, f"there is no model {name!r}, only {self._model['id']!r}")
        return json_answer(self._model)

    async def embed(self, request: Request, body: EmbedRequest) -> Response:
        """A list of vectors; `Accept: application/octet-stream` asks for their bytes."""
        texts = _texts_of(body.inputs)
        rows, entries = await self.vectors(request, texts, body, body.dimensions, body.normalize)
        if _BYTES in request.headers.get("accept", ""):
            return _bytes_answer(rows, entries)
        return await _answer(lambda: _dumped(_formatted(rows, body.encoding_format)), entries)

    async def similarity(self, request: Request, body: SimilarityRequest) -> Response:
        """The similarity, by the model's function, of the source sentence to each of the others."""
        inputs = body.inputs
        texts = [inputs.source_sentence, *inputs.sentences]
        name = self._encoder.similarity_fn_name
        rows, entries = await self.vectors(
            request, texts, body.parameters, normalize=name == "cosine"
        )
        return await _answer(
            lambda: _dumped(all_similarities(name, rows[:1], rows[1:])[0]), entries
        )

    async def matrix(self, request: Request, body: MatrixRequest) -> Response:
        """A row for each sentence of the first list, a column for each of the second."""
        require_at_most(_CELLS, len(body.first) * len(body.second), "similarities")
        name, half = self._encoder.similarity_fn_name, len(body.first)
        texts = [*body.first, *body.second]
        rows, entries = await self.vectors(request, texts, normalize=name == "cosine")
        return await _answer(
            lambda: _dumped(all_similarities(name, rows[:half], rows[half:])), entries
        )

    async def by_inputs(self, request: Request, body: EmbedRequest | SimilarityRequest) -> Response:
        """What huggingface_hub's InferenceClient calls."""
        if isinstance(body, EmbedRequest):
            return await self.embed(request, body)
        return await self.similarity(request, body)

    async def tokenize(self, body: TokenizeRequest) -> Response:
        """The tokens of each text, none cut."""
        if not isinstance(self._encoder, SentenceEncoder):
            raise RefusalError(424, "word vectors have no tokenizer")
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        require_at_most(_CHARACTERS, sum(map(len, texts)), "characters")
        spans = self._encoder.tokenizer.spans
        return json_answer(await asyncio.to_thread(spans, texts, specials=body.add_special_tokens))

    async def info(self) -> Response:
        """What is served, with the fingerprint that indexes and records have too."""
        encoder, settings = self._encoder, self._service.settings
        batching = self._service.batcher.settings
        return json_answer(
            {
                "model_id": encoder.name,
                "model_sha": None,
                "model_dtype": batching.precision,
                "model_type": {"embedding": {"pooling": encoder.pooler}},
                "served_model_name": settings.name,
                "fingerprint": self._fingerprint,
                "head": encoder.head_name,
                "transform": encoder.transform_described,
                "dimensions": encoder.width,
                "engine": encoder.engine,
                "bitwise": batching.bitwise,
                "max_input_length": encoder.max_tokens,
                "max_batch_tokens": batching.batch_tokens,
                "max_concurrent_requests": settings.max_requests,
                "max_client_batch_size": settings.max_texts,
                "payload_limit": settings.payload_limit,
                "auto_truncate": True,
                "version": __version__,
            }
        )


def require_at_most(limit: int, asked: int, name: str) -> None:
    """RefusalError if the answer would be too large."""
    if asked > limit:
        raise RefusalError(413, f"{asked} {name} are more than {limit}; ask for fewer at once")


def _texts_of(given: Any) -> list[Text]:
    """A list of texts or of tuples of token ids, of what OpenAI's ``input`` may be."""
    if isinstance(given, str):
        return [given]
    if given and isinstance(given[0], int):
        return [tuple(given)]
    return [each if isinstance(each, str) else tuple(each) for each in given]


def _formatted(rows: np.ndarray, encoding_format: str) -> Any:
    """The rows as they are, or each in base64, as little-endian float32."""
    if encoding_format == "float":
        return rows
    return [base64.b64encode(row.tobytes()).decode() for row in rows.astype("<f4", copy=False)]


def _dumped(content: Any) -> bytes:
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def json_answer(content: Any, *read: Sequence[Embedded]) -> Response:
    """The answer with ``content``; if texts were ``read``, by encoders one by one, it says how."""
    written = content if isinstance(content, bytes) else _dumped(content)
    headers = _flags(*read) if read else None
    return Response(written, headers=headers, media_type="application/json")


def _flags(*read: Sequence[Embedded]) -> dict[str, str]:
    cut = (any(entry.truncated for entry in same) for same in zip(*read, strict=True))
    return {"X-Truncated": str(sum(cut))}


async def _answer(write: Callable[[], bytes], entries: Sequence[Embedded]) -> Response:
    return json_answer(
        write() if len(entries) <= _INLINE else await asyncio.to_thread(write), entries
    )


def _bytes_answer(rows: np.ndarray, entries: Sequence[Embedded]) -> Response:
    """The rows one after another, as little-endian float32."""
    shape = ",".join(map(str, rows.shape))
    content = np.ascontiguousarray(rows, "<f4").tobytes()
    return Response(content, headers={"X-Shape": shape, **_flags(entries)}, media_type=_BYTES)
