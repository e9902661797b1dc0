"""Servers: their options and start; processes, which share a socket and the weights; and tools.

Tools for agents are those over indexes, by the official SDK of the Model Context Protocol.
"""

import gc
import hmac
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from math import ceil
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AnyHttpUrl, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic import StringConstraints as Text

from contrasent.errors import ConfigError, ContrasentError, pick, require_extra
from contrasent.files import scratch
from contrasent.options import InPrecision, Loading, MovedEncoder, Named
from contrasent.settings import ARGUMENT, Spelling, refuse_unused, settings, shared

if TYPE_CHECKING:
    from fastapi import FastAPI
    from mcp.server import MCPServer
    from uvicorn import Server

LOG = logging.getLogger("contrasent.serve")

_PACKAGES = ("cachetools", "fastapi_offline", "httptools", "orjson", "prometheus_client", "uvicorn")
_BACKLOG = 2048
_SWITCH_SECONDS = 0.0005  # until the event loop lets the computing thread start an operator
_RESTART_SECONDS, _POLL_SECONDS = 1.0, 0.2
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_IDLE_SECONDS = 75  # of a connection without a request: longer than load balancers keep theirs
_Key = Annotated[str, Text(strip_whitespace=True, min_length=1)] | None


@settings
class ServeOptions(Named, Loading, InPrecision):
    """Options of ``serve``."""

    index: Annotated[Path | None, Spelling(metavar="DIR")] = None
    """An index that MODEL built, to search."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all of this machine."""

    port: Annotated[NonNegativeInt, Field(lt=2**16)] = 8080
    """Port to listen on; 0 for any that is free."""

    workers: PositiveInt = 1
    """Processes that answer; they share the pages of the weights."""

    threads: PositiveInt | None = None
    """Threads of matrix products; else the cores, shared out."""

    name: str | None = None
    """Name of the model in answers; else the end of MODEL."""

    api_key: Annotated[_Key, Spelling(variable="CONTRASENT_API_KEY")] = Field(None, repr=False)
    """The bearer token that clients must send."""

    bitwise: bool = False
    """Give a text bitwise the same vector each time: compute one at a time."""

    batch_tokens: PositiveInt = 4096
    """Tokens computed at once."""

    max_wait: PositiveFloat = 0.5
    """Seconds of work in the queue from which requests get 429."""

    cache_mb: NonNegativeInt = 256
    """Megabytes of embeddings to keep; 0 for none."""

    payload_limit: PositiveInt = 16000000
    """Bytes of a request's body."""

    max_texts: PositiveInt = 10000
    """Texts of a request."""

    max_requests: PositiveInt = 512
    """Requests answered at the same time."""

    drain: NonNegativeFloat = 30.0
    """Seconds for requests in progress after SIGTERM."""

    cors: Annotated[list[str] | None, Spelling(metavar="ORIGIN")] = None
    """A web origin that may call; repeatable."""

    allowed_host: Annotated[list[str] | None, Spelling(metavar="NAME")] = None
    """A name by which it may be called, as *.example.org; repeatable. Else localhost, its address,
    and with 0.0.0.0 every number."""

    @property
    def served_name(self) -> str:
        """The name of the model in answers."""
        return self.name or Path(self.model).resolve().name


def run_server(options: ServeOptions) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    require_extra("a server", "serve", *_PACKAGES)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the cores belong to the products
    with scratch("metrics") if options.workers > 1 else nullcontext() as folder:
        if folder is not None:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # before its library is imported
        from contrasent.serve.application import log_json

        with closing(bind(options.host, options.port)) as bound:
            make = _maker(options)
            log_json()
            _serve(make, options, bound)


def asgi_application(model: str, **options: Any) -> "FastAPI":
    """The ASGI application of ``contrasent serve``, to be run by another server, as Ray Serve.

    It loads the model. ``options`` are those of the command, as ``index=Path("my-index")``; what
    the other server does (host, port, workers, drain) has no effect.
    """
    import torch

    given = {"api_key": os.environ.get("CONTRASENT_API_KEY"), **options}
    threads = torch.get_num_threads()
    try:
        return _maker(ServeOptions(model=model, **given))()
    finally:
        torch.set_num_threads(threads)


