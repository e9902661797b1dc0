"""One benchmark, from what the contestants are to what they reached."""

import json
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.results import Entry, Result
from contrasent.errors import ConfigError, ContrasentError

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
    compared: str | None = None  # with whose embeddings, or hits, those of all are compared


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


class _Line:
    """The contestants that still take part, and why others do not."""

    def __init__(self) -> None:
        self.running: list[Contestant] = []
        self.left_out: dict[str, str] = {}
        self.failed: dict[str, str] = {}

    def add(self, spec: Spec, start: Start, pythons: Sequence[str]) -> None:
        """Start a job in the first Python that has its packages, unless another part shares it."""
        entry = Entry(spec.name, part=spec.part, facts={"bits": spec.bits} if spec.bits else {})
        for other in self.running:
            if (other.spec.job, other.spec.settings) == (spec.job, spec.settings):
                entry.versions, entry.facts = other.entry.versions, dict(other.entry.facts)
                self.running.append(Contestant(spec, other.worker, entry))
                return
        if spec.name in self.left_out:
            return
        for python in pythons:
            worker = start(python)
            values = worker.ask({"do": "start", "job": spec.job, "settings": dict(spec.settings)})
            if not values.get("missing"):
                break
        if "error" in values:
            reasons = self.left_out if values.get("missing") else self.failed
            reasons[spec.name] = values["error"].splitlines()[-1]
        else:
            entry.versions, entry.facts = values["versions"], values["facts"] | entry.facts
            self.running.append(Contestant(spec, worker, entry))

    def each(self, act: Callable[[Contestant], None]) -> None:
        """Let every contestant act; one that fails is named, and the others go on."""
        for contestant in list(self.running):
            try:
                act(contestant)
            except ContrasentError as error:
                print(error, file=sys.stderr, flush=True)
                self.running.remove(contestant)
                self.failed[contestant.entry.title] = str(error).splitlines()[-1]


def run(race: Race, options: Namespace, place: Path, start: Start = Process) -> Result:
    """Run it: contestants, each in a process of its own, take turns, and write into ``place``.

    ConfigError if there are no rounds, or nobody can take part.
    """
    if options.rounds < 1:
        raise ConfigError(f"--rounds must be at least 1, not {options.rounds}")
    last, line = race.warm_up + options.rounds, _Line()
    with ExitStack() as stack:
        pythons = [sys.executable, *filter(None, [options.peer_python])]
        peak = [Spec(_PEAK, "peak:Peak", {"shapes": race.shapes})] * bool(race.shapes)
        for spec in [*peak, *race.specs]:
            line.add(spec, lambda python: stack.enter_context(closing(start(python))), pythons)

        def make_round(contestant: Contestant, number: int) -> None:
            title = f"round {number} of {last - 1}: {contestant.entry.title}"
            print(title, file=sys.stderr, flush=True)
            values = contestant.ask("round", number=number, **contestant.spec.arguments)
            if contestant.spec.job.endswith(":Encode") and race.compared:
                values |= contestant.ask("tokenise")
            contestant.entry.rounds.extend([values] * (number >= race.warm_up))

        def finish(contestant: Contestant) -> None:
            entry = contestant.entry
            if race.profiled and contestant.spec.bits:
                values = contestant.ask("profile", number=last)
                entry.kinds, entry.parts = values["kinds"], values["parts"] if race.parts else {}
            memory = contestant.ask("peak_memory")
            entry.memory, entry.device_memory = memory["bytes"], memory["device_bytes"]

        for number in range(last):
            line.each(partial(make_round, number=number))
        line.each(finish)
        peaks = [it.entry.rounds for it in line.running if it.spec.name == _PEAK]
        line.running = [it for it in line.running if it.spec.name != _PEAK]
        if race.compared is not None:
            _compare(line, race.compared, place / "rows.npy")
    entries = [contestant.entry for contestant in line.running]
    if not entries:
        raise ConfigError(f"no contestant could take part: {line.left_out | line.failed}")
    return Result(
        title=race.title,
        setting={**race.setting, "rounds": options.rounds},
        references=[name for name in race.references if name in {it.name for it in entries}],
        entries=entries,
        flops=[race.flops(number) for number in range(race.warm_up, last)] if race.flops else [],
        peaks=[values for rounds in peaks for values in rounds],
        left_out=line.left_out,
        failed=line.failed,
    )


def _compare(line: _Line, compared: str, path: Path) -> None:
    """Note each one's lowest cosine with the embeddings of ``compared``, or shared hits."""
    rows: dict[str, np.ndarray] = {}

    def read(contestant: Contestant) -> None:
        contestant.ask("rows", path=str(path))
        rows[contestant.entry.title] = np.load(path)

    line.each(read)
    for entry in (contestant.entry for contestant in line.running if compared in rows):
        matrix, exact = rows[entry.title], rows[compared]
        if np.issubdtype(matrix.dtype, np.integer):
            shares = [np.isin(row, best).mean() for row, best in zip(matrix, exact, strict=True)]
            entry.facts["recall@10"] = float(np.mean(shares))
        else:
            lengths = np.linalg.norm(matrix, axis=1) * np.linalg.norm(exact, axis=1)
            entry.facts["lowest cosine"] = float(((matrix * exact).sum(axis=1) / lengths).min())
