"""Which kinds of work a contestant's round consists of."""

from __future__ import annotations

import time
from collections.abc import Callable


def shares(work: Callable[[], object]) -> dict[str, float]:
    """Run ``work`` under torch's profiler; the share of its time of each kind of work."""
    from torch.profiler import profile

    from benchmarks.jobs import wait_for_device
    from contrasent.profiling import activities, kinds, operators

    with profile(activities=activities()) as recorded:
        start = time.perf_counter()
        work()
        wait_for_device()
        seconds = time.perf_counter() - start
    return {kind.name: round(kind.share, 4) for kind in kinds(operators(recorded), seconds)}