def _maker(options: ServeOptions) -> Callable[[], "FastAPI"]:
    """Load everything, and return what builds the application of a process."""
    import torch

    from contrasent.model import load_encoder
    from contrasent.search import LITE, Index
    from contrasent.serve.application import Metrics, build
    from contrasent.serve.batching import Batcher
    from contrasent.serve.routes import EmbeddingRoutes, IndexRoutes

    index = None if options.index is None else Index.open(options.index)
    encoder = load_encoder(options.model, **shared(options, Loading))
    precision = str(options.precision)
    in_lite = index is not None and index.manifest.collection == LITE
    on_device = str(getattr(encoder, "device", "cpu")) != "cpu"
    if options.workers > 1 and (in_lite or on_device):
        what = "a model on the CPU (--device cpu), and no Milvus Lite"
        raise ConfigError(f"several --workers share {what}")
    if index is not None:
        index.require(encoder)
        precision = index.manifest.encoder.precision if precision == "auto" else precision
    precision = encoder.resolve_precision(precision)
    torch.set_num_threads(1)  # until the thread that computes has its own
    batcher = Batcher(encoder, options, precision, Metrics())
    batcher.warm_up()

    def make() -> "FastAPI":
        embedding = EmbeddingRoutes(batcher)
        routers = [embedding.router()]
        if index is not None:
            routers.append(IndexRoutes(index, embedding).router())
        return build(batcher, *routers)

    return make


def bind(host: str, port: int) -> socket.socket:
    """The socket, before anything expensive happens; ConfigError if it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio asks for it
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(_BACKLOG)  # those that come now wait for the model
    except OSError as error:
        bound.close()
        what = f"cannot listen on {host} port {port}: {error.strerror or error}"
        raise ConfigError(f"{what}; choose others with --host and --port") from error
    return bound


def _serve(make: Callable[[], "FastAPI"], options: ServeOptions, bound: socket.socket) -> None:
    """Answer requests until SIGTERM or Ctrl-C; those that have begun are answered to the end."""
    import uvicorn

    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    for number in _SIGNALS:  # until others take them, nothing has begun
        signal.signal(number, lambda *_: os._exit(0))
    LOG.info("listening", extra={"fields": {"url": f"http://{shown}:{port}/"}})
    config = uvicorn.Config(
        make,
        factory=True,
        loop="asyncio",  # uvloop takes one new connection a turn, so that they wait for seconds
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=ceil(options.drain),
    )
    server = uvicorn.Server(config)
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.freeze()  # a collection that walks through all modules takes a third of a second
    if options.workers == 1:
        _run(server, bound)
    else:
        _supervise(server, options.workers, bound)


def _run(server: "Server", bound: socket.socket) -> None:
    def stop(*_: object) -> None:  # uvicorn has not begun, or has drained and raises it again
        server.should_exit = True

    for number in _SIGNALS:
        signal.signal(number, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    server.run(sockets=[bound])


def _supervise(server: "Server", count: int, bound: socket.socket) -> None:
    """Keep ``count`` forks of this process running until a signal, which each of them drains at.

    Forks, not uvicorn's own workers: those load the weights anew, and outlive a killed parent.
    """
    from prometheus_client.multiprocess import mark_process_dead

    context = get_context("fork")
    workers: list[ForkProcess] = []
    signals: list[int] = []
    for number in _SIGNALS:
        signal.signal(number, lambda number, _: signals.append(number))
    while not signals:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until each has its own handlers
        for _ in range(count - len(workers)):
            workers.append(context.Process(target=_work, args=(server, bound, os.getpid())))
            workers[-1].start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        wait([worker.sentinel for worker in workers], _POLL_SECONDS)
        for worker in [worker for worker in workers if worker.exitcode is not None]:
            workers.remove(worker)
            mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
            fields = {"pid": worker.pid, "exit": worker.exitcode}
            LOG.error("a worker ended and is started again", extra={"fields": fields})
            time.sleep(_RESTART_SECONDS)
    bound.close()  # else connections that nobody accepts wait until the last worker ends
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join()


def _work(server: "Server", bound: socket.socket, parent: int) -> None:
    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=end_with_parent, daemon=True).start()
    try:
        _run(server, bound)
    except Exception as error:
        LOG.error("worker failed", exc_info=error)
        os._exit(1)


_Count = Annotated[int, Field(ge=1, le=1000)]
_Hits = list[dict[str, Any]]


@settings
class McpOptions(MovedEncoder):
    """Options of ``mcp``."""

    index: Annotated[list[Path], ARGUMENT]
    """Folders made by 'contrasent index build'; agents know an index by its folder's name."""

    allow_add: bool = False
    """Let agents add texts."""

    port: Annotated[PositiveInt, Field(lt=2**16)] | None = None
    """Answer by streamable HTTP at http://HOST:PORT/mcp; else on standard input and output."""

    host: Annotated[str, Spelling(of=ServeOptions)] = "127.0.0.1"

    api_key: Annotated[_Key, Spelling(of=ServeOptions, variable="CONTRASENT_API_KEY")] = Field(
        None, repr=False
    )


