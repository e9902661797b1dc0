"""Precision: the number format of matrix products, and the device that computes them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from threading import Lock
from typing import Any, Self, TypeVar

import torch

from contrasent.errors import ConfigError, pick

T = TypeVar("T")

PRECISIONS = ("auto", "bf16", "fp32")
"""The names that recipes and commands take; an engine may add its own."""


def default_device() -> torch.device:
    """The accelerator if there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def device_named(name: str | torch.device) -> torch.device:
    """The device ``name``; ConfigError if torch cannot compute on it here."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"cannot compute on the device {str(name)!r} here: {reason}; name another one, such as "
            "cpu, cuda or cuda:1, or leave it out"
        ) from error
    return device


def training_device(name: str | torch.device | None) -> torch.device:
    """The device of a training run, by default the accelerator; CUDA's becomes the current one."""
    device = default_device() if name is None else device_named(name)
    if name is not None and device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def torch_precisions(device: torch.device) -> tuple[str, ...]:
    """The precisions of torch's products on ``device``, the usual one first."""
    return ("bf16", "fp32") if has_bf16(device) else ("fp32", "bf16")


def resolve_precision(
    name: str, available: Sequence[str], computer: str, *, amplified: bool = False
) -> str:
    """The precision that ``name`` stands for; ConfigError if it is not ``available``.

    ``auto`` is the first that ``computer`` computes in, or fp32 if a fitted map follows
    (``amplified``): it scales up small directions, and rounding errors with them.
    """
    pick("precision", name, {*PRECISIONS, *available})
    if name == "auto":
        return "fp32" if amplified and "fp32" in available else available[0]
    if name not in available:
        raise ConfigError(
            f"{computer} computes in {' or '.join(available)}, not in {name}; leave the precision "
            "out"
        )
    return name


def matrix_precision(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context in which torch's matrix products run in ``fp32`` or ``bf16``, else ConfigError.

    With ``int8``, whose products are not torch's, others run in fp32.
    """
    pick("precision", precision, ("bf16", "fp32", "int8"))
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else _fp32(device)


class SharedContext(AbstractContextManager[None]):
    """A context that the first thread to enter opens, and the last to leave closes."""

    def __init__(self, context: Callable[[], AbstractContextManager[object]]) -> None:
        self._context = context
        self._lock = Lock()
        self._users = 0
        self._opened: AbstractContextManager[object] = nullcontext()

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._opened = self._context()
                self._opened.__enter__()
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._opened.__exit__(None, None, None)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is closed: whoever leaves this one does not know of it."""
        return type(self), (self._context,)

    @property
    def is_open(self) -> bool:
        """Whether anybody is inside."""
        return self._users > 0


class WeightCache(SharedContext):
    """A promise that no weight changes; what is made of them is kept while anybody gives it."""

    def __init__(self) -> None:
        super().__init__(self._empty)
        self._kept: dict[Hashable, Any] = {}

    @contextmanager
    def _empty(self) -> Iterator[None]:
        self._kept = {}  # a thread may have put something here after the last promise ended
        yield
        self._kept = {}

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._kept

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is kept under ``key``, or is made now."""
        kept = self._kept
        value: T | None = kept.get(key)
        if value is None:
            value = kept[key] = make()
        return value


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Fp32 products computed in fp32, whatever the process has set.

    Its setting may let them be computed with the 10 bits of TF32 on a GPU, or in bf16 on a CPU; a
    cosine divided by a temperature of 0.05 shows that.
    """
    change: Callable[[str], object] = torch.set_float32_matmul_precision
    try:
        before, exact = torch.get_float32_matmul_precision(), "highest"
    except RuntimeError:  # it was set under its newer name, which this call refuses to read
        products = torch.backends.cuda.matmul
        before, exact = products.fp32_precision, "ieee"
        change = partial(setattr, products, "fp32_precision")
    if before != exact:
        change(exact)
    yield
    if before != exact:
        change(before)


FULL_FP32 = SharedContext(_without_tf32)
"""The context in which fp32 products are computed in fp32; may be entered again, by any thread."""


@contextmanager
def _fp32(device: torch.device) -> Iterator[None]:
    """Fp32, also inside a context of another precision."""
    with FULL_FP32, torch.autocast(device.type, enabled=False):
        yield


def has_bf16(device: torch.device) -> bool:
    """Whether ``device`` multiplies bf16 natively; oneDNN's ``ONEDNN_MAX_CPU_ISA`` counts."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu" or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    return cpu_has("avx512_bf16", "amx_bf16")


def cpu_has(*features: str) -> bool:
    """Whether torch knows of any of these instructions here; an old torch of none."""
    known = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(known.get(feature) for feature in features)
