"""The application: what every request passes, how refusals look, metrics and the log."""

import asyncio
import hmac
import logging
import os
import re
import reprlib
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from fnmatch import fnmatchcase
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import orjson
import prometheus_client as prometheus
import yaml
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi_offline import FastAPIOffline
from prometheus_client import Counter, Gauge, Histogram, multiprocess
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import FileResponse, PlainTextResponse
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from contrasent import __version__, errors
from contrasent.files import BusyError
from contrasent.serve.batching import Batcher, OverloadedError, StoppedError
from contrasent.serve.server import LOG

T = TypeVar("T")

_PAGE = Path(__file__).parent / "page"
_POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
"""The page runs and loads nothing from elsewhere."""
_PUBLIC = re.compile(r"/(health|ping|page/.*|docs|openapi\.json|static-offline-docs/.*)?")
"""Paths that need no key: they tell nothing, and a page must load to ask for the key."""
_REQUEST_ID = re.compile(rb"[\w.:-]{1,128}", re.ASCII)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_TOO_MANY, _FAULT = 429, 500
_POLL_SECONDS = 0.5
_BODY_SECONDS, _LINGER_SECONDS = 30.0, 2.0  # for a body, and for what is left of one too large
_ROWS = yaml.safe_load(Path(__file__).with_name("interface.yaml").read_text(encoding="utf-8"))
_REFUSALS: dict[int, list[str]] = _ROWS["refusals"]  # by status: TEI's name, and why
_STATUSES: tuple[tuple[Any, int, str | None], ...] = (
    (OverloadedError, _TOO_MANY, None),
    (StoppedError, 503, None),
    (BusyError, 503, "Overloaded"),
    ((errors.DataError, errors.ConfigError), 422, None),
    (errors.CheckpointError, 424, None),
    (errors.ContrasentError, _FAULT, None),
)
_METRICS: dict[tuple[Any, str], dict[str, Any]] = {
    (Counter, "inc"): _ROWS["counters"],
    (Gauge, "set"): _ROWS["gauges"],
    (Histogram, "observe"): _ROWS["histograms"],
}
"""Classes of metrics, and how a value is put into one: the arguments of each, by its name."""


class Metrics:
    """Metrics of the server for Prometheus, of this process or, with workers, of all of them."""

    def __init__(self) -> None:
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry, self._all = prometheus.CollectorRegistry(), dict[str, tuple[Any, str]]()
        for (kind, verb), rows in _METRICS.items():
            for name, row in rows.items():
                self._all[name] = kind(name, registry=self._registry, **row), verb

    def put(self, *labels: str, **values: float) -> None:
        """Add to counters, set gauges and put values into histograms."""
        for name, value in values.items():
            metric, verb = self._all[name]
            getattr(metric.labels(*labels) if labels else metric, verb)(value)

    def page(self) -> bytes:
        """The text that Prometheus reads."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return prometheus.generate_latest(self._registry)
        together = prometheus.CollectorRegistry()
        multiprocess.MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return prometheus.generate_latest(together)


class JsonLines(logging.Formatter):
    """One JSON object per line of the log; ``extra={"fields": {...}}`` adds to it."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def log_json() -> None:
    """Write the log of the server, and uvicorn's, as JSON lines to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for logger in (LOG, logging.getLogger("uvicorn")):
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


class Refusal(BaseModel):
    """TEI's body of an error; OpenAI's routes have OpenAI's ``error`` in it."""

    error: str | dict[str, str | None]
    error_type: str


class RefusalError(Exception):
    """A request that is not answered as it was asked."""

    def __init__(self, status: int, message: str, kind: str | None = None) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind or _REFUSALS.get(status, ("Validation",))[0]


def refuse(*reasons: tuple[object, int, str]) -> None:
    """Refuse a request for the first reason that holds."""
    for holds, status, message in reasons:
        if holds:
            raise RefusalError(status, message, "Validation" if status == 400 else None)


