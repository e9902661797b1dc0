"""Workers that share the shards of one output: processes of this machine, or tasks of Ray.

Each runs the command with its own ``--shard``; it is given paths and writes files, so that no
vector passes between them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Sequence
from importlib import import_module

from contrasent.errors import ContrasentError, require_extra

_PARENT = "CONTRASENT_PARENT"
"""In the environment of a process that ends with the one that started it."""
_DEVICES = "CUDA_VISIBLE_DEVICES"


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
    _require_success(statuses)


def end_with_parent() -> None:
    """End with the process of :func:`run_processes`, whose end closes standard input."""
    if os.environ.pop(_PARENT, ""):

        def wait() -> None:
            os.read(0, 1)
            os._exit(1)

        threading.Thread(target=wait, daemon=True).start()


def run_ray(lines: Sequence[Sequence[str]], devices: int) -> None:
    """Run each command in a task of Ray; all nodes of the cluster must see the paths."""
    require_extra("--ray", "ray", "ray")
    ray = import_module("ray")
    ray.init(ignore_reinit_error=True, log_to_driver=False, include_dashboard=False)
    try:
        needs = {"num_gpus": 1} if devices else {"num_cpus": 1}
        task = ray.remote(**needs, max_retries=0)(_run)
        cores = int(ray.cluster_resources().get("CPU", 1))
        threads = {} if devices else _share(0, min(len(lines), cores), 0)
        folder = os.getcwd()  # noqa: PTH109 - of this process; a task starts in another
        _require_success(ray.get([task.remote([*line], folder, threads) for line in lines]))
    finally:
        ray.shutdown()


def _run(line: list[str], folder: str, environment: dict[str, str]) -> int:
    env, quiet = {**os.environ, **environment}, subprocess.DEVNULL
    return subprocess.run(line, cwd=folder, env=env, stdout=quiet, check=False).returncode


def _share(number: int, count: int, devices: int) -> dict[str, str]:
    """The environment of a worker: one device, or its share of the cores."""
    if devices:
        visible = os.environ.get(_DEVICES, ",".join(map(str, range(devices)))).split(",")
        return {_DEVICES: visible[number % devices]}
    if "OMP_NUM_THREADS" in os.environ:
        return {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"OMP_NUM_THREADS": str(max(1, (cores or 1) // count))}


def _require_success(statuses: Sequence[int]) -> None:
    ends = [signal.Signals(-it).name if it < 0 else f"status {it}" for it in statuses]
    failed = [f"{n} ({end})" for n, end in enumerate(ends, start=1) if statuses[n - 1]]
    if failed:
        raise ContrasentError(
            f"of {len(statuses)} workers these failed: {', '.join(failed)}; their messages are "
            "above, and SIGKILL is mostly for want of memory. The shards of the others are whole: "
            "run the command again for the rest"
        )
