"""A contestant in another process."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.worker import Worker, answer
from contrasent.errors import ContrasentError

Request = dict[str, Any]

_QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "KINETO_LOG_LEVEL": "99",
    "PYTHONWARNINGS": "ignore",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""What peers print while they load says nothing about their speed."""


class MissingPackageError(ContrasentError):
    """A contestant needs a package that its Python lacks."""


class Link(Protocol):
    """Something that answers requests; see :mod:`benchmarks.worker`."""

    def ask(self, request: Request) -> dict[str, Any]:
        """The answer to one request."""

    def close(self) -> None:
        """End it."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A contestant before it is started.

    Attributes:
        name: what the tables call it.
        job: its job, as ``module:Class``.
        settings: the arguments of the job.
        python: the interpreter that runs it.
        other_python: the one that runs it where a package is missing in the first.
        bits: of the numbers in its matrix products, where that is known.
    """

    name: str
    job: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    python: str = sys.executable
    other_python: str | None = None
    bits: int | None = None


class Process:
    """A worker in a process of its own."""

    def __init__(self, python: str) -> None:
        root = str(Path(__file__).parents[1])
        found = os.environ.get("PYTHONPATH")
        path = f"{root}{os.pathsep}{found}" if found else root
        environment = {**_QUIET, **os.environ, "PYTHONPATH": path}
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            encoding="utf-8",
        )

    def ask(self, request: Request) -> dict[str, Any]:
        """The answer to one request.

        Raises:
            ContrasentError: the process has died.
        """
        requests, answers = self._process.stdin, self._process.stdout
        if requests is None or answers is None:
            raise ContrasentError("the pipes to the contestant were not opened")
        try:
            print(json.dumps(request), file=requests, flush=True)
            line = answers.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise ContrasentError(f"the process ended with code {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """End the process."""
        if self._process.stdin:
            with suppress(BrokenPipeError):  # of a process that died
                self._process.stdin.close()
        if self._process.stdout:
            self._process.stdout.close()
        self._process.wait()


class Here:
    """A worker in this process, for tests and debuggers."""

    def __init__(self, _python: str = "") -> None:
        self._worker = Worker()

    def ask(self, request: Request) -> dict[str, Any]:
        """The answer to one request."""
        found: dict[str, Any] = json.loads(json.dumps(answer(self._worker, dict(request))))
        return found

    def close(self) -> None:
        """Forget the job."""
        self._worker.job = None


Start = Callable[[str], Link]
"""Opens a link, given the interpreter: :class:`Process` or :class:`Here`."""


class Contestant:
    """A job that was started, wherever it runs.

    Attributes:
        name: what the tables call it.
        versions: of the packages that its Python has.
    """

    def __init__(self, spec: Spec, link: Link) -> None:
        self.name = spec.name
        self._link = link
        found = self._ask("start", job=spec.job, settings=dict(spec.settings))
        self.versions: dict[str, str] = found["versions"]

    def round(self, number: int) -> dict[str, Any]:
        """Do a round; what the job measured, and ``seconds``."""
        return self._ask("round", number=number)

    def profile(self, number: int) -> dict[str, dict[str, float]]:
        """The shares of a round's time: ``kinds`` of work, and ``parts`` of a training step."""
        return self._ask("profile", number=number)

    def rows(self, path: Path) -> None:
        """Let the job write its embeddings to ``path``."""
        self._ask("rows", path=str(path))

    def peak_memory(self) -> dict[str, int | None]:
        """``bytes`` of memory at most, and ``device_bytes`` on an accelerator."""
        return self._ask("peak_memory")

    def _ask(self, action: str, **arguments: Any) -> dict[str, Any]:
        found = self._link.ask({"do": action, **arguments})
        if "missing" in found:
            raise MissingPackageError(found["missing"])
        if "error" in found:
            raise ContrasentError(f"{self.name}: {action} failed\n{found['error']}")
        return found


@contextmanager
def started(
    specs: Iterable[Spec], start: Start = Process
) -> Iterator[tuple[list[Contestant], dict[str, str]]]:
    """Start every contestant whose packages are there, and end them all afterwards.

    Yields:
        The contestants, and why each other one is left out, by its name.
    """
    contestants: list[Contestant] = []
    left_out: dict[str, str] = {}
    with ExitStack() as stack:
        for spec in specs:
            try:
                contestants.append(_started(spec, start, stack))
            except MissingPackageError as error:
                left_out[spec.name] = str(error)
        yield contestants, left_out


def _started(spec: Spec, start: Start, stack: ExitStack) -> Contestant:
    link = start(spec.python)
    stack.callback(link.close)
    try:
        return Contestant(spec, link)
    except MissingPackageError:
        if spec.other_python is None:
            raise
    other = start(spec.other_python)
    stack.callback(other.close)
    return Contestant(spec, other)
