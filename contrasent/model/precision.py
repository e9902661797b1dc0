"""Precision: the number format of matrix products, and the device that computes them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from threading import Lock
from typing import Any, Self, TypeVar

import torch

from contrasent.errors import ConfigError, first_line, pick

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
        raise ConfigError(
            f"cannot compute on the device {str(name)!r} here: {first_line(error)}; name another "
            "one, such as cpu, cuda or cuda:1, or leave it out"
        ) from error
    return device


def training_device(name: str | torch.device | None) -> torch.device:
    """The device of a training run, by default the accelerator; CUDA's becomes the current one."""
    device = default_device() if name is None else device_named(name)
    if name is not None and device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def torch_precisions(device: torch.device) -> tuple[str, ...]:
    """The precisions of torch's products on ``device``, first what it multiplies natively."""
    if device.type == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    elif device.type == "cpu" and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        has_bf16 = cpu_has("avx512_bf16", "amx_bf16")
    else:
        has_bf16 = False
    return ("bf16", "fp32") if has_bf16 else ("fp32", "bf16")


def cpu_has(*features: str) -> bool:
    """True if torch knows of any of these instructions here; an old torch of none."""
    known = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(known.get(feature) for feature in features)


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
        return self._users > 0


class WeightCache(SharedContext):
    """A promise that no weight changes; what is made of them is kept while anybody gives it."""

    def __init__(self) -> None:
        super().__init__(self._empty)
        self.kept: dict[Hashable, Any] = {}

    @contextmanager
    def _empty(self) -> Iterator[None]:
        self.kept = {}  # a thread may have put something here after the last promise ended
        yield
        self.kept = {}

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is kept under ``key``, or is made now."""
        kept = self.kept
        value: T | None = kept.get(key)
        if value is None:
            value = kept[key] = make()
        return value


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Fp32 products computed in fp32, whatever the process has set.

    TF32 has 10 bits; a cosine divided by a temperature of 0.05 shows that.
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


def matrix_precision(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """The context of matrix products in ``fp32`` or ``bf16``; with ``int8`` others are in fp32."""
    pick("precision", precision, ("bf16", "fp32", "int8"))
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else _fp32(device)


@contextmanager
def _fp32(device: torch.device) -> Iterator[None]:
    """Fp32, also inside a context of another precision."""
    with FULL_FP32, torch.autocast(device.type, enabled=False):
        yield
