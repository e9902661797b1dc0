"""Where the time of a step goes: a trace that a user can open, and its sum by kind of work."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from contrasent.errors import ConfigError
from contrasent.files import writing

SUFFIX = ".json.gz"
_WARM_UP, _RECORDED = 3, 3

OUTSIDE = "Python and waiting"
"""The kind of the time in which no operator ran."""

PARTS = ("encoder", "generator", "vocabulary", "discriminator", "backward", "update")
"""Names of the spans that a training step marks in a trace; none lies in another."""

_OTHER = "other"
# In this order: the first pattern found in an operator's name decides.
_KINDS = {
    "attention products": r"\bbmm|baddbmm|scaled_dot_product|flash|efficient_attention",
    "matrix products": r"\b(mm|addmm|linear|matmul)\b|mkldnn|onednn|_addmm|gemm|linear_pointwise",
    "optimiser": r"adam|Optimizer|_foreach_|vector_norm|\bdot\b",
    OUTSIDE: r"^autograd::engine|^_?[A-Z]\w*$",  # what a Function in Python does itself
    "dropout": r"dropout|random_|bernoulli|bitwise|philox",
    "softmax": r"softmax",
    "normalisation": r"layer_norm|batch_norm|\bnorm\b",
    "activation": r"gelu|tanh|relu",
    "compiled": r"compiled|inductor|triton|graph_\d+",
    "lookups and gathers": r"index|gather|embedding|scatter|repeat_interleave|arange",
    "casts and copies": r"copy|_to_copy|\bto\b|\bcat\b|\bstack\b|contiguous|clone|memcpy|\bpad\b",
    "zero fills": r"zero_|zeros|fill_|memset|\bones\b",
    "arithmetic": r"\b_?(add|sub|mul|div|neg|sum|mean|pow|exp|sqrt|where|clamp\w*)_?\b",
}
_PATTERNS = {kind: re.compile(pattern, re.IGNORECASE) for kind, pattern in _KINDS.items()}


@dataclass(frozen=True, slots=True)
class OperatorKind:
    """One kind of work in the recorded steps.

    Attributes:
        name: what it is called.
        milliseconds: of one step, on average.
        share: of the time of the steps, in [0, 1].
        most: the operators that took most of it, at most three.
    """

    name: str
    milliseconds: float
    share: float
    most: tuple[str, ...]


def kind_of(operator: str) -> str:
    """The kind of work that an operator of torch does, by its name."""
    found = (kind for kind, pattern in _PATTERNS.items() if pattern.search(operator))
    return next(found, _OTHER)


def kinds(
    operators: Iterable[tuple[str, float]], seconds: float, steps: int = 1
) -> list[OperatorKind]:
    """Sum up operators by kind, the largest first.

    Args:
        operators: names, each with the seconds it took itself, what it called left out.
        seconds: that passed meanwhile; what the operators leave of it is :data:`OUTSIDE`.
        steps: in those seconds.
    """
    found: dict[str, dict[str, float]] = {}
    for name, own in operators:
        part = found.setdefault(kind_of(name), {})
        part[name] = part.get(name, 0.0) + own
    totals = {kind: sum(part.values()) for kind, part in found.items()}
    totals[OUTSIDE] = totals.get(OUTSIDE, 0.0) + max(0.0, seconds - sum(totals.values()))
    return [
        OperatorKind(
            name=kind,
            milliseconds=1000 * total / steps,
            share=total / seconds,
            most=tuple(sorted(found.get(kind, {}), key=lambda n: -found[kind][n])[:3]),
        )
        for kind, total in sorted(totals.items(), key=lambda item: -item[1])
        if total > 0
    ]


def operators(profile: Any) -> list[tuple[str, float]]:
    """Every operator of a finished ``torch.profiler.profile``, with its own seconds.

    Seconds are the device's where kernels ran on one, else the processor's.
    """
    events = [event for event in profile.key_averages() if not _is_mark(event.key)]
    on_device = [(event.key, event.self_device_time_total / 1e6) for event in events]
    if any(seconds for _, seconds in on_device):
        return on_device
    return [(event.key, event.self_cpu_time_total / 1e6) for event in events]


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
    """What a profiler of torch can see on this machine."""
    import torch
    from torch.profiler import ProfilerActivity

    there = [ProfilerActivity.CPU]
    return [*there, ProfilerActivity.CUDA] if torch.cuda.is_available() else there


def _is_mark(name: str) -> bool:
    return name in PARTS or name.startswith(("ProfilerStep", "Torch-Compiled Region"))


class StepProfile:
    """Records a few steps after the first few, and writes them when they are done.

    Recording slows a step down, the more so the smaller its operators are.

    Attributes:
        path: the trace, for ``chrome://tracing`` or https://ui.perfetto.dev.
        kinds: what the recorded steps did, once they are done; empty before.
        needed: steps that must be made before the trace is written.
    """

    needed = _WARM_UP + _RECORDED

    def __init__(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Make sure that ``path`` can be written.

        Raises:
            ConfigError: its name does not end in ``.json.gz``, or it exists and may not be
                replaced.
        """
        self.path = Path(path)
        self.kinds: list[OperatorKind] = []
        self._made = 0
        self._since = 0.0
        self._profile: Any = None
        if not self.path.name.endswith(SUFFIX):
            raise ConfigError(f"{path}: the name of a profile ends in {SUFFIX}")
        if self.path.exists() and not overwrite:
            raise ConfigError(f"{path} exists already; move it away, or leave --profile out")

    def step(self) -> None:
        """Tell that a step is done; on the thread that computes."""
        self._made += 1
        if self._made == _WARM_UP:
            self._start()
        elif self._profile is not None and self._made == self.needed:
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
        seconds = time.perf_counter() - self._since
        recorded, self._profile = self._profile, None
        recorded.stop()
        self.kinds = kinds(operators(recorded), seconds, _RECORDED)
        with TemporaryDirectory() as folder:
            plain = Path(folder) / "trace.json"
            recorded.export_chrome_trace(str(plain))
            with (
                plain.open("rb") as source,
                writing(self.path) as partial,
                gzip.open(partial, "wb") as target,
            ):
                shutil.copyfileobj(source, target)
