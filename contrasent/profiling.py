"""Profiling: the operators of a few steps, and the memory of freed tensors."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from contrasent.errors import ConfigError
from contrasent.files import writing

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """Let this process use the memory of freed tensors again, from now on, where glibc is.

    It usually gives the memory of a large tensor back at once, and the system clears each page of
    the next: a twelfth of a training step of MiniLM, a sixth of its encoding.
    """
    library = _glibc()
    if library is not None:
        library.mallopt(_MMAP_MAX, 0)
        library.mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def give_back_freed_memory() -> None:
    """Return to the system what the C library holds of freed tensors.

    Batches differ in tokens, and tensors in size: glibc's heap grows to several times what is in
    use, 4.3 GB instead of 1 in an epoch of MiniLM.
    """
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "malloc_trim") else None


SUFFIX = ".json.gz"

PARTS = ("encoder", "generator", "vocabulary", "discriminator", "backward", "update")
"""Names of the spans that a training step marks in a trace; none lies in another."""


def part(name: str) -> AbstractContextManager[Any]:
    """Mark what runs inside as the span ``name``, one of :data:`PARTS`; free without a profiler."""
    from torch.profiler import record_function

    return record_function(name)


class StepProfile:
    """Records steps 4 to 6 of some work under torch's profiler, and writes them when they are done.

    Recording slows a step down, the more so the smaller its operators are.

    Attributes:
        path: the trace, for ``chrome://tracing`` or https://ui.perfetto.dev.
        needed: steps that must be made before the trace is written.
        table: torch's table of the operators that took longest; empty before.
    """

    needed = 6

    def __init__(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Refuse a ``path`` that does not end in ``.json.gz``, or exists and may not be replaced.

        Raises:
            ConfigError: it cannot be written.
        """
        self.path = Path(path)
        self.table = ""
        if not self.path.name.endswith(SUFFIX):
            raise ConfigError(f"{path}: the name of a profile ends in {SUFFIX}")
        if self.path.exists() and not overwrite:
            raise ConfigError(f"{path} exists already; move it away, or leave --profile out")

    def of_updates(self) -> AbstractContextManager[None]:
        """Take every update by an optimiser inside for a step."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        return self._of_calls(register_optimizer_step_post_hook)

    def of_forward(self, module: Any) -> AbstractContextManager[None]:
        """Take every forward call of a ``torch.nn.Module`` inside for a step."""
        return self._of_calls(module.register_forward_hook)

    @contextmanager
    def _of_calls(self, register_hook: Callable[[Callable[..., None]], Any]) -> Iterator[None]:
        from torch.profiler import profile, schedule

        # The profiler's library reports its own stages on standard error otherwise.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        steps = schedule(wait=2, warmup=1, active=3, repeat=1)
        with profile(schedule=steps, on_trace_ready=self._write) as recorded:
            hook = register_hook(lambda *_: recorded.step())
            try:
                yield
            finally:
                hook.remove()

    def _write(self, recorded: Any) -> None:
        import torch

        if recorded.step_num < self.needed:  # the work ended too early: nothing is written
            return
        clock = "cuda" if torch.cuda.is_available() else "cpu"
        self.table = recorded.key_averages().table(f"self_{clock}_time_total", row_limit=15)
        with TemporaryDirectory() as folder, writing(self.path) as partial:
            trace = Path(folder) / self.path.name
            recorded.export_chrome_trace(str(trace))
            shutil.copyfile(trace, partial)

    @property
    def summary(self) -> str:
        """The table, and where the trace is; or why there is none."""
        if not self.table:
            return f"no profile: it needs {self.needed} steps, and the work ended before"
        return f"{self.table}profile: {self.path} (open it at https://ui.perfetto.dev)"
