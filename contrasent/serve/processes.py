"""Processes: one server, or several that share a socket and the pages of the weights."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess

import uvicorn
from fastapi import FastAPI
from prometheus_client import multiprocess as multiprocess_metrics
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from contrasent.errors import ConfigError
from contrasent.serve.telemetry import LOG

_BACKLOG = 2048
_SWITCH_SECONDS = 0.0005
"""The event loop lets the computing thread start its next operator after at most so long."""
_HEADER_SECONDS = 10.0
_RESTART_SECONDS, _POLL_SECONDS = 1.0, 0.2
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_IDLE_SECONDS = 75
"""How long a connection stays without a request: longer than load balancers keep theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where the server listens, and how it ends."""

    host: str
    port: int  # 0 for any that is free
    workers: int
    drain_seconds: float = 30.0  # for requests that are being answered when it is told to stop

    def bind(self) -> socket.socket:
        """The socket, before anything expensive happens; ConfigError if it cannot be had."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio asks for it
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((self.host, self.port))
        except OSError as error:
            bound.close()
            raise self.refused(error) from error
        return bound

    def refused(self, error: OSError) -> ConfigError:
        """What to tell of a port that cannot be had."""
        return ConfigError(
            f"cannot listen on {self.host} port {self.port}: {error.strerror or error}; "
            "choose others with --host and --port"
        )


class _Protocol(HttpToolsProtocol):
    """HTTP/1.1; a client that does not finish the head of a request in time is let go."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._wait()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def _wait(self) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(_HEADER_SECONDS, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()


def serve(make: Callable[[], FastAPI], listening: Listening, bound: socket.socket) -> None:
    """Answer requests until SIGTERM or Ctrl-C; those that have begun are answered to the end.

    ``make`` builds the application, in each worker after it was forked. ConfigError if another
    server listens on the port by now.
    """
    try:
        bound.listen(_BACKLOG)
    except OSError as error:  # another server took the port while this one loaded
        raise listening.refused(error) from error
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    for number in _SIGNALS:  # until others take them, nothing has begun
        signal.signal(number, lambda *_: os._exit(0))
    LOG.info("listening", extra={"fields": {"url": f"http://{shown}:{port}/"}})
    gc.freeze()  # a collection that walks through all modules takes a third of a second
    if listening.workers == 1:
        _run(make, listening, bound)
    else:
        _supervise(lambda: _run(make, listening, bound), listening.workers, bound)


def _run(make: Callable[[], FastAPI], listening: Listening, bound: socket.socket) -> None:
    server: uvicorn.Server | None = None

    def stop(*_: object) -> None:
        if server is None:  # nothing has begun
            os._exit(0)
        server.should_exit = True  # uvicorn has not begun, or has drained and raises it again

    for number in _SIGNALS:
        signal.signal(number, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    sys.setswitchinterval(_SWITCH_SECONDS)
    config = uvicorn.Config(
        make(),
        http=_Protocol,
        loop="asyncio",  # uvloop takes one new connection a turn, so that they wait for seconds
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=ceil(listening.drain_seconds),
    )
    server = uvicorn.Server(config)
    server.run(sockets=[bound])


def _supervise(run: Callable[[], None], count: int, bound: socket.socket) -> None:
    """Keep ``count`` forks of this process running until a signal, which each of them drains at.

    Forks, not uvicorn's own workers: those load the weights anew, and outlive a killed parent.
    """
    context = multiprocessing.get_context("fork")
    workers: list[ForkProcess] = []
    signals: list[int] = []
    for number in _SIGNALS:
        signal.signal(number, lambda number, _: signals.append(number))
    started = -_RESTART_SECONDS
    while not signals:
        if len(workers) < count and time.monotonic() >= started + _RESTART_SECONDS:
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until each has its own handlers
            for _ in range(count - len(workers)):
                workers.append(context.Process(target=_work, args=(run, os.getpid())))
                workers[-1].start()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            started = time.monotonic()
        wait([worker.sentinel for worker in workers], _POLL_SECONDS)
        for worker in [worker for worker in workers if worker.exitcode is not None]:
            workers.remove(worker)
            multiprocess_metrics.mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
            fields = {"pid": worker.pid, "exit": worker.exitcode}
            LOG.error("a worker ended and is started again", extra={"fields": fields})
    bound.close()  # else connections that nobody accepts wait until the last worker ends
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join()


def _work(run: Callable[[], None], parent: int) -> None:
    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        run()
    except Exception as error:  # noqa: BLE001 - the parent starts another one
        LOG.error("worker failed", exc_info=error)
        os._exit(1)
