"""``contrasent serve``."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contrasent.cli.options import Loading, Model, Precision, grouped

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import ThreadPoolExecutor

    from contrasent.model.loading import LoadedEncoder
    from contrasent.search.index import Index
    from contrasent.serve.application import ServerSettings
    from contrasent.serve.batch_settings import BatchSettings
    from contrasent.serve.batching import Batcher
    from contrasent.serve.telemetry import Metrics
    from contrasent.serve.vector_cache import VectorCache

_PACKAGES = ("fastapi", "fastapi_offline", "uvicorn", "httptools", "orjson", "prometheus_client")


@dataclass(frozen=True)
class Serving(Loading):
    """The options of the server beside those of loading."""

    index: Annotated[
        Path | None, typer.Option(metavar="DIR", help="An index that MODEL built, to search.")
    ] = None
    beside: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="An index by another encoder, to show its neighbours beside."
        ),
    ] = None
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for all of this machine.")
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any that is free.")] = 8080
    workers: Annotated[
        int, typer.Option(help="Processes that answer; they share the pages of the weights.")
    ] = 1
    threads: Annotated[
        int | None, typer.Option(help="Threads of matrix products; else the cores, shared out.")
    ] = None
    name: Annotated[
        str | None, typer.Option(help="Name of the model in answers; else the end of MODEL.")
    ] = None
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="CONTRASENT_API_KEY",
            show_envvar=True,
            help="What clients must send as a bearer token.",
        ),
    ] = None
    bitwise: Annotated[
        bool,
        typer.Option(
            "--bitwise", help="Give bitwise the same vectors whatever else is in the batch."
        ),
    ] = False
    batch_tokens: Annotated[int, typer.Option(help="Tokens computed at once.")] = 4096
    max_wait: Annotated[
        float, typer.Option(help="Seconds of work in the queue from which requests get 429.")
    ] = 0.5
    cache_mb: Annotated[
        int, typer.Option("--cache-mb", help="Megabytes of embeddings to keep; 0 for none.")
    ] = 256
    shared_cache: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="A Redis or Valkey server for embeddings, as redis://HOST:6379, which workers and "
            "other servers share.",
        ),
    ] = None
    payload_limit: Annotated[int, typer.Option(help="Bytes of a request's body.")] = 16_000_000
    max_texts: Annotated[int, typer.Option(help="Texts of a request.")] = 10_000
    max_requests: Annotated[int, typer.Option(help="Requests answered at the same time.")] = 512
    drain: Annotated[
        float, typer.Option(help="Seconds for requests in progress after SIGTERM.")
    ] = 30.0
    cors: Annotated[
        list[str] | None,
        typer.Option("--cors", metavar="ORIGIN", help="A web origin that may call; repeatable."),
    ] = None
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name by which it may be called, as *.example.org; repeatable. Else localhost, "
            "its address, and with 0.0.0.0 every number.",
        ),
    ] = None
    raw_token_ids: Annotated[
        bool,
        typer.Option("--raw-token-ids", help="Take token ids that lack the special tokens."),
    ] = False


@grouped
def serve(*, model: Model, serving: Serving, precision: Precision = "auto") -> None:
    """Serve embeddings and search over HTTP.

    The routes are OpenAI's (/v1/embeddings) and text-embeddings-inference's (/embed); /docs lists
    all of them, and / is a page for people. With --index texts are searched, added and removed.
    SIGTERM ends the server after it has answered what it has begun.
    """
    from contrasent.errors import MissingExtraError, install_command

    missing = [package for package in _PACKAGES if find_spec(package) is None]
    if missing:
        raise MissingExtraError(f"a server needs {', '.join(missing)}: {install_command('serve')}")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the cores belong to the products
    with TemporaryDirectory(prefix="contrasent-metrics-") as folder:
        if serving.workers > 1:
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # before its library is imported
        _serve(model, serving, precision)


def _serve(model: str, serving: Serving, precision: str) -> None:
    from contrasent.serve.processes import Listening, serve
    from contrasent.serve.telemetry import log_json

    settings = _settings(model, serving)
    listening = Listening(
        host=serving.host,
        port=serving.port,
        workers=serving.workers,
        drain_seconds=serving.drain,
    )
    with closing(listening.bind()) as bound:
        make = _maker(settings, model, serving, precision)
        undo = log_json()
        try:
            serve(make, listening, bound)
        finally:
            undo()


def application(model: str, precision: str = "auto", **options: Any) -> Any:
    """The ASGI application of ``contrasent serve``, to be run by another server, as Ray Serve.

    It loads the model. ``options`` are those of the command, as ``index=Path("my-index")``; what
    the other server does (host, port, workers, drain) has no effect.
    """
    import torch

    serving = Serving(**{"api_key": os.environ.get("CONTRASENT_API_KEY"), **options})
    threads = torch.get_num_threads()
    try:
        return _maker(_settings(model, serving), model, serving, precision)()
    finally:
        torch.set_num_threads(threads)


def _settings(model: str, serving: Serving) -> ServerSettings:
    from contrasent.serve.application import ServerSettings

    path = Path(model)
    return ServerSettings(
        name=serving.name or (path.resolve() if path.name in ("", "..") else path).name,
        api_key=serving.api_key,
        payload_limit=serving.payload_limit,
        max_texts=serving.max_texts,
        max_requests=serving.max_requests,
        cors=tuple(serving.cors or ()),
        hosts=(serving.host, *(serving.allowed_host or ())),
        raw_ids=serving.raw_token_ids,
    )


def _maker(
    settings: ServerSettings, model: str, serving: Serving, precision: str
) -> Callable[[], Any]:
    """Load everything, and return what builds the application of a process."""
    import torch

    from contrasent.errors import ConfigError
    from contrasent.search.makers import encoder_of
    from contrasent.serve.application import Service, build
    from contrasent.serve.batch_settings import BatchSettings, computing_thread
    from contrasent.serve.embedding_routes import EmbeddingRoutes
    from contrasent.serve.index_routes import IndexRoutes, Searched
    from contrasent.serve.telemetry import Metrics
    from contrasent.serve.vector_cache import SharedCache, VectorCache

    batching = BatchSettings(
        precision=precision,
        batch_tokens=serving.batch_tokens,
        max_wait=serving.max_wait,
        bitwise=serving.bitwise,
    )
    threads = serving.threads
    if threads is None:
        threads = max(1, len(os.sched_getaffinity(0)) // serving.workers)
    how = batching, Metrics(), computing_thread(threads)
    torch.set_num_threads(1)  # until the thread that computes has its own
    shared = None if serving.shared_cache is None else SharedCache(serving.shared_cache)
    indexes = _indexes(serving)
    encoder = serving.load(model)
    if serving.workers > 1 and str(getattr(encoder, "device", "cpu")) != "cpu":
        raise ConfigError("several --workers share a model on the CPU only; add --device cpu")
    for index in indexes[:1]:
        index.require(encoder)
        precision = index.manifest.encoder.precision if precision == "auto" else precision
    batcher = _batcher(encoder, precision, VectorCache(serving.cache_mb * 1_000_000, shared), *how)
    if shared is not None:
        shared.hold(encoder, batcher.settings.precision, serving.bitwise)
    beside, names = None, [settings.name]
    for index in indexes[1:]:
        other, used = encoder_of(index, device=serving.device), index.manifest.encoder.precision
        beside = _batcher(other, used, VectorCache(0), *how)
        names.append(Path(other.name).name)

    def make() -> Any:
        service = Service(settings, batcher, batcher.metrics, beside)
        embeddings = [EmbeddingRoutes(replace(service, batcher=each)) for each in service.batchers]
        searched = map(Searched, indexes, embeddings, names)
        routes = IndexRoutes(service, *searched)
        return build(service, embeddings[0].router(), routes.router())

    return make


def _indexes(serving: Serving) -> list[Index]:
    """The indexes; ConfigError if not all workers could use them, or the engine."""
    from contrasent.errors import ConfigError
    from contrasent.search.index import Index
    from contrasent.search.nearest import MILVUS

    if serving.beside is not None and serving.index is None:
        raise ConfigError("--beside shows a second index: name the first with --index")
    folders = (serving.index, serving.beside)
    indexes = [Index.open(folder) for folder in folders if folder is not None]
    if serving.workers == 1:
        return indexes
    if any(index.kind in MILVUS for index in indexes):
        raise ConfigError("one process at a time uses Milvus Lite: leave --workers out")
    if "openvino" in (serving.engine, *(index.manifest.encoder.engine for index in indexes)):
        raise ConfigError("OpenVINO does not live through a fork: leave --workers out")
    return indexes


def _batcher(
    encoder: LoadedEncoder,
    precision: str,
    cache: VectorCache,
    batching: BatchSettings,
    metrics: Metrics,
    computer: ThreadPoolExecutor,
) -> Batcher:
    """What embeds with a model, its weights laid out."""
    from contrasent.serve.batching import Batcher

    settings = replace(batching, precision=encoder.resolve_precision(precision))
    batcher = Batcher(encoder, settings, cache, metrics, computer)
    batcher.warm_up()
    return batcher
