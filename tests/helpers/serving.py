"""A server of a tiny encoder, on a free port of this machine, in a thread of this process."""

import json
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import uvicorn

from contrasent.serve import ServeOptions
from contrasent.serve.application import Gate, Metrics, build
from contrasent.serve.batching import Batcher
from contrasent.serve.routes import EmbeddingRoutes, IndexRoutes
from contrasent.serve.server import bind


def batcher_of(encoder, *, precision="fp32", **changes):
    """A batcher that has not been started."""
    options = {"batch_tokens": 64, "max_wait": 60.0, "cache_mb": 1, "threads": 1, **changes}
    return Batcher(encoder, ServeOptions(model="tiny", **options), precision, Metrics())


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
    gate: Gate

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


def close(rows, expected):
    """Require vectors that a server gave to be the expected ones."""
    np.testing.assert_allclose(np.asarray(rows, np.float64), expected, atol=1e-5)


@contextmanager
def serving(batcher, index=None, **options):
    """Serve until the end of the block; with an ``index`` its routes and the page too."""
    batcher.options = replace(batcher.options, **options)
    batcher.warm_up()
    embedding = EmbeddingRoutes(batcher)
    routers = [embedding.router()]
    if index is not None:
        routers.append(IndexRoutes(index, embedding).router())
    app = build(batcher, *routers)
    bound = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        gate = app.middleware_stack
        while not isinstance(gate, Gate):
            gate = gate.app
        yield Running(f"http://127.0.0.1:{bound.getsockname()[1]}", batcher, gate)
    finally:
        server.should_exit = True
        thread.join()
        bound.close()
