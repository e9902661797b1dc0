"""One benchmark, from what the contestants are to what they reached."""

import json
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.results import Entry, Result
from contrasent.errors import ConfigError, ContrasentError
from contrasent.metrics import pair_cosines

WARM_UP = 1
"""Rounds of each contestant that are not counted: caches fill and kernels are compiled."""
_PEAK = "matrix products alone"
_QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
_QUIET |= {"KINETO_LOG_LEVEL": "99", "PYTHONWARNINGS": "ignore"}


class Spec(NamedTuple):
    """A contestant before it is started; those of one job and equal settings share a process."""

    name: str  # in the tables
    job: str  # ``module:Class`` of `benchmarks.jobs`
    settings: Mapping[str, Any] = {}  # the arguments of the job
    bits: int | None = None  # of the numbers in its matrix products, where that is known
    part: str = ""  # of the job, in the tables
    arguments: Mapping[str, Any] = {}  # of a round of this part


@dataclass(frozen=True, slots=True)
class Race:
    """What is measured."""

    title: str  # of the table
    setting: dict[str, Any]  # for the table
    specs: Sequence[Spec]
    references: Sequence[str] = ()  # the peer's contestants, its default first
    warm_up: int = WARM_UP
    flops: Callable[[int], float] | None = None  # that the sentences of a round need
    shapes: Sequence[tuple[int, int, int]] = ()  # of products: their peak is taken
    profiled: bool = False  # one more round, of those whose bits are known, under the profiler
    parts: bool = False  # how long the parts of a training step take, from that round
    compared: str = ""  # with whose embeddings, or hits, those of all are compared


class Process:
    """A worker in a process of its own, which answers requests; see :mod:`benchmarks.worker`."""

    def __init__(self, python: str) -> None:
        root, command = str(Path(__file__).parents[1]), [python, "-m", "benchmarks.worker"]
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        environment, pipe = {**_QUIET, **os.environ, "PYTHONPATH": path}, subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, env=environment, encoding="utf-8"
        )

    def ask(self, request: dict[str, Any]) -> Any:
        """The answer to one request."""
        process, line = self._process, ""
        with suppress(BrokenPipeError):
            print(json.dumps(request), file=process.stdin, flush=True)
            line = process.stdout.readline()
        return json.loads(line or f'{{"error": "the process ended with code {process.wait()}"}}')

    def close(self) -> None:
        """End the process."""
        with suppress(BrokenPipeError):  # of a process that died
            self._process.communicate()


Start = Callable[[str], Any]
"""Starts a worker of an interpreter, such as a `Process`."""


class Contestant(NamedTuple):
    """A job that takes part, and what it reached so far."""

    spec: Spec
    worker: Any
    entry: Entry

    def ask(self, action: str, **arguments: Any) -> Any:
        """The answer of :class:`benchmarks.worker.Worker`; ContrasentError where it has none."""
        values = self.worker.ask({"do": action, **arguments})
        if "error" in values:
            raise ContrasentError(f"{self.entry.title}: {action} failed\n{values['error']}")
        return values


@dataclass
class _Line:
    """The contestants that still take part; the result says why others do not."""

    result: Result
    running: list[Contestant] = field(default_factory=list)
    started: dict[str, tuple[Any, dict[str, Any]]] = field(default_factory=dict)

    def add(self, spec: Spec, start: Start, pythons: Sequence[str]) -> None:
        """Start a job in the first Python that has its packages, unless another part shares it."""
        request = {"do": "start", "job": spec.job, "settings": dict(spec.settings)}
        key = json.dumps(request)
        for python in () if key in self.started else pythons:
            worker = start(python)
            self.started[key] = worker, worker.ask(request)
            if not self.started[key][1].get("missing"):
                break
        worker, values = self.started[key]
        if "error" in values:
            reasons = self.result.left_out if values.get("missing") else self.result.failed
            reasons[spec.name] = values["error"].splitlines()[-1]
            return
        entry = Entry(spec.name, part=spec.part, versions=values["versions"])
        entry.facts = values["facts"] | ({"bits": spec.bits} if spec.bits else {})
        self.running.append(Contestant(spec, worker, entry))

    @contextmanager
    def turn(self, contestant: Contestant) -> Iterator[None]:
        """Let one act; if it fails it is named, and the others go on."""
        try:
            yield
        except ContrasentError as error:
            print(error, file=sys.stderr, flush=True)
            self.running.remove(contestant)
            self.result.failed[contestant.entry.title] = str(error).splitlines()[-1]


def run(race: Race, options: Namespace, place: Path, start: Start = Process) -> Result:
    """Run it: contestants, each in a process of its own, take turns, and write into ``place``.

    ConfigError if there are no rounds, or nobody can take part.
    """
    if options.rounds < 1:
        raise ConfigError(f"--rounds must be at least 1, not {options.rounds}")
    last = race.warm_up + options.rounds
    result = Result(race.title, {**race.setting, "rounds": options.rounds}, [], [])
    result.flops = [race.flops(it) for it in range(race.warm_up, last)] if race.flops else []
    line, rows = _Line(result), dict[str, np.ndarray]()
    with ExitStack() as stack:
        pythons = [sys.executable, *filter(None, [options.peer_python])]
        peak = [Spec(_PEAK, "peak:Peak", {"shapes": race.shapes})] * bool(race.shapes)
        for spec in [*peak, *race.specs]:
            line.add(spec, lambda python: stack.enter_context(closing(start(python))), pythons)
        for number, it in ((n, it) for n in range(last) for it in list(line.running)):
            with line.turn(it):
                print(f"round {number} of {last - 1}: {it.entry.title}", file=sys.stderr)
                values = it.ask("round", number=number, **it.spec.arguments)
                if it.spec.job.endswith(":Encode") and race.compared:
                    values |= it.ask("tokenise")
                it.entry.rounds.extend([values] * (number >= race.warm_up))
        for it in list(line.running):
            with line.turn(it):
                if race.profiled and it.spec.bits:
                    values = it.ask("profile", number=last)
                    it.entry.kinds = values["kinds"]
                    it.entry.parts = values["parts"] if race.parts else {}
                memory = it.ask("peak_memory")
                it.entry.memory, it.entry.device_memory = memory["bytes"], memory["device_bytes"]
        if peak and line.running and line.running[0].spec.name == _PEAK:
            result.peaks = line.running.pop(0).entry.rounds
        for it in list(line.running) if race.compared else ():
            with line.turn(it):
                it.ask("rows", path=str(place / "rows.npy"))
                rows[it.entry.title] = np.load(place / "rows.npy")
    result.entries = [it.entry for it in line.running]
    if not result.entries:
        raise ConfigError(f"no contestant could take part: {result.left_out | result.failed}")
    names = {entry.name for entry in result.entries}
    result.references = [name for name in race.references if name in names]
    for entry in result.entries if race.compared in rows else ():
        entry.facts |= _compared(rows[entry.title], rows[race.compared])
    return result


def _compared(matrix: np.ndarray, exact: np.ndarray) -> dict[str, float]:
    """The lowest cosine of embeddings, or the share of hits that are the same."""
    if not np.issubdtype(matrix.dtype, np.integer):
        return {"lowest cosine": float(pair_cosines(matrix, exact).min())}
    shares = [np.isin(row, best).mean() for row, best in zip(matrix, exact, strict=True)]
    return {"recall@10": float(np.mean(shares))}
