"""``contrasent serve``."""

from __future__ import annotations

import os
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Any

from contrasent.cli.parameters import load
from contrasent.errors import ConfigError, require_extra
from contrasent.files import scratch
from contrasent.serve import ServeOptions
from contrasent.settings import settings

if TYPE_CHECKING:
    from collections.abc import Callable

_PACKAGES = ("fastapi", "fastapi_offline", "uvicorn", "httptools", "orjson", "prometheus_client")


@settings
class ServeCommand(ServeOptions):
    """Serve embeddings and search over HTTP.

    The routes are OpenAI's (/v1/embeddings) and text-embeddings-inference's (/embed); /docs lists
    all of them, and / is a page for people. With --index texts are searched, added and removed.
    SIGTERM ends the server after it has answered what it has begun.
    """

    def __call__(self) -> None:
        require_extra("a server", "serve", *_PACKAGES)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the cores belong to the products
        with scratch("metrics") if self.workers > 1 else nullcontext() as folder:
            if folder is not None:
                os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # before its library is imported
            from contrasent.serve.application import log_json
            from contrasent.serve.processes import bind, serve

            with closing(bind(self)) as bound:
                make = _maker(self)
                log_json()
                serve(make, self, bound)


def application(model: str, **options: Any) -> Any:
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


def _maker(options: ServeOptions) -> Callable[[], Any]:
    """Load everything, and return what builds the application of a process."""
    import torch

    from contrasent.search.index import Index
    from contrasent.search.nearest import MILVUS
    from contrasent.serve.application import Metrics, Service, build
    from contrasent.serve.batching import Batcher, SharedCache
    from contrasent.serve.routes import EmbeddingRoutes, IndexRoutes

    index = None if options.index is None else Index.open(options.index)
    encoder, precision = load(options, options.model), str(options.precision)
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
    url, shared = options.shared_cache, None
    if url is not None:
        shared = SharedCache(url, encoder, precision, options.bitwise)
    torch.set_num_threads(1)  # until the thread that computes has its own
    batcher = Batcher(encoder, options, precision, Metrics(), shared)
    batcher.warm_up()

    def make() -> Any:
        service = Service(options, batcher)
        embedding = EmbeddingRoutes(service)
        routers = [embedding.router()]
        if index is not None:
            routers.append(IndexRoutes(service, index, embedding).router())
        return build(service, *routers)

    return make
