"""How many processes pytest-xdist starts, and how many threads each may use."""

import os


def cores():
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads():
    """What a worker adds to its environment, before any mathematics library is loaded and reads it.

    Workers share the cores. Nothing is added without workers, or where the number is set already.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0"))
    if not workers or "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, cores() // workers))}
