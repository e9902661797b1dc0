"""Which number format the matrix products run in, and on which device."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

from contrasent.errors import ConfigError, pick

PRECISIONS = ("auto", "bf16", "fp32")


def default_device() -> torch.device:
    """The accelerator if there is one, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def resolve_precision(name: str, device: torch.device) -> str:
    """Turn ``auto`` into ``bf16`` where the hardware multiplies bf16 natively, else ``fp32``.

    Raises:
        ConfigError: ``name`` is not a precision.
    """
    pick("precision", name, PRECISIONS)
    if name != "auto":
        return name
    return "bf16" if _has_bf16(device) else "fp32"


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
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        described = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
        return bool(described.get("avx512_bf16") or described.get("amx_bf16"))
    return False
