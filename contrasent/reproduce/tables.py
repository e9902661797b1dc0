"""Tables being made: every row scored and kept as soon as it is done."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from contrasent.errors import ConfigError, ContrasentError
from contrasent.evaluation.embed import DescribedEncoder
from contrasent.evaluation.geometry import Geometry, RatedPairs, measure, write_geometry
from contrasent.evaluation.protocols import TransferProtocol
from contrasent.evaluation.suite import Suite, load_suite
from contrasent.evaluation.task_types import Options
from contrasent.files import exclusive, remove_folder, write_text
from contrasent.records import Record, write_records
from contrasent.reproduce.plan import Plan, Scale, chosen_rows, load_plan, missing_materials
from contrasent.reproduce.rows import Family, MaterialFile, RowBuilder, bring


@dataclass(frozen=True, slots=True)
class RowScores:
    """What was measured of one encoder.

    Attributes:
        records: of all tasks.
        geometry: of the pairs; None if it cannot be measured.
        problems: what could not be computed, and why.
    """

    records: tuple[Record, ...]
    geometry: Geometry | None
    problems: tuple[str, ...]


def score(encoder: DescribedEncoder, tasks: Tasks, seed: int | None) -> RowScores:
    """Score an encoder on the tasks and measure its geometry.

    Args:
        encoder: what is measured.
        tasks: on what.
        seed: of the training run that made it, for the records.

    Raises:
        CheckpointError: it cannot be scored on any task.
    """
    suite, pairs = tasks.read()
    found = suite.records(encoder, "fp32")
    problems = [*suite.problems, *found.problems]
    said = [f"{problem.task}: {problem.message}" for problem in problems]
    geometry = None
    try:
        geometry = measure(encoder, pairs, seed=seed)
    except ContrasentError as error:
        said.append(str(error))
    records = tuple(replace(record, seed=seed) for record in found.records)
    return RowScores(records, geometry, tuple(said))


@dataclass(frozen=True, slots=True)
class Tasks:
    """What encoders are measured on.

    Attributes:
        names: as ``contrasent evaluate --tasks`` takes them.
        preset: SentEval's settings of the classifiers.
        geometry: the pairs of alignment and uniformity.
        data_dir: SentEval's folder.
    """

    names: tuple[str, ...]
    preset: str
    geometry: str
    data_dir: str | None

    def read(self) -> tuple[Suite, RatedPairs]:
        """The data, read once in a process.

        Raises:
            ConfigError: a name is unknown.
            DataError: data is missing or damaged.
        """
        return _read(self)


@cache
def _read(tasks: Tasks) -> tuple[Suite, RatedPairs]:
    options = Options(tasks.data_dir, learning=TransferProtocol(preset=tasks.preset))
    suite = load_suite(tasks.names, options)
    return suite, RatedPairs.read(tasks.geometry, tasks.data_dir)


logger = logging.getLogger("contrasent")

ROWS, TEXT = "rows", "text"
DONE, RECORDS, GEOMETRY = "row.json", "records.jsonl", "geometry.jsonl"
_BEGUN = "identity.json"

Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Request:
    """What a user asks for.

    Attributes:
        table: the name of the table.
        scale: one of its scales; None takes the first.
        given: files, folders and names by material.
        rows: some of the table's rows; empty for all.
        tasks: in place of the scale's.
        data_dir: SentEval's folder.
        jobs: families of rows that are worked on at once, each with its share of the cores.
        overwrite: make rows again that were made otherwise.
        device: what computes; None takes the accelerator if there is one.
    """

    table: str
    scale: str | None
    given: Mapping[str, str]
    rows: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    data_dir: str | None = None
    jobs: int = 1
    overwrite: bool = False
    device: str | None = None


@dataclass(frozen=True, slots=True)
class RowResult:
    """What became of an order.

    Attributes:
        plan: the table.
        scale_name: the name of the scale.
        scale: how much was done.
        rows: those of the order, in the order of the table.
        lacking: rows that were not made, and the materials that they need.
        failed: rows that could not be made or scored, and why.
        materials: what was read.
    """

    plan: Plan
    scale_name: str
    scale: Scale
    rows: tuple[str, ...]
    lacking: Mapping[str, set[str]]
    failed: Mapping[str, str]
    materials: Mapping[str, MaterialFile]


@dataclass(frozen=True, slots=True)
class _Work:
    """What a worker needs for any row."""

    workshop: RowBuilder
    tasks: Tasks
    identities: Mapping[str, dict[str, Any]]


def reproduce(order: Request, output: Path, tell: Told) -> RowResult:
    """Make and score the rows; those that are done already are left as they are.

    Args:
        order: what is asked for.
        output: the folder, with a folder for each row.
        tell: is told of every row.

    Raises:
        ConfigError: a name is unknown, nothing can be made, a row was made otherwise before, or
            another process writes there.
        DataError: a material or the tasks' data is missing or damaged.
        CheckpointError: the start cannot be found.
    """
    plan = load_plan(order.table)
    scale_name, scale = _scale(plan, order)
    chosen = chosen_rows(plan, order.rows)
    lacking = missing_materials(plan, chosen, order.given)
    made = [n for n in chosen if n not in lacking and plan.rows[n].make != "cited"]
    with exclusive(output):
        used = {name for row in made for name in plan.needs(row)}
        given = {name: it for name, it in order.given.items() if name in used}
        materials = bring(plan, scale, given, output / TEXT)
        paths = {name: it.path for name, it in materials.items()}
        workshop = RowBuilder(plan, scale, paths, output / ROWS, order.data_dir, order.device)
        tasks = Tasks(tuple(scale.tasks), scale.preset, scale.geometry, order.data_dir)
        tasks.read()
        identities = {name: identity(plan, scale, name, materials) for name in made}
        _refuse_others(workshop.folder, identities, overwrite=order.overwrite)
        todo = [name for name in made if not (workshop.folder / name / DONE).is_file()]
        if len(made) > len(todo):
            tell(f"{len(made) - len(todo)} of {len(made)} rows are done already")
        work = _Work(workshop, tasks, identities)
        families = sorted(plan.families(made), key=lambda it: -len(set(it) & set(todo)))
        failed = _run(work, [it for it in families if set(it) & set(todo)], order.jobs, tell)
    return RowResult(plan, scale_name, scale, tuple(chosen), lacking, failed, materials)


def identity(
    plan: Plan, scale: Scale, name: str, materials: Mapping[str, MaterialFile]
) -> dict[str, Any]:
    """Everything that decides the numbers of a row, but for the machine."""
    row = plan.rows[name]
    return {
        "row": asdict(replace(row, label="", note="", sts=None, transfer=None, study=None)),
        "scale": asdict(replace(scale, about="")),
        "materials": {key: materials[key].sha256 for key in sorted(plan.needs(name))},
        "of": identity(plan, scale, row.of, materials) if row.of else None,
    }


def _scale(plan: Plan, order: Request) -> tuple[str, Scale]:
    from contrasent.errors import pick

    name = pick("scale", order.scale or next(iter(plan.scales)), plan.scales)
    found = plan.scales[name]
    return name, replace(found, tasks=list(order.tasks)) if order.tasks else found


def _refuse_others(
    folder: Path, identities: Mapping[str, dict[str, Any]], *, overwrite: bool
) -> None:
    """Make sure that no row is mixed up with one made otherwise."""
    for name, own in identities.items():
        if _known_identity(folder / name) in (None, own):
            continue
        if not overwrite:
            raise ConfigError(
                f"{folder / name} was made with other settings, text or tasks; name another "
                "--output, or make such rows again with --overwrite"
            )
        remove_folder(folder / name)


def _known_identity(folder: Path) -> dict[str, Any] | None:
    """That of the row that lies in a folder, finished or begun; None if there is none."""
    if (folder / DONE).is_file():
        found: dict[str, Any] = json.loads((folder / DONE).read_text(encoding="utf-8"))["identity"]
        return found
    if (folder / _BEGUN).is_file():
        begun: dict[str, Any] = json.loads((folder / _BEGUN).read_text(encoding="utf-8"))
        return begun
    return None


def _run(work: _Work, families: Sequence[Sequence[str]], jobs: int, tell: Told) -> dict[str, str]:
    if jobs == 1 or len(families) < 2:
        failed: dict[str, str] = {}
        for family in families:
            failed |= _make_family(work, family, tell)
        return failed
    return _run_in_processes(work, families, jobs)


def _run_in_processes(work: _Work, families: Sequence[Sequence[str]], jobs: int) -> dict[str, str]:
    threads = max(1, (os.cpu_count() or 1) // jobs)
    failed: dict[str, str] = {}
    pool = ProcessPoolExecutor(
        min(jobs, len(families)), get_context("spawn"), _start_worker, (threads,)
    )
    try:
        with pool:
            running = [pool.submit(_make_family, work, family, _say) for family in families]
            for finished in as_completed(running):
                failed |= finished.result()
    except KeyboardInterrupt:
        pool.shutdown(cancel_futures=True)
        raise
    return failed


def _start_worker(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _make_family(work: _Work, family: Sequence[str], tell: Told) -> dict[str, str]:
    """Make the rows that are not done; one that fails takes those with it that are made from it."""
    failed: dict[str, str] = {}
    encoders = Family(work.workshop)
    for name in family:
        folder = work.workshop.folder / name
        above = work.workshop.plan.rows[name].of
        if (folder / DONE).is_file():
            continue
        if above in failed:
            failed[name] = f"{above}, which it is made from, failed"
            continue
        try:
            tell(f"{name}: {_make_row(work, encoders, name)}")
        except ContrasentError as error:
            failed[name] = str(error)
            tell(f"{name} failed: {error}")
    return failed


def _make_row(work: _Work, encoders: Family, name: str) -> str:
    from contrasent.training.folder import environment

    folder = work.workshop.folder / name
    write_text(folder / _BEGUN, json.dumps(work.identities[name], indent=2) + "\n")
    started = time.perf_counter(), time.process_time()
    encoder = encoders.remembering(name)
    between = time.perf_counter(), time.process_time()
    trained = work.workshop.plan.rows[name].make == "train"
    recipe = work.workshop.recipe(name) if trained else None
    found = score(encoder, work.tasks, recipe.train.seed if recipe else None)
    ended = time.perf_counter(), time.process_time()
    write_records(folder / RECORDS, found.records)
    write_geometry(folder / GEOMETRY, [found.geometry] if found.geometry else [])
    described = {
        "identity": work.identities[name],
        "recipe": asdict(recipe) if recipe else None,
        "problems": list(found.problems),
        "seconds": {"make": between[0] - started[0], "score": ended[0] - between[0]},
        "cpu_seconds": {"make": between[1] - started[1], "score": ended[1] - between[1]},
        "environment": environment(),
    }
    write_text(folder / DONE, json.dumps(described, indent=2) + "\n")
    (folder / _BEGUN).unlink()
    return f"done in {ended[0] - started[0]:.0f} s"
