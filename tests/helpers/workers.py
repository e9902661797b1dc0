"""How many processes pytest-xdist starts, how many threads each may use, and what they worked."""

import os
import resource


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


def processor_time(*whose):
    """Seconds that processors worked for this process, or its ended children, or both.

    A clock would measure what else the machine does too.
    """
    used = [resource.getrusage(it) for it in whose]
    return sum(it.ru_utime + it.ru_stime for it in used)