class ClientGoneError(Exception):
    """The client closed the connection before its answer was there."""


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """Await ``work``, but cancel it when the client closes the connection."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=_POLL_SECONDS))[0]:
            if await request.is_disconnected():
                raise ClientGoneError
        return task.result()
    finally:
        task.cancel()


def build(batcher: Batcher, *routers: Any) -> FastAPI:
    """The application with the given routers; its lifespan starts and stops the batcher."""
    options = batcher.options

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        await batcher.start()
        yield
        await batcher.close()

    app = FastAPIOffline(
        title="contrasent",
        summary=options.served_name,
        version=__version__,
        redoc_url=None,
        responses={
            status: {"model": Refusal, "description": why} for status, (_, why) in _REFUSALS.items()
        },
        lifespan=running,
    )
    for router in routers:
        app.include_router(router)

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        headers = {"Content-Security-Policy": f"{_POLICY}; frame-ancestors 'none'"}
        return FileResponse(_PAGE / "page.html", headers=headers)

    app.mount("/page", StaticFiles(directory=_PAGE))

    @app.get("/health", tags=["operations"], response_class=Response)
    @app.get("/ping", include_in_schema=False)
    @app.head("/health", include_in_schema=False)
    @app.head("/ping", include_in_schema=False)
    async def health() -> Response:
        """200 as long as texts can be embedded, else 503."""
        return Response(status_code=200 if batcher.is_healthy else 503)

    @app.get("/metrics", tags=["operations"], response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return PlainTextResponse(batcher.metrics.page(), media_type="text/plain; version=0.0.4")

    async def pass_on(_: Request, error: Exception) -> Response:
        raise error

    for kind in (HTTPException, RequestValidationError):  # not the routers' answers, but the gate's
        app.add_exception_handler(kind, pass_on)
    app.add_middleware(Gate, batcher=batcher)
    if options.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.cors,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "x-truncated", "retry-after"],
        )
    return app


def _refusal(error: BaseException) -> RefusalError:
    """How any error is told; of a fault only the log says more."""
    if isinstance(error, RefusalError):
        return error
    if isinstance(error, asyncio.CancelledError):  # the time to drain is over
        return RefusalError(503, "the server is stopping; send the request again")
    if isinstance(error, HTTPException):
        message = "the body is no plain JSON in UTF-8" if error.__cause__ else str(error.detail)
        return RefusalError(error.status_code, message, "Validation")
    if isinstance(error, RequestValidationError):
        return _mistake(error)
    if errors.is_out_of_memory(error):
        smaller = "smaller --batch-tokens, --cache-mb, --max-requests or --payload-limit"
        how = f"send fewer or shorter texts, or start the server with {smaller}"
        return RefusalError(503, f"there is not enough memory; {how}", "Overloaded")
    for cls, status, kind in _STATUSES:
        if isinstance(error, cls):
            return RefusalError(status, str(error), kind)
    return RefusalError(_FAULT, "the server failed; its log says why")


def _mistake(error: RequestValidationError) -> RefusalError:
    """The first mistake in a body, of the form that what was sent follows longest."""
    if isinstance(error.body, bytes):
        return RefusalError(415, "send JSON with Content-Type: application/json")
    first = max(error.errors(), key=lambda it: (len(it["loc"]), it["type"] == "too_short"))
    place, kind = ".".join(map(str, first["loc"])), first["type"]
    if kind in ("too_short", "string_pattern_mismatch"):
        return RefusalError(400, f"{place}: there is no text; send at least one")
    message = first["msg"].removeprefix("Value error, ")
    if kind not in ("missing", "json_invalid", "value_error"):
        message += f", not {reprlib.repr(first['input'])}"
    return RefusalError(422, f"{place}: {message}")


def _answer(scope: Scope, error: BaseException, body: bytes | None) -> Response:
    """TEI's body of an error, on OpenAI's routes with OpenAI's ``error``; a fault is logged."""
    refusal, state = _refusal(error), scope["state"]
    state["error"], message = refusal.kind, str(refusal)
    if refusal.status == _FAULT:
        LOG.error("fault", exc_info=error, extra={"fields": {"request_id": state["request_id"]}})
    headers = dict(getattr(error, "headers", None) or {})
    if body is None:
        headers["Connection"] = "close"
    if refusal.status == _TOO_MANY:
        headers["Retry-After"] = str(max(1, round(getattr(error, "retry_after", 1))))
    content: dict[str, Any] = {"error": message, "error_type": refusal.kind}
    if scope["path"].startswith("/v1/"):
        kind = "server_error" if refusal.status >= _FAULT else "invalid_request_error"
        named = {"message": message, "type": kind, "param": None, "code": refusal.kind.lower()}
        content |= {"message": message, "code": refusal.status, "error": named}
    return Response(orjson.dumps(content), refusal.status, headers, media_type="application/json")


