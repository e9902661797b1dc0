"""A server: its options, which the command line gives it, and its start."""

import os
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic import StringConstraints as Text

from contrasent.errors import ConfigError, require_extra
from contrasent.files import scratch
from contrasent.options import InPrecision, Loading, Named
from contrasent.settings import Spelling, settings, shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import FastAPI

_PACKAGES = ("cachetools", "fastapi_offline", "httptools", "orjson", "prometheus_client", "uvicorn")


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

    api_key: Annotated[
        Annotated[str, Text(strip_whitespace=True, min_length=1)] | None,
        Spelling(variable="CONTRASENT_API_KEY"),
    ] = Field(None, repr=False)
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
        from contrasent.serve.processes import bind, serve

        with closing(bind(options)) as bound:
            make = _maker(options)
            log_json()
            serve(make, options, bound)


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


def _maker(options: ServeOptions) -> "Callable[[], FastAPI]":
    """Load everything, and return what builds the application of a process."""
    import torch

    from contrasent.model import load_encoder
    from contrasent.search import MILVUS, Index
    from contrasent.serve.application import Metrics, build
    from contrasent.serve.batching import Batcher
    from contrasent.serve.routes import EmbeddingRoutes, IndexRoutes

    index = None if options.index is None else Index.open(options.index)
    encoder = load_encoder(options.model, **shared(options, Loading))
    precision = str(options.precision)
    in_milvus = index is not None and index.kind in MILVUS
    on_device = str(getattr(encoder, "device", "cpu")) != "cpu"
    if options.workers > 1 and (in_milvus or on_device):
        raise ConfigError(
            "several --workers share a model on the CPU (--device cpu), and no Milvus Lite"
        )
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
