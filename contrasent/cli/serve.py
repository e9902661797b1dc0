"""``contrasent serve``."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from contrasent.cli.parameters import load
from contrasent.errors import ConfigError, MissingExtraError, install_command
from contrasent.options import InPrecision, Loading, Named
from contrasent.settings import Spelling, settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from contrasent.model.loading import LoadedEncoder
    from contrasent.serve.application import ServerSettings
    from contrasent.serve.batching import Batcher

_PACKAGES = ("fastapi", "fastapi_offline", "uvicorn", "httptools", "orjson", "prometheus_client")


@settings
class ServeCommand(Named, Loading, InPrecision):
    """Serve embeddings and search over HTTP.

    The routes are OpenAI's (/v1/embeddings) and text-embeddings-inference's (/embed); /docs lists
    all of them, and / is a page for people. With --index texts are searched, added and removed.
    SIGTERM ends the server after it has answered what it has begun.
    """

    index: Annotated[Path | None, Spelling(metavar="DIR")] = None
    """An index that MODEL built, to search."""

    beside: Annotated[Path | None, Spelling(metavar="DIR")] = None
    """An index by another encoder, to show its neighbours beside."""

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

    api_key: Annotated[str | None, Spelling(variable="CONTRASENT_API_KEY")] = None
    """What clients must send as a bearer token."""

    bitwise: bool = False
    """Give bitwise the same vectors whatever else is in the batch."""

    batch_tokens: PositiveInt = 4096
    """Tokens computed at once."""

    max_wait: PositiveFloat = 0.5
    """Seconds of work in the queue from which requests get 429."""

    cache_mb: NonNegativeInt = 256
    """Megabytes of embeddings to keep; 0 for none."""

    shared_cache: Annotated[str | None, Spelling(metavar="URL")] = None
    """A Redis or Valkey server for embeddings, as redis://HOST:6379, which workers and other
    servers share."""

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

    raw_token_ids: bool = False
    """Take token ids that lack the special tokens."""

    def __call__(self) -> None:
        missing = [package for package in _PACKAGES if find_spec(package) is None]
        if missing:
            raise MissingExtraError(
                f"a server needs {', '.join(missing)}: {install_command('serve')}"
            )
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the cores belong to the products
        with TemporaryDirectory(prefix="contrasent-metrics-") as folder:
            if self.workers > 1:
                os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # before its library is imported
            from contrasent.serve.processes import Listening, serve
            from contrasent.serve.telemetry import log_json

            listening = Listening(
                host=self.host, port=self.port, workers=self.workers, drain_seconds=self.drain
            )
            settings = _settings(self)
            with closing(listening.bind()) as bound:
                make = _maker(self, settings)
                undo = log_json()
                try:
                    serve(make, listening, bound)
                finally:
                    undo()


def application(model: str, **options: Any) -> Any:
    """The ASGI application of ``contrasent serve``, to be run by another server, as Ray Serve.

    It loads the model. ``options`` are those of the command, as ``index=Path("my-index")``; what
    the other server does (host, port, workers, drain) has no effect.
    """
    import torch

    given = {"api_key": os.environ.get("CONTRASENT_API_KEY"), **options}
    serving, threads = ServeCommand(model=model, **given), torch.get_num_threads()
    try:
        return _maker(serving, _settings(serving))()
    finally:
        torch.set_num_threads(threads)


def _settings(options: ServeCommand) -> ServerSettings:
    from contrasent.serve.application import ServerSettings

    path = Path(options.model)
    return ServerSettings(
        name=options.name or (path.resolve() if path.name in ("", "..") else path).name,
        api_key=options.api_key,
        payload_limit=options.payload_limit,
        max_texts=options.max_texts,
        max_requests=options.max_requests,
        cors=tuple(options.cors or ()),
        hosts=(options.host, *(options.allowed_host or ())),
        raw_ids=options.raw_token_ids,
    )


def _maker(options: ServeCommand, settings: ServerSettings) -> Callable[[], Any]:
    """Load everything, and return what builds the application of a process."""
    import torch

    from contrasent.search.index import Index
    from contrasent.search.nearest import MILVUS
    from contrasent.serve.application import Service, build
    from contrasent.serve.batching import Batcher, BatchSettings, computing_thread
    from contrasent.serve.embedding_routes import EmbeddingRoutes
    from contrasent.serve.index_routes import IndexRoutes, Searched
    from contrasent.serve.telemetry import Metrics
    from contrasent.serve.vector_cache import SharedCache, VectorCache

    batching = BatchSettings(
        precision=options.precision,
        batch_tokens=options.batch_tokens,
        max_wait=options.max_wait,
        bitwise=options.bitwise,
    )
    threads = options.threads
    if threads is None:
        threads = max(1, len(os.sched_getaffinity(0)) // options.workers)
    metrics, computer = Metrics(), computing_thread(threads)
    torch.set_num_threads(1)  # until the thread that computes has its own

    def batcher_of(encoder: LoadedEncoder, precision: str, cache: VectorCache) -> Batcher:
        used = replace(batching, precision=encoder.resolve_precision(precision))
        batcher = Batcher(encoder, used, cache, metrics, computer)
        batcher.warm_up()
        return batcher

    shared = None if options.shared_cache is None else SharedCache(options.shared_cache)
    precision, folders = str(options.precision), (options.index, options.beside)
    indexes = [Index.open(folder) for folder in folders if folder is not None]
    if options.workers > 1 and any(index.kind in MILVUS for index in indexes):
        raise ConfigError("one process at a time uses Milvus Lite: leave --workers out")
    encoder = load(options, options.model)
    if options.workers > 1 and str(getattr(encoder, "device", "cpu")) != "cpu":
        raise ConfigError("several --workers share a model on the CPU only; add --device cpu")
    for index in indexes[:1]:
        index.require(encoder)
        precision = index.manifest.encoder.precision if precision == "auto" else precision
    batcher = batcher_of(encoder, precision, VectorCache(options.cache_mb * 1_000_000, shared))
    if shared is not None:
        shared.hold(encoder, batcher.settings.precision, options.bitwise)
    beside, names = None, [settings.name]
    for index in indexes[1:]:
        other = index.encoder(device=options.device)
        beside = batcher_of(other, index.manifest.encoder.precision, VectorCache(0))
        names.append(Path(other.name).name)

    def make() -> Any:
        service = Service(settings, batcher, metrics, beside)
        embeddings = [EmbeddingRoutes(replace(service, batcher=each)) for each in service.batchers]
        routes = IndexRoutes(service, *map(Searched, indexes, embeddings, names))
        return build(service, embeddings[0].router(), routes.router())

    return make
