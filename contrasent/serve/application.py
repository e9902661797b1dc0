"""The application: its settings, what every request passes, and how refusals look."""

from __future__ import annotations

import asyncio
import hmac
import re
import reprlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from ipaddress import ip_address
from typing import Any, TypeVar
from urllib.parse import urlsplit

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contrasent import __version__
from contrasent.errors import (
    CheckpointError,
    ConfigError,
    ContrasentError,
    DataError,
    is_out_of_memory,
)
from contrasent.serve.batching import Batcher, OverloadedError, StoppedError
from contrasent.serve.bodies import Refusal, limit
from contrasent.serve.telemetry import LOG, Metrics

T = TypeVar("T")

_PUBLIC = re.compile(r"/(health|ping|page/.*|docs|openapi\.json|static-offline-docs/.*)?")
"""Paths that need no key: they tell nothing, and a page must load to ask for the key."""
_REQUEST_ID = re.compile(rb"[\w.:-]{1,128}", re.ASCII)
_PROBES = ("/health", "/ping")
"""Paths of load balancers, which call a server by any name."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_READS = ("GET", "HEAD", "OPTIONS")
_TOO_MANY, _FAULT = 429, 500
_BEAT_SECONDS, _LATE = 0.02, 0.4
"""How often the event loop's lag is measured, and from which share of ``max_wait`` it is late."""
_LINGER_SECONDS = 2.0
"""How long what is left of a body that is too large is read."""
_REFUSALS = {
    400: ("Empty", "", "No text, ids without special tokens, or another host was meant"),
    401: ("Unauthorized", "", "The key is missing or wrong"),
    403: ("Unauthorized", "post", "A page of another origin may not send"),
    404: ("Validation", "{", "There is no such model"),
    408: ("Validation", "", "The body did not come in time"),
    409: ("Validation", "post /index", "The index has not, or already has, what the change names"),
    413: ("Validation", "", "The body, the list or a text is too large"),
    415: ("Validation", "post", "The body is not said to be JSON"),
    422: ("Validation", "post", "Something is not as the route takes it"),
    424: ("Backend", "post", "The model gives no vector of this text"),
    _TOO_MANY: ("Overloaded", "", "Overload, with Retry-After"),
    _FAULT: ("Backend", "", "A fault, which the log has"),
    503: ("Unhealthy", "", "Nothing can be embedded or written now"),
}
"""TEI's name of an error, in which methods and paths it may be, and why."""
_STATUSES = (
    (OverloadedError, _TOO_MANY),
    (StoppedError, 503),
    ((DataError, ConfigError), 422),
    (CheckpointError, 424),
    (ContrasentError, _FAULT),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What the server lets its clients do."""

    name: str  # the name of the model in answers
    # what clients must send as a bearer token, if anything
    api_key: str | None = field(default=None, repr=False)
    payload_limit: int = 16_000_000  # bytes of a request's body
    max_texts: int = 10_000  # texts of a request
    max_requests: int = 512  # requests answered at the same time
    body_seconds: float = 30.0  # within which the body of a request must be there
    cors: tuple[str, ...] = ()  # the origins whose pages may call, if any
    # names by which it may be called beside those of the loopback; * stands for any characters, and
    # the address of all interfaces for every number: another site's name can become no number
    hosts: tuple[str, ...] = ()
    raw_ids: bool = False  # whether token ids without special tokens are taken

    def __post_init__(self) -> None:
        if self.api_key is not None and not self.api_key.strip():
            raise ConfigError("the API key is empty; set one, or leave it out")

    def require_own(self, method: str, headers: dict[bytes, bytes]) -> None:
        """Refuse what a page of another site sends, also if its name became this address."""
        host, origin = (headers.get(it, b"").decode("latin-1").lower() for it in _SENDERS)
        name, is_number = "", False
        with suppress(ValueError):
            name = urlsplit(f"//{host}").hostname or ""
            is_number = bool(ip_address(name))
        names = [*_LOOPBACK, *map(str.lower, self.hosts)]
        any_number = is_number and not {"0.0.0.0", "::"}.isdisjoint(names)
        if not (any_number or any(fnmatchcase(name, known) for known in names)):
            raise RefusalError(
                400,
                f"the request is for the host {name[:100]!r}, by which this server is not called; "
                "start it with --allowed-host",
                "Validation",
            )
        is_ours = origin.partition("://")[2] == host or not {"*", origin}.isdisjoint(self.cors)
        if origin and method not in _READS and not is_ours:
            raise RefusalError(
                403,
                f"a page of {origin[:100]!r} may not send to {host[:100]!r}; start the server with "
                "--cors if it may",
            )


_SENDERS = (b"host", b"origin")


@dataclass(slots=True)
class Service:
    """What the routes share."""

    settings: ServerSettings
    batcher: Batcher
    metrics: Metrics
    beside: Batcher | None = None  # of a second model
    in_progress: int = 0
    lag: float = 0.0  # seconds by which the event loop is late

    @property
    def batchers(self) -> list[Batcher]:
        """Those of all models."""
        return [self.batcher] if self.beside is None else [self.batcher, self.beside]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Embed, and keep ``lag``, until the end of the block."""
        for batcher in self.batchers:
            await batcher.start()

        async def measure_lag() -> None:
            while True:
                start = time.perf_counter()
                await asyncio.sleep(_BEAT_SECONDS)
                self.lag = time.perf_counter() - start - _BEAT_SECONDS

        beats = asyncio.create_task(measure_lag())
        yield
        beats.cancel()
        for batcher in self.batchers:
            await batcher.close()


class RefusalError(Exception):
    """A request that is not answered as it was asked."""

    def __init__(self, status: int, message: str, kind: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind or _REFUSALS.get(status, ("Validation",))[0]


class ClientGoneError(Exception):
    """The client closed the connection before its answer was there."""


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Await ``work``, but cancel it when the client closes the connection."""

    async def closed() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(closed())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        gone.cancel()
        task.cancel()


def build(service: Service, *routers: Any) -> FastAPI:
    """The application with the given routers; its lifespan starts and stops the batchers."""
    app = FastAPIOffline(
        title="contrasent",
        version=__version__,
        description=f"Embeddings and search with {service.settings.name}.",
        redoc_url=None,
        responses={422: {"model": Refusal}},
        lifespan=lambda _: service.running(),
    )
    for router in routers:
        app.include_router(router)

    @app.get("/health", tags=["operations"], response_class=Response)
    @app.get("/ping", include_in_schema=False)
    async def health() -> Response:
        """200 as long as texts can be embedded, else 503."""
        if not all(batcher.is_healthy for batcher in service.batchers):
            raise StoppedError
        return Response(status_code=200)

    @app.get("/metrics", tags=["operations"], response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return PlainTextResponse(service.metrics.page(), media_type="text/plain; version=0.0.4")

    _describe(app, service)

    async def pass_on(_: Request, error: Exception) -> Response:
        raise error

    for kind in (HTTPException, RequestValidationError):  # not the routers' answers, but the gate's
        app.add_exception_handler(kind, pass_on)
    app.add_middleware(Gate, service=service)
    if service.settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.settings.cors,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "x-truncated", "x-shape", "retry-after"],
        )
    return app


def _describe(app: FastAPI, service: Service) -> None:
    """Let the OpenAPI document say what each route refuses, and the limits of this encoder."""
    document, settings = app.openapi(), service.settings
    refused = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            operation["responses"] = {"200": operation["responses"]["200"]} | {
                str(status): {"description": text, "content": refused}
                for status, (_, where, text) in _REFUSALS.items()
                if where in f"{method} {path}" and (status != 401 or settings.api_key is not None)
            }
    limit(document["components"]["schemas"], service.batcher.encoder, settings.raw_ids)


def _refusal(error: BaseException) -> RefusalError:
    """How any error is told; of a fault only the log says more."""
    if isinstance(error, RefusalError):
        return error
    if isinstance(error, asyncio.CancelledError):  # the time to drain is over
        return RefusalError(503, "the server is stopping; send the request again")
    if isinstance(error, HTTPException):
        return RefusalError(error.status_code, str(error.detail), "Validation")
    if isinstance(error, RequestValidationError):
        return _mistake(error)
    if is_out_of_memory(error):
        return RefusalError(
            503,
            "there is not enough memory for this request; send fewer or shorter texts, or start "
            "the server with smaller --batch-tokens, --cache-mb, --max-requests or --payload-limit",
            "Overloaded",
        )
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return RefusalError(status, str(error))
    return RefusalError(_FAULT, "the server failed; its log says why")


def _mistake(error: RequestValidationError) -> RefusalError:
    """The first mistake in a body, of the form that what was sent follows longest."""
    if isinstance(error.body, bytes):
        return RefusalError(415, "send JSON with Content-Type: application/json")

    def followed(one: Any) -> tuple[int, int, bool]:
        row = one["loc"][-1]
        return len(one["loc"]), row if isinstance(row, int) else -1, one["type"] == "too_short"

    first = max(error.errors(), key=followed)
    place, kind = ".".join(map(str, first["loc"])), first["type"]
    if kind in ("too_short", "string_pattern_mismatch"):
        return RefusalError(400, f"{place}: there is no text; send at least one")
    message = first["msg"].removeprefix("Value error, ")
    if kind not in ("missing", "json_invalid", "value_error"):
        message += f", not {reprlib.repr(first['input'])}"
    return RefusalError(422, f"{place}: {message}")


def _answer(scope: Scope, error: BaseException, body: bytes | None) -> Response:
    """TEI's body of an error, on OpenAI's routes with OpenAI's ``error``; a fault is logged.

    Without a ``body``, which was not read then, the connection is closed.
    """
    refusal, state = _refusal(error), scope["state"]
    state["error"], message = refusal.kind, str(refusal)
    if refusal.status == _FAULT:
        fields = {"request_id": state["request_id"]}
        LOG.error("fault", exc_info=error, extra={"fields": fields})
    headers = dict(getattr(error, "headers", None) or {})
    if "Allow" in headers:  # the router names the methods of the path's first route only
        routes = scope["app"].routes
        headers["Allow"] = ", ".join(
            method
            for method in ("GET", "HEAD", "POST")
            if any(it.matches({**scope, "method": method})[0] is Match.FULL for it in routes)
        )
    if body is None:
        headers["Connection"] = "close"
    if refusal.status == _TOO_MANY:
        headers["Retry-After"] = str(max(1, round(getattr(error, "retry_after", 1))))
    content: dict[str, Any] = {"error": message, "error_type": refusal.kind}
    if scope["path"].startswith("/v1/"):
        kind = "server_error" if refusal.status >= _FAULT else "invalid_request_error"
        named = {"message": message, "type": kind, "param": None, "code": refusal.kind.lower()}
        content |= {"message": message, "code": refusal.status, "error": named}
    written = orjson.dumps(content)
    return Response(written, refusal.status, headers, media_type="application/json")


class Gate:
    """What every request passes: its id, key, limits and body, then its metrics and log line."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service
        key = service.settings.api_key
        self._key = None if key is None else f"Bearer {key.strip()}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, body = time.perf_counter(), 0, None
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = headers.get(b"x-request-id", b"")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex.encode()
        state = scope.setdefault("state", {})
        state["request_id"] = request_id.decode()
        waiting: list[Message] = []

        async def receive_again() -> Message:  # the body that was read, and then what comes
            return waiting.pop() if waiting else await receive()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            await send(message)

        self._enter(1)
        try:
            self._require(scope, headers)
            body = await self._body(headers, receive)
            wait = self.service.batcher.settings.max_wait
            if scope["method"] == "POST" and self.service.lag > _LATE * wait:
                self.service.metrics.count("rejected")
                raise OverloadedError(wait)
            waiting.append({"type": "http.request", "body": body, "more_body": False})
            await self.app(scope, receive_again, send_with_id)
        except ClientGoneError:
            status, state["error"] = 499, "Cancelled"
        except (Exception, asyncio.CancelledError) as error:
            if status:  # the answer has begun
                raise
            await _answer(scope, error, body)(scope, receive, send_with_id)
        finally:
            self._enter(-1)
            self._tell(scope, status, time.perf_counter() - start)

    def _enter(self, change: int) -> None:
        self.service.in_progress += change
        self.service.metrics.set(contrasent_requests_in_progress=self.service.in_progress)

    def _require(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        settings, path = self.service.settings, scope["path"]
        if path not in _PROBES:
            settings.require_own(scope["method"], headers)
        public = scope["method"] == "GET" and _PUBLIC.fullmatch(path)
        given = headers.get(b"authorization", b"")
        if not public and self._key is not None and not hmac.compare_digest(given, self._key):
            raise RefusalError(401, "send the server's API key: Authorization: Bearer KEY")
        if self.service.in_progress > settings.max_requests and path not in ("/health", "/metrics"):
            self.service.metrics.count("rejected")
            message = f"{settings.max_requests} requests are being answered already"
            raise RefusalError(_TOO_MANY, message)

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """The body; RefusalError if it is too large, or comes too late."""
        settings = self.service.settings
        limit, seconds = settings.payload_limit, settings.body_seconds
        stated = headers.get(b"content-length", b"0")
        size, parts, more = int(stated) if stated.isdigit() else 0, list[bytes](), True
        try:
            async with asyncio.timeout(seconds):
                while more and size <= limit:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGoneError
                    parts.append(message.get("body", b""))
                    more, size = message.get("more_body", False), sum(map(len, parts))
        except TimeoutError as error:
            raise RefusalError(408, f"the body was not there within {seconds:g} s") from error
        if size <= limit:
            return b"".join(parts)
        with suppress(TimeoutError):  # what the client still sends: most read no answer before
            async with asyncio.timeout(0 if b"expect" in headers else _LINGER_SECONDS):
                while more and (await receive()).get("more_body"):
                    pass
        raise RefusalError(413, f"the body has more than {limit} bytes; send fewer texts at once")

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        state, batcher = scope["state"], self.service.batcher
        # Here, not where they are read: that is one of several processes.
        metrics, cache = self.service.metrics, batcher.cache
        metrics.set(te_queue_size=batcher.queued, contrasent_queue_seconds=batcher.wait)
        metrics.set(contrasent_cache_bytes=cache.bytes, contrasent_cache_texts=len(cache))
        route = getattr(scope.get("route"), "path", "unmatched")
        metrics.count("requests", 1, route, str(status))
        metrics.observe(route, contrasent_request_seconds=seconds)
        metrics.observe(te_request_duration=seconds)
        fields = {
            "request_id": state["request_id"],
            "client": (scope.get("client") or ("",))[0],
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "ms": round(seconds * 1000, 2),
            **{name: state[name] for name in ("error", "texts", "tokens") if name in state},
        }
        LOG.info("request", extra={"fields": fields})
