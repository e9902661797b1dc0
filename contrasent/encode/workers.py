"""Processes of this machine that share the shards of one output.

Each runs the command with its own ``--shard``; it is given paths and writes files, so that no
vector passes between them.
"""

import os
import signal
import subprocess
import threading
from collections.abc import Sequence

from contrasent.errors import ContrasentError

_PARENT = "CONTRASENT_PARENT"
"""In the environment of a process that ends with the one that started it."""
_DEVICES = "CUDA_VISIBLE_DEVICES"


def keep_few_compiled_products() -> None:
    """Cut the caches of compiled matrix products of torch on a CPU, before the first product.

    oneDNN and torch's layer above it keep the last 1,024, one for each number of rows, of up to
    2 MB; batches of a long text hardly ever have as many tokens again.
    """
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(name, "64")


def run_processes(lines: Sequence[Sequence[str]], devices: int) -> None:
    """Run the commands side by side, on a share of the cores or on one of ``devices`` each."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number, line in enumerate(lines):
            environment = {**os.environ, **_share(number, len(lines), devices), _PARENT: "1"}
            quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
            processes.append(subprocess.Popen(line, env=environment, stdin=pipe, stdout=quiet))
        statuses = [process.wait() for process in processes]
    finally:
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()
    ends = [signal.Signals(-it).name if it < 0 else f"status {it}" for it in statuses]
    failed = [f"{n} ({end})" for n, end in enumerate(ends, start=1) if statuses[n - 1]]
    if failed:
        raise ContrasentError(
            f"of {len(statuses)} workers these failed: {', '.join(failed)}; their messages are "
            "above, and SIGKILL is mostly for want of memory. The shards of the others are whole: "
            "run the command again for the rest"
        )


def end_with_parent() -> None:
    """End with the process of :func:`run_processes`, whose end closes standard input."""
    if os.environ.pop(_PARENT, ""):

        def wait() -> None:
            os.read(0, 1)
            os._exit(1)

        threading.Thread(target=wait, daemon=True).start()


def _share(number: int, count: int, devices: int) -> dict[str, str]:
    """The environment of a worker: one device, or its share of the cores."""
    if devices:
        visible = os.environ.get(_DEVICES, ",".join(map(str, range(devices)))).split(",")
        return {_DEVICES: visible[number % devices]}
    if "OMP_NUM_THREADS" in os.environ:
        return {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"OMP_NUM_THREADS": str(max(1, (cores or 1) // count))}
