"""What beside the recipe decides the bits of a run."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Mapping
from typing import Any

from contrasent.records import installed_versions

logger = logging.getLogger("contrasent")

_DECIDING = ("threads", "cpu", "gpu", "torch")


def environment() -> dict[str, Any]:
    """The software and hardware of this process, as ``environment.json`` keeps it."""
    import torch

    return {
        "versions": installed_versions(),
        "platform": platform.platform(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def warn_of_other_bits(then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Warn if a run that goes on here ends with other bits than it would have where it began."""
    before, here = _deciding(then), _deciding(now)
    changed = [
        f"{name} {before[name]} then, {here[name]} now"
        for name in _DECIDING
        if before[name] != here[name]
    ]
    if changed:
        threads_differ = before["threads"] != here["threads"]
        logger.warning(
            "sums are rounded otherwise here than where this run began (%s), so it will not end "
            "with the bits of a run that was never cut off%s",
            "; ".join(changed),
            "; OMP_NUM_THREADS sets the threads" if threads_differ else "",
        )


def _deciding(found: Mapping[str, Any]) -> dict[str, Any]:
    return {**{name: found.get(name) for name in _DECIDING}, "torch": found["versions"]["torch"]}
