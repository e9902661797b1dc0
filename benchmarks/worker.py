"""The process of one contestant: requests on standard input, answers on standard output.

A request and an answer are a line of JSON each. ``start`` names the job as ``module:Class`` with
its settings; ``round``, ``profile``, ``rows`` and ``peak_memory`` follow in any number. An answer
holds ``missing`` where a package is not installed, and ``error`` where something else went wrong.
Only the standard library is imported here.
"""

import importlib
import json
import os
import sys
import time
import traceback
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TextIO

from benchmarks.machine import device_memory, high_water

_PACKAGES = (
    *("contrasent", "sentence-transformers", "torch", "transformers"),
    *("onnxruntime", "openvino", "optimum", "optimum-intel"),
)


class Worker:
    """One job, and the answers to what is asked of it."""

    def __init__(self) -> None:
        self.job: Any = None

    def start(self, job: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Set the job up."""
        module, _, name = job.partition(":")
        self.job = getattr(importlib.import_module(module), name)(**settings)
        return {"versions": _versions()}

    def round(self, number: int) -> dict[str, Any]:
        """Do a round; ``seconds`` is the time it took in this process."""
        start = time.perf_counter()
        values = self.job.round(number)
        return {"seconds": time.perf_counter() - start, **values}

    def profile(self, number: int) -> dict[str, Any]:
        """Do a round under torch's profiler; see :func:`benchmarks.shares.shares`."""
        from benchmarks.shares import shares

        return shares(lambda: self.job.round(number))

    def rows(self, path: str) -> dict[str, Any]:
        """Write the job's embeddings as a matrix to ``path``."""
        import numpy as np

        np.save(path, self.job.rows())
        return {}

    def peak_memory(self) -> dict[str, Any]:
        """The most memory that this process has held."""
        return {"bytes": high_water(), "device_bytes": device_memory()}


def answer(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Do what one request asks."""
    action = request.pop("do")
    try:
        found: dict[str, Any] = getattr(worker, action)(**request)
    except Exception as error:  # noqa: BLE001 - whatever a peer raises is told to the other side
        missing = action == "start" and _missing(error)
        return {"missing": missing} if missing else {"error": traceback.format_exc()}
    return found


def _missing(error: BaseException | None) -> str:
    """What a failed import behind ``error`` says; empty if there is none."""
    while error is not None and not isinstance(error, ImportError):
        error = error.__cause__ or error.__context__
    return str(error or "")


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer until the other side closes the pipe."""
    worker = Worker()
    for line in requests:
        print(json.dumps(answer(worker, json.loads(line))), file=answers, flush=True)


def main() -> None:
    """Serve; what a library prints goes to standard error instead of into the answers."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
