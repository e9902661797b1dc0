"""The process of one contestant: requests on standard input, answers on standard output.

A request and an answer are a line of JSON each. ``start`` names the job as ``module:Class`` of
:mod:`benchmarks.jobs` with its settings; the other methods of :class:`Worker` follow in any number.
An answer holds ``error`` where something went wrong, and ``missing`` where it is a package. Only
the standard library is imported here.
"""

import importlib
import json
import os
import re
import resource
import sys
import time
import traceback
from collections import Counter
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ["contrasent", "sentence-transformers", "torch", "transformers", "tokenizers"]
_PACKAGES += ["onnxruntime", "openvino", "optimum", "optimum-intel"]
_PACKAGES += ["faiss-cpu", "fastapi", "uvicorn"]
PARTS = ["encoder", "generator", "vocabulary", "discriminator"]
PARTS += ["backward", "communication", "update"]
"""Names of the spans that a training step marks in a trace; none lies in another."""

PRODUCTS = re.compile(
    r"products|\b(mm|bmm|addmm|linear|matmul)\b|baddbmm|scaled_dot_product|flash"
    r"|efficient_attention|mkldnn|onednn|gemm|linear_pointwise",
    re.IGNORECASE,
)
"""Names of operators, and of kinds of them, that are matrix products."""
OUTSIDE, _LEAST = "Python and waiting", 0.002
"""The time in which no operator ran; the smallest share that is kept."""


class Worker:
    """One job, and the answers to what is asked of it."""

    job: Any = None

    def start(self, job: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Set the job up; where its settings name a file of ``texts``, it gets these."""
        if "texts" in settings:
            settings["texts"] = json.loads(Path(settings["texts"]).read_text(encoding="utf-8"))
        module, _, name = job.partition(":")
        self.job = getattr(importlib.import_module(f"benchmarks.jobs.{module}"), name)(**settings)
        versions = {}
        for package in _PACKAGES:
            with suppress(PackageNotFoundError):
                versions[package] = version(package)
        return {"versions": versions, "facts": getattr(self.job, "facts", {})}

    def round(self, number: int, **arguments: Any) -> dict[str, Any]:
        """Do a round; ``seconds`` is the time it took in this process."""
        start = time.perf_counter()
        values = self.job.round(number, **arguments)
        return {"seconds": time.perf_counter() - start, **values}

    def tokenise(self) -> dict[str, Any]:
        """Seconds that the tokens of a round take alone."""
        start = time.perf_counter()
        self.job.tokenise()
        return {"tokenising": time.perf_counter() - start}

    def profile(self, number: int) -> dict[str, Any]:
        """Shares of a round's time: the largest operators and, on a CPU, parts of our step."""
        import torch
        from torch.profiler import profile

        from benchmarks.jobs import wait_for_device

        with profile() as recorded:
            start = time.perf_counter()
            self.job.round(number)
            wait_for_device()
            seconds = time.perf_counter() - start
        averages = {it.key: it for it in recorded.key_averages()}
        on_device = any(it.self_device_time_total for it in averages.values())
        clock = "self_device_time_total" if on_device else "self_cpu_time_total"
        operators = {
            name: getattr(it, clock) / 1e6 / seconds
            for name, it in averages.items()
            if name not in PARTS and not name.startswith(("ProfilerStep", "Torch-Compiled Region"))
        }
        operators[OUTSIDE] = max(0.0, 1 - sum(operators.values()))
        shares = Counter(operators).most_common()
        spans = {} if torch.cuda.is_available() else averages
        parts = [(it, spans[it].cpu_time_total / 1e6 / seconds) for it in PARTS if it in spans]
        kinds = {name: round(share, 4) for name, share in shares if share > _LEAST}
        return {"kinds": kinds, "parts": {name: round(share, 4) for name, share in parts}}

    def rows(self, path: str) -> dict[str, Any]:
        """Write the job's embeddings, or the ids of its hits, as a matrix to ``path``."""
        import numpy as np

        np.save(path, self.job.rows())
        return {}

    def peak_memory(self) -> dict[str, Any]:
        """The most memory that this process, or the server of the job, has held."""
        torch, device = sys.modules.get("torch"), None
        if torch is not None and torch.cuda.is_available():
            device = int(torch.cuda.max_memory_allocated())
        return {"bytes": getattr(self.job, "memory", high_water)(), "device_bytes": device}


def high_water(process: int | str = "self") -> int:
    """The most bytes that a process has had in memory since it started."""
    status = Path(f"/proc/{process}/status")
    if status.is_file():
        # Not getrusage: what that says of a child includes the parent it was forked from.
        (line,) = (it for it in status.read_text().splitlines() if it.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def answer(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Do what one request asks."""
    try:
        values: dict[str, Any] = getattr(worker, request.pop("do"))(**request)
    except Exception as error:  # noqa: BLE001 - whatever a peer raises is reported
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, ImportError):
            cause = cause.__cause__ or cause.__context__
        return {"error": str(cause or traceback.format_exc()).strip(), "missing": cause is not None}
    return values


def main() -> None:
    """Answer until the other side closes the pipe; what a library prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        print(json.dumps(answer(worker, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
