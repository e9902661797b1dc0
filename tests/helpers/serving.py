"""A server of a tiny encoder, on a free port of this machine, in a thread of this process."""

import json
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn

from contrasent.serve.application import ServerSettings, Service, build
from contrasent.serve.batching import Batcher, BatchSettings
from contrasent.serve.embedding_routes import EmbeddingRoutes
from contrasent.serve.processes import Listening
from contrasent.serve.telemetry import Metrics
from contrasent.serve.vector_cache import VectorCache


def batcher_of(encoder, *, cache=1_000_000, computer=None, **changes):
    """A batcher that has not been started."""
    settings = {"batch_tokens": 64, "max_wait": 60.0, "bitwise": False, "precision": "fp32"}
    settled = BatchSettings(**settings | changes)
    computer = computer or ThreadPoolExecutor(1)
    return Batcher(encoder, settled, VectorCache(cache), Metrics(), computer)


@dataclass(frozen=True)
class Answer:
    """What the server sent."""

    status: int
    headers: dict
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


@dataclass(frozen=True)
class Running:
    """A server that runs."""

    url: str
    batcher: Batcher

    def call(self, path, body=None, **headers):
        """Send ``body``, bytes or what JSON can say, or get if there is none."""
        return call(self.url + path, body, **headers)


def call(url, body=None, **headers):
    """The answer of a server, an error or not."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data, {"content-type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return Answer(answer.status, dict(answer.headers), answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, dict(error.headers), error.read())


@contextmanager
def serving(batcher, routers=lambda _: (), beside=None, **settings):
    """Serve until the end of the block."""
    service = Service(ServerSettings(name="tiny", **settings), batcher, batcher.metrics, beside)
    for each in service.batchers:
        each.warm_up()
    app = build(service, EmbeddingRoutes(service).router(), *routers(service))
    bound = Listening(host="127.0.0.1", port=0, workers=1).bind()
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield Running(f"http://127.0.0.1:{bound.getsockname()[1]}", batcher)
    finally:
        server.should_exit = True
        thread.join()
        bound.close()
