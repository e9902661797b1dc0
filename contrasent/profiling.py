"""Profiling: the time of a step by kind of work, and the memory of freed tensors."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from contrasent.files import refuse_existing_file, writing

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


_WARM_UP, _RECORDED, _ROWS = 3, 3, 15

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


def part(name: str) -> AbstractContextManager[Any]:
    """Mark what runs inside as the span ``name``, one of :data:`PARTS`; free without a profiler."""
    from torch.profiler import record_function

    return record_function(name)


@contextmanager
def profiled(
    path: Path | None, tell: Callable[[str], object], *, overwrite: bool = False
) -> Iterator[None]:
    """Record the updates 4 to 6 of an optimiser inside, and tell where their time went.

    ``path`` gets the trace, for https://ui.perfetto.dev; without it nothing is recorded.
    ConfigError if it may not be replaced. Recording slows a step down, the more so the smaller its
    operators are.
    """
    if path is None:
        yield
        return
    refuse_existing_file(path, overwrite=overwrite)
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.profiler import profile, schedule

    needed, clock = _WARM_UP + _RECORDED, "self_cpu_time_total"
    if torch.cuda.is_available():
        clock = "self_device_time_total"
    tables: list[str] = []

    def write(recorder: Any) -> None:
        if recorder.step_num < needed:
            return  # the work ended too early
        operators = recorder.key_averages()
        tables.append(operators.table(sort_by=clock, row_limit=_ROWS, max_name_column_width=40))
        with writing(path) as partial:
            gzipped = partial.with_name(f"{partial.name}.gz")
            recorder.export_chrome_trace(str(gzipped))
            gzipped.replace(partial)

    # The profiler's library reports its own stages on standard error otherwise.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    steps = schedule(skip_first=1, wait=0, warmup=_WARM_UP - 1, active=_RECORDED, repeat=1)
    with profile(schedule=steps, on_trace_ready=write) as recorder:
        hook = register_optimizer_step_post_hook(lambda *_: recorder.step())
        try:
            yield
        finally:
            hook.remove()
    if tables:
        tell(f"{tables[0]}\nprofile: {path} (open it at https://ui.perfetto.dev)")
    else:
        tell(f"no profile: it needs {needed} steps, and the work ended before")
