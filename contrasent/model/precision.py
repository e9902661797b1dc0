"""Precision: the number format of matrix products, and the device that computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from threading import Lock

import torch
from typing_extensions import override

from contrasent.errors import ConfigError, pick

PRECISIONS = ("auto", "bf16", "fp32")
"""The names that recipes and commands take; an engine may add its own."""


def default_device() -> torch.device:
    """The accelerator if there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def device_named(name: str | torch.device) -> torch.device:
    """A device, once it is known that torch can compute on it.

    Raises:
        ConfigError: there is no such device here.
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"cannot compute on the device {str(name)!r} here: {reason}; name another one, such as "
            "cpu, cuda or cuda:1, or leave it out"
        ) from error
    return device


def training_device(name: str | torch.device | None) -> torch.device:
    """The device of a training run, by default CUDA or the CPU; CUDA's becomes the current one."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = device_named(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def torch_precisions(device: torch.device) -> tuple[str, ...]:
    """The precisions of torch's products on ``device``, the usual one first."""
    return ("bf16", "fp32") if has_bf16(device) else ("fp32", "bf16")


def resolve_precision(
    name: str, available: Sequence[str], computer: str, *, amplified: bool = False
) -> str:
    """The precision that ``name``, which may be ``auto``, stands for.

    Args:
        name: one of :data:`PRECISIONS`, or of ``available``.
        available: what ``computer`` computes in, the usual one first, which ``auto`` stands for.
        computer: named in the message.
        amplified: a fitted map follows, which scales small directions up and rounding errors
            with them: then ``auto`` stands for fp32 wherever that is available.

    Raises:
        ConfigError: there is no such precision, or not here.
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
    """The context in which torch's matrix products run in ``precision``.

    Args:
        precision: ``fp32``, ``bf16``, or ``int8``, whose products are not torch's.
        device: where they run.

    Raises:
        ConfigError: ``precision`` is still ``auto`` or unknown.
    """
    if precision not in ("bf16", "fp32", "int8"):
        raise ConfigError(f"precision must be bf16, fp32 or int8 here, not {precision!r}")
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return _Fp32(device)


class _FullFp32(AbstractContextManager[None]):
    """Where fp32 products are computed in fp32, whatever the process has set.

    ``torch.set_float32_matmul_precision`` and its relatives let them be computed with the 10 bits
    of TF32 on a GPU, or in bf16 on a CPU; a cosine divided by a temperature of 0.05 shows that.
    The setting belongs to the process, so it is changed by the first that enters, and put back by
    the last that leaves.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._restore: Callable[[], object] | None = None

    @override
    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._restore = _switch_tf32_off()
            self._inside += 1

    @override
    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._restore:
                self._restore()


FULL_FP32 = _FullFp32()
"""The context in which fp32 products are computed in fp32; may be entered again, by any thread."""


class _Fp32(AbstractContextManager[None]):
    """Fp32, also inside a context of another precision."""

    def __init__(self, device: torch.device) -> None:
        self._no_cast = torch.autocast(device.type, enabled=False)

    @override
    def __enter__(self) -> None:
        FULL_FP32.__enter__()
        self._no_cast.__enter__()  # type: ignore[no-untyped-call]

    @override
    def __exit__(self, *exception: object) -> None:
        self._no_cast.__exit__(*exception)
        FULL_FP32.__exit__(*exception)


def _switch_tf32_off() -> Callable[[], object] | None:
    """Returns what switches it back, if it was on."""
    try:
        before = torch.get_float32_matmul_precision()
    except RuntimeError:  # it was set under its newer name, which this call refuses to read
        products = torch.backends.cuda.matmul
        newer, products.fp32_precision = products.fp32_precision, "ieee"
        return partial(setattr, products, "fp32_precision", newer)
    if before == "highest":
        return None
    torch.set_float32_matmul_precision("highest")
    return partial(torch.set_float32_matmul_precision, before)


def has_bf16(device: torch.device) -> bool:
    """Whether ``device`` multiplies bf16 natively; oneDNN's ``ONEDNN_MAX_CPU_ISA`` counts."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu" or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    described = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(described.get("avx512_bf16") or described.get("amx_bf16"))
