"""What a contestant's round consists of."""

from __future__ import annotations

import time
from collections.abc import Callable


def shares(work: Callable[[], object]) -> dict[str, dict[str, float]]:
    """Run ``work`` under torch's profiler.

    Returns:
        Shares of its time: ``kinds`` of work, which add up to 1, and ``parts`` of a training step
        of ours, where it has any and no accelerator computes them.
    """
    import torch
    from torch.profiler import profile

    from benchmarks.jobs import wait_for_device
    from contrasent.profiling import activities, kinds, operators, parts

    with profile(activities=activities()) as recorded:
        start = time.perf_counter()
        work()
        wait_for_device()
        seconds = time.perf_counter() - start
    found = {} if torch.cuda.is_available() else parts(recorded)
    return {
        "kinds": {k.name: round(k.share, 4) for k in kinds(operators(recorded), seconds)},
        "parts": {name: round(spent / seconds, 4) for name, spent in found.items()},
    }
