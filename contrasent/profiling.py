"""Profiling: the time of a step by kind of work, and the memory of freed tensors."""

from __future__ import annotations

import ctypes
import gzip
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from contrasent.errors import ConfigError
from contrasent.files import writing

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """Let this process use the memory of freed tensors again, from now on, where glibc is.

    It usually gives the memory of every large tensor back at once, and the system clears each page
    of the next one: a twelfth of a training step of MiniLM, a sixth of its encoding. What is kept
    goes back in :func:`give_back_freed_memory`.
    """
    library = _glibc()
    if library is not None:
        library.mallopt(_MMAP_MAX, 0)
        library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def give_back_freed_memory() -> None:
    """Return to the system what the C library holds of freed tensors.

    Every batch has another number of tokens, so its tensors have other sizes, and glibc's heap
    comes to hold several times what is in use: 4.3 GB instead of 1 in an epoch of MiniLM.
    """
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def keep_few_compiled_products() -> None:
    """Cut the caches of compiled matrix products of torch on a CPU, before the first product.

    oneDNN and torch's layer above it keep the last 1,024, one for each number of rows, of up to
    2 MB; batches of a long text hardly ever have as many tokens again.
    """
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(name, "64")


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") else None


SUFFIX = ".json.gz"
_WARM_UP, _RECORDED = 3, 3

PARTS = (
    "encoder",
    "generator",
    "vocabulary",
    "discriminator",
    "backward",
    "communication",
    "update",
)
"""Names of the spans that a training step marks in a trace; none lies in another."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of torch, or one span, over a recording."""

    name: str  # as torch calls it
    # that it took itself, without the operators it called: of the device where kernels ran on one,
    # else of the processor
    seconds: float
    calls: int  # how often it ran


def operators(profile: Any) -> list[Operator]:
    """Every operator of a finished ``torch.profiler.profile``, those that took longest first."""
    marks = ("ProfilerStep", "Torch-Compiled Region")
    averages = profile.key_averages()
    events = [it for it in averages if it.key not in PARTS and not it.key.startswith(marks)]
    clock = "self_cpu_time_total"
    if any(event.self_device_time_total for event in events):
        clock = "self_device_time_total"
    timed = [Operator(event.key, getattr(event, clock) / 1e6, event.count) for event in events]
    return sorted((it for it in timed if it.seconds), key=lambda it: -it.seconds)


def parts(profile: Any) -> dict[str, float]:
    """The seconds in each of :data:`PARTS` of a finished ``torch.profiler.profile``.

    They are the processor's: kernels of an accelerator run outside the span that started them.
    """
    totals = {event.key: event.cpu_time_total / 1e6 for event in profile.key_averages()}
    return {name: totals[name] for name in PARTS if name in totals}


def part(name: str) -> AbstractContextManager[Any]:
    """Mark what runs inside as the span ``name``, one of :data:`PARTS`; free without a profiler."""
    from torch.profiler import record_function

    return record_function(name)


def activities() -> list[Any]:
    """The activities that torch's profiler can record on this machine."""
    import torch
    from torch.profiler import ProfilerActivity

    cuda = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    return [ProfilerActivity.CPU, *cuda]


class StepProfile:
    """Records a few steps after the first few, and writes them when they are done.

    Recording slows a step down, the more so the smaller its operators are.
    """

    recorded = _RECORDED  # steps in the trace
    needed = _WARM_UP + _RECORDED  # steps that must be made before it is written

    def __init__(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Make sure that ``path`` can be written.

        ConfigError if its name does not end in ``.json.gz``, or it exists and may not be replaced.
        """
        self.path = Path(path)  # for ``chrome://tracing`` or https://ui.perfetto.dev
        self.operators: list[Operator] = []  # of the recorded steps, once they are done
        self.seconds = 0.0  # that the recorded steps took
        self._steps = 0
        self._since = 0.0
        self._profile: Any = None
        if not self.path.name.endswith(SUFFIX):
            raise ConfigError(f"{path}: the name of a profile ends in {SUFFIX}")
        if self.path.exists() and not overwrite:
            raise ConfigError(f"{path} exists already; move it away, or leave --profile out")

    def step(self) -> None:
        """Count a step; on the thread that computes."""
        self._steps += 1
        if self._steps == _WARM_UP:
            self._start()
        elif self._profile is not None and self._steps == self.needed:
            self._finish()

    @contextmanager
    def of_updates(self) -> Iterator[None]:
        """Take every update by an optimiser inside for a step."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        with self._counting(register_optimizer_step_post_hook(lambda *_: self.step())):
            yield

    @contextmanager
    def of_forward(self, module: Any) -> Iterator[None]:
        """Take every forward call of a ``torch.nn.Module`` inside for a step."""
        with self._counting(module.register_forward_hook(lambda *_: self.step())):
            yield

    @contextmanager
    def _counting(self, hook: Any) -> Iterator[None]:
        try:
            yield
        finally:
            hook.remove()
            if self._profile is not None:  # the work ended too early: nothing is written
                self._profile.stop()
                self._profile = None

    def _start(self) -> None:
        from torch.profiler import profile

        # The profiler's library reports its own stages on standard error otherwise.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        self._profile = profile(activities=activities())
        self._profile.start()
        self._since = time.perf_counter()

    def _finish(self) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds = time.perf_counter() - self._since
        recorded, self._profile = self._profile, None
        recorded.stop()
        self.operators = operators(recorded)
        with TemporaryDirectory() as folder:
            plain = Path(folder) / "trace.json"
            recorded.export_chrome_trace(str(plain))
            with (
                plain.open("rb") as source,
                writing(self.path) as partial,
                gzip.open(partial, "wb") as target,
            ):
                shutil.copyfileobj(source, target)
