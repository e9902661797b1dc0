"""A contestant in another process."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.worker import Worker, answer
from contrasent.errors import ContrasentError

_QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "KINETO_LOG_LEVEL": "99",
    "PYTHONWARNINGS": "ignore",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""What peers print while they load says nothing about their speed."""


class MissingPackageError(ContrasentError):
    """A contestant needs a package that its Python lacks."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A contestant before it is started."""

    name: str  # in the tables
    job: str  # ``module:Class``
    settings: Mapping[str, Any] = field(default_factory=dict)  # the arguments of the job
    other_python: str | None = None  # runs it where a package is missing in this one
    bits: int | None = None  # of the numbers in its matrix products, where that is known


class Process:
    """A worker in a process of its own, which answers requests; see :mod:`benchmarks.worker`."""

    def __init__(self, python: str) -> None:
        root = str(Path(__file__).parents[1])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**_QUIET, **os.environ, "PYTHONPATH": path},
            encoding="utf-8",
        )

    def ask(self, request: dict[str, Any]) -> Any:
        """The answer to one request; ContrasentError if the process has died."""
        process: Any = self._process
        line = ""
        with suppress(BrokenPipeError):
            print(json.dumps(request), file=process.stdin, flush=True)
            line = process.stdout.readline()
        if not line:
            raise ContrasentError(f"the process ended with code {process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        with suppress(BrokenPipeError):  # of a process that died
            self._process.communicate()


class Here:
    """A worker in this process, for tests and debuggers."""

    def __init__(self, _python: str = "") -> None:
        self._worker = Worker()

    def ask(self, request: dict[str, Any]) -> Any:
        """The answer to one request."""
        return json.loads(json.dumps(answer(self._worker, dict(request))))

    def close(self) -> None:
        """Forget the job."""
        self._worker.job = None


Start = Callable[[str], Process | Here]
"""Starts a worker of an interpreter."""


class Contestant:
    """A job that was started, and the versions of the packages of its Python."""

    def __init__(self, spec: Spec, worker: Process | Here) -> None:
        self.name, self._worker = spec.name, worker
        self.versions = self.ask("start", job=spec.job, settings=dict(spec.settings))["versions"]

    def ask(self, action: str, **arguments: Any) -> Any:
        """What :class:`benchmarks.worker.Worker` answers; ContrasentError names who failed."""
        found = self._worker.ask({"do": action, **arguments})
        if "missing" in found:
            raise MissingPackageError(found["missing"])
        if "error" in found:
            raise ContrasentError(f"{self.name}: {action} failed\n{found['error']}")
        return found


@contextmanager
def started(
    specs: Iterable[Spec], start: Start = Process
) -> Iterator[tuple[list[Contestant], dict[str, str]]]:
    """Yield the contestants whose packages are there, and why each other one is left out."""
    contestants: list[Contestant] = []
    left_out: dict[str, str] = {}
    with ExitStack() as stack:
        for spec in specs:
            for python in filter(None, (sys.executable, spec.other_python)):
                worker = start(python)
                stack.callback(worker.close)
                try:
                    contestants.append(Contestant(spec, worker))
                    left_out.pop(spec.name, None)
                    break
                except MissingPackageError as error:
                    left_out[spec.name] = str(error)
        yield contestants, left_out
