"""What the machine is, and how much memory a process has held. The standard library is enough."""

import os
import platform
import resource
import sys
from pathlib import Path
from typing import Any


def high_water() -> int:
    """The most bytes that this process has had in memory since it started."""
    status = Path("/proc/self/status")
    if status.is_file():
        # Not getrusage: what that says of a child includes the parent it was forked from.
        for line in status.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def device_memory() -> int | None:
    """The most bytes that torch has had on an accelerator; None where it has not used one."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return int(torch.cuda.max_memory_allocated())


def described() -> dict[str, Any]:
    """What decides how fast this machine is."""
    import torch

    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.platform(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