def run_mcp(options: McpOptions) -> None:
    """Answer agents until the input ends, or over HTTP until SIGTERM or Ctrl-C."""
    how: dict[str, Any] = {}
    if options.port is None:
        refuse_unused(options, ["host"], "without --port there is no address")
    else:
        bind(options.host, options.port).close()
        how = {"transport": "streamable-http", "host": options.host, "port": options.port}
    require_extra("a server for agents", "mcp", "mcp")
    _tools(options).run(**how)


def _tools(options: McpOptions) -> "MCPServer[Any]":
    from mcp.server import MCPServer
    from mcp.server.auth.provider import AccessToken
    from mcp.server.auth.settings import AuthSettings
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase

    from contrasent.search import Index

    class Key:
        async def verify_token(self, token: str) -> AccessToken | None:
            same = hmac.compare_digest(token.encode("latin-1"), str(options.api_key).encode())
            return AccessToken(token=token, client_id="agent", scopes=[]) if same else None

    indexes, encoders, lock = dict[str, Index](), dict[str, Any](), Lock()
    about = list[str]()
    for path in options.index:
        index, name = Index.open(path), path.resolve().name
        name = str(path) if name in indexes else name
        indexes[name] = index
        fingerprint = index.manifest.encoder.fingerprint
        if fingerprint not in encoders:
            encoders[fingerprint] = index.encoder(options.encoder, options.device)
        columns = ", ".join(it for it in index.manifest.columns if it != "_file")
        about.append(f"{name} ({len(index)} texts, columns: {columns or 'none'})")

    @contextmanager
    def using(name: str) -> Iterator[tuple[Index, Any]]:
        """The newest state of an index, for one call at a time; the agent is told of mistakes."""
        with lock:
            try:
                index = indexes[pick("index", name, indexes)]
                index.refresh_if_written()
                yield index, encoders[index.manifest.encoder.fingerprint]
            except (ContrasentError, OSError) as error:
                raise ToolError(str(error)) from error

    known = "; ".join(about)
    named = Field(description=f"One of {known}", json_schema_extra={"enum": [*indexes]})
    first = next(iter(indexes))
    ArgModelBase.model_config["extra"] = "forbid"  # the library drops what no tool takes
    auth = AuthSettings(issuer_url=AnyHttpUrl("http://localhost"), resource_server_url=None)
    how: dict[str, Any] = {"token_verifier": Key(), "auth": auth} if options.api_key else {}
    how["instructions"] = f"Search texts by meaning and by words: {known}."
    server: MCPServer[Any] = MCPServer("contrasent", **how)

    @server.tool()
    def search(
        query: str,
        index: Annotated[str, named] = first,
        top_k: _Count = 10,
        mode: Literal["auto", "dense", "words", "hybrid"] = "auto",
        filter: str | None = None,  # noqa: A002 - as everywhere
    ) -> _Hits:
        """Find texts for a query, best first: by meaning (dense), by words, or by both (hybrid).

        A filter is a condition on columns of the index: year >= 2020 and `file name` = "faq".
        """
        with using(index) as (opened, encoder):
            [hits] = opened.search(encoder, [query], top_k, mode=mode, filter=filter)
        return [hit.known for hit in hits]

    @server.tool()
    def similar(id: str, index: Annotated[str, named] = first, top_k: _Count = 10) -> _Hits:  # noqa: A002
        """Find the texts nearest in meaning to the one that has an id, best first."""
        with using(index) as (opened, _):
            return [hit.known for hit in opened.similar(id, top_k)]

    if options.allow_add:

        @server.tool()
        def add(
            texts: list[str], ids: list[str] | None = None, index: Annotated[str, named] = first
        ) -> int:
            """Add texts, with ids if the others have ids of their own, and count them all."""
            with using(index) as (opened, encoder):
                opened.add(encoder, texts, ids)
                return len(opened)

    return server
