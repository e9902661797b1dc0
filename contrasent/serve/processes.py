"""Processes: one server, or several that share a socket and the pages of the weights."""

import gc
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from math import ceil
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess

import uvicorn
from fastapi import FastAPI
from prometheus_client import multiprocess as multiprocess_metrics

from contrasent.errors import ConfigError
from contrasent.serve.batching import LOG
from contrasent.serve.server import ServeOptions

_BACKLOG = 2048
_SWITCH_SECONDS = 0.0005
"""The event loop lets the computing thread start its next operator after at most so long."""
_RESTART_SECONDS, _POLL_SECONDS = 1.0, 0.2
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_IDLE_SECONDS = 75
"""How long a connection stays without a request: longer than load balancers keep theirs."""


def bind(options: ServeOptions) -> socket.socket:
    """The socket, before anything expensive happens; ConfigError if it cannot be had."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio asks for it
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((options.host, options.port))
        bound.listen(_BACKLOG)  # those that come now wait for the model
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"cannot listen on {options.host} port {options.port}: {error.strerror or error}; "
            "choose others with --host and --port"
        ) from error
    return bound


def serve(make: Callable[[], FastAPI], options: ServeOptions, bound: socket.socket) -> None:
    """Answer requests until SIGTERM or Ctrl-C; those that have begun are answered to the end."""
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    for number in _SIGNALS:  # until others take them, nothing has begun
        signal.signal(number, lambda *_: os._exit(0))
    LOG.info("listening", extra={"fields": {"url": f"http://{shown}:{port}/"}})
    gc.freeze()  # a collection that walks through all modules takes a third of a second
    if options.workers == 1:
        _run(make, options, bound)
    else:
        _supervise(lambda: _run(make, options, bound), options.workers, bound)


def _run(make: Callable[[], FastAPI], options: ServeOptions, bound: socket.socket) -> None:
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
    while not signals:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until each has its own handlers
        for _ in range(count - len(workers)):
            workers.append(context.Process(target=_work, args=(run, os.getpid())))
            workers[-1].start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        wait([worker.sentinel for worker in workers], _POLL_SECONDS)
        for worker in [worker for worker in workers if worker.exitcode is not None]:
            workers.remove(worker)
            multiprocess_metrics.mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
            fields = {"pid": worker.pid, "exit": worker.exitcode}
            LOG.error("a worker ended and is started again", extra={"fields": fields})
            time.sleep(_RESTART_SECONDS)
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
