"""Processes: one server, or several that share a socket and the pages of the weights."""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import uvicorn
from fastapi import FastAPI
from prometheus_client import multiprocess
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from contrasent.errors import ConfigError
from contrasent.serve.telemetry import LOG

_BACKLOG = 2048
_SWITCH_SECONDS = 0.0005
"""The event loop lets the computing thread start its next operator after at most so long."""
_HEADER_SECONDS = 10.0
_RESTART_SECONDS = 1.0
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

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"workers must be at least 1, not {self.workers}")
        if not 0 <= self.port < 2**16:
            raise ConfigError(f"port must be from 0 to 65535, not {self.port}")
        if not 0 <= self.drain_seconds < float("inf"):
            raise ConfigError(f"drain must be 0 or more seconds, not {self.drain_seconds}")

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
        _Workers(lambda: _run(make, listening, bound), listening.workers, bound).keep()


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


class _Workers:
    """Processes that are kept running until a signal says to stop."""

    def __init__(self, run: Callable[[], None], count: int, bound: socket.socket) -> None:
        self._run, self._count, self._bound = run, count, bound
        self._running: set[int] = set()
        self._stopping = False
        self._started, self._next = 0.0, 0.0
        self._signals, self._told = os.pipe()  # a handler alone could come before a call that waits
        self._parent, self._alive = os.pipe()  # at its end when no process can write to it

    def keep(self) -> None:
        os.set_blocking(self._told, False)
        signal.set_wakeup_fd(self._told)
        for number in (*_SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        while self._running or not self._stopping:
            missing = len(self._running) < self._count and not self._stopping
            pause = max(0.0, self._next - time.monotonic()) if missing else None
            if select.select([self._signals], [], [], pause)[0]:
                if set(os.read(self._signals, 1024)).intersection(_SIGNALS):
                    self._stop()
                self._reap()
            else:
                self._start_one()

    def _stop(self) -> None:
        self._stopping = True
        self._bound.close()  # else connections that nobody accepts wait until the last worker ends
        for pid in self._running:
            os.kill(pid, signal.SIGTERM)

    def _start_one(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until the worker has its own handlers
        self._started = time.monotonic()
        pid = os.fork()
        if not pid:
            signal.set_wakeup_fd(-1)
            os.close(self._alive)
            threading.Thread(target=self._end_with_parent, daemon=True).start()
            _leave_with(self._run)
        self._running.add(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def _end_with_parent(self) -> None:
        os.read(self._parent, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    def _reap(self) -> None:
        for pid in [*self._running]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            self._running.discard(pid)
            multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]
            if not self._stopping:
                fields = {"pid": pid, "exit": os.waitstatus_to_exitcode(status)}
                LOG.error("a worker ended and is started again", extra={"fields": fields})
                self._next = self._started + _RESTART_SECONDS


def _leave_with(run: Callable[[], None]) -> None:
    """Run, and end the process without the parent's clean-up."""
    code = 1
    try:
        run()
        code = 0
    except BaseException as error:  # noqa: BLE001 - the parent starts another one
        LOG.error("worker failed", exc_info=error)
    finally:
        os._exit(code)