class Gate:
    """What every request passes: its id, key, limits and body, then its metrics and log line."""

    def __init__(self, app: ASGIApp, batcher: Batcher) -> None:
        self.app, self.batcher, self.options = app, batcher, batcher.options
        self.in_progress = 0
        key = self.options.api_key
        self._key = None if key is None else f"bearer {key}".encode()

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
        self.in_progress += change
        self.batcher.metrics.put(contrasent_requests_in_progress=self.in_progress)

    def _require(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Refuse what a page of another site sends, also if its name became this address.

        Of the address of all interfaces any number is a name: another site's name can become none.
        """
        options, method, path = self.options, scope["method"], scope["path"]
        sent = (headers.get(it, b"") for it in (b"host", b"origin"))
        host, origin = (value.decode("latin-1").lower() for value in sent)
        name, is_number = "", False
        with suppress(ValueError):
            name = urlsplit(f"//{host}").hostname or ""
            is_number = bool(ip_address(name))
        names = [*_LOOPBACK, *map(str.lower, [options.host, *(options.allowed_host or ())])]
        any_number = is_number and not {"0.0.0.0", "::"}.isdisjoint(names)
        is_own = any_number or any(fnmatchcase(name, known) for known in names)
        allowed = origin.partition("://")[2] == host or {"*", origin} & {*(options.cors or ())}
        foreign = origin and not allowed and method not in ("GET", "HEAD", "OPTIONS")
        checks = path in ("/health", "/ping")  # load balancers call a server by any name
        full = self.in_progress > options.max_requests and not checks and path != "/metrics"
        if full:
            self.batcher.metrics.put(contrasent_rejected=1)
        scheme, *token = headers.get(b"authorization", b"").split(b" ", 1)
        given = b" ".join([scheme.lower(), *token])
        public = method == "GET" and _PUBLIC.fullmatch(path)
        locked = self._key is not None and not public and not hmac.compare_digest(given, self._key)
        unknown = f"{name[:90]!r} is no name of this server (--allowed-host)"
        sender = f"a page of {origin[:99]!r} may not send to {host[:99]!r}: --cors"
        refuse(
            (not checks and not is_own, 400, unknown),
            (not checks and foreign, 403, sender),
            (locked, 401, "send the server's API key: Authorization: Bearer KEY"),
            (full, _TOO_MANY, f"{options.max_requests} requests are being answered already"),
        )

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """The body; RefusalError if it is too large, or comes too late."""
        limit, stated = self.options.payload_limit, headers.get(b"content-length", b"0")
        size, parts, more = int(stated) if stated.isdigit() else 0, list[bytes](), True
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                while more and size <= limit:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGoneError
                    parts.append(message.get("body", b""))
                    more, size = message.get("more_body", False), sum(map(len, parts))
        except TimeoutError:
            refuse((True, 408, f"the body was not there within {_BODY_SECONDS:g} s"))
        if size > limit:
            with suppress(TimeoutError):  # what the client still sends: most read no answer before
                async with asyncio.timeout(0 if b"expect" in headers else _LINGER_SECONDS):
                    while more and (await receive()).get("more_body"):
                        pass
        refuse((size > limit, 413, f"the body has more than {limit} bytes; send fewer texts"))
        return b"".join(parts)

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        state, batcher = scope["state"], self.batcher
        # Here, not where they are read: that is one of several processes.
        metrics, cache = batcher.metrics, batcher.cache
        metrics.put(te_queue_size=batcher.queued, contrasent_queue_seconds=batcher.wait)
        metrics.put(contrasent_cache_bytes=cache.currsize, contrasent_cache_texts=len(cache))
        route = getattr(scope.get("route"), "path", "unmatched")
        metrics.put(route, str(status), contrasent_requests=1)
        metrics.put(route, contrasent_request_seconds=seconds)
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
