"""Reproduction of a table: every row made, scored, and kept as soon as it is done."""

from __future__ import annotations

import json
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

from contrasent.errors import ConfigError, ContrasentError, pick
from contrasent.evaluation.embed import DescribedEncoder, EncoderUse
from contrasent.evaluation.geometry import Geometry, measure, write_geometry
from contrasent.evaluation.protocols import TransferProtocol
from contrasent.evaluation.rated_pairs import RatedPairs
from contrasent.evaluation.suite import Suite, load_suite
from contrasent.evaluation.task_types import Options
from contrasent.files import exclusive, remove_folder, write_text
from contrasent.records import Record, write_records
from contrasent.reproduce.plan import Plan, Scale, chosen_rows, load_plan, missing_materials
from contrasent.reproduce.row_builder import Family, MaterialFile, RowBuilder, bring

ROWS, TEXT = "rows", "text"
DONE, RECORDS, GEOMETRY = "row.json", "records.jsonl", "geometry.jsonl"
_BEGUN = "identity.json"

Notify = Callable[[str], None]
"""Takes a line on every row."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """The data that encoders are measured on.

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
        """Both, read once in a process.

        Raises:
            ConfigError: a name is unknown.
            DataError: data is missing or damaged.
        """
        return _read(self)


@cache
def _read(tasks: Tasks) -> tuple[Suite, RatedPairs]:
    options = Options(tasks.data_dir, learning=TransferProtocol(preset=tasks.preset))
    pairs = RatedPairs.read(tasks.geometry, tasks.data_dir)
    return load_suite(tasks.names, options), pairs


@dataclass(frozen=True, slots=True)
class RowScores:
    """Scores of one encoder.

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
    use = EncoderUse(encoder, seed=seed)
    scores = suite.records(use)
    problems = [f"{it.task}: {it.message}" for it in (*suite.problems, *scores.problems)]
    geometry = None
    try:
        geometry = measure(use, pairs)
    except ContrasentError as error:
        problems.append(str(error))
    return RowScores(scores.records, geometry, tuple(problems))


@dataclass(frozen=True, slots=True)
class Request:
    """A table to reproduce.

    Attributes:
        table: its name.
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
class Reproduction:
    """The outcome of a request.

    Attributes:
        plan: the table.
        scale_name: the name of the scale.
        scale: how much was done.
        rows: those of the request, in the order of the table.
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
    """Whatever a worker needs for any row."""

    builder: RowBuilder
    tasks: Tasks
    identities: Mapping[str, dict[str, Any]]

    def is_done(self, name: str) -> bool:
        return (self.builder.folder / name / DONE).is_file()


def reproduce(request: Request, output: Path, notify: Notify) -> Reproduction:
    """Make and score the rows; those that are done already are left as they are.

    Args:
        request: the table.
        output: the folder, with a folder for each row.
        notify: takes a line on every row.

    Raises:
        ConfigError: a name is unknown, nothing can be made, a row was made otherwise before, or
            another process writes there.
        DataError: a material or the tasks' data is missing or damaged.
        CheckpointError: the start cannot be found.
    """
    plan = load_plan(request.table)
    name = pick("scale", request.scale or next(iter(plan.scales)), plan.scales)
    scale = plan.scales[name]
    if request.tasks:
        scale = replace(scale, tasks=list(request.tasks))
    chosen = chosen_rows(plan, request.rows)
    lacking = missing_materials(plan, chosen, request.given)
    to_make = [it for it in chosen if it not in lacking and plan.rows[it].make != "cited"]
    with exclusive(output):
        used = {material for row in to_make for material in plan.needs(row)}
        given = {material: it for material, it in request.given.items() if material in used}
        materials = bring(plan, scale, given, output / TEXT)
        paths = {material: it.path for material, it in materials.items()}
        folder, data_dir = output / ROWS, request.data_dir
        tasks = Tasks(tuple(scale.tasks), scale.preset, scale.geometry, data_dir)
        tasks.read()
        identities = {row: identity(plan, scale, row, materials) for row in to_make}
        _refuse_others(folder, identities, overwrite=request.overwrite)
        builder = RowBuilder(plan, scale, paths, folder, data_dir, request.device)
        work = _Work(builder, tasks, identities)
        todo = {row for row in to_make if not work.is_done(row)}
        if len(to_make) > len(todo):
            notify(f"{len(to_make) - len(todo)} of {len(to_make)} rows are done already")
        families = sorted(plan.families(to_make), key=lambda it: -len(todo & set(it)))
        failed = _run(work, [it for it in families if todo & set(it)], request.jobs, notify)
    return Reproduction(plan, name, scale, tuple(chosen), lacking, failed, materials)


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


def _refuse_others(
    folder: Path, identities: Mapping[str, dict[str, Any]], *, overwrite: bool
) -> None:
    """Make sure that no row is mixed up with one made otherwise."""
    for name, known in identities.items():
        if _known_identity(folder / name) in (None, known):
            continue
        if not overwrite:
            raise ConfigError(
                f"{folder / name} was made with other settings, text or tasks; name another "
                "--output, or make such rows again with --overwrite"
            )
        remove_folder(folder / name)


def _known_identity(folder: Path) -> dict[str, Any] | None:
    """That of the row that lies in a folder, finished or begun; None if there is none."""
    for file in (folder / DONE, folder / _BEGUN):
        if file.is_file():
            values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            return values["identity"] if file.name == DONE else values
    return None


def _run(
    work: _Work, families: Sequence[Sequence[str]], jobs: int, notify: Notify
) -> dict[str, str]:
    """Make families of rows, several at once with several jobs; the rows that failed, and why."""
    failed: dict[str, str] = {}
    if jobs == 1 or len(families) < 2:
        for family in families:
            failed |= _make_family(work, family, notify)
        return failed
    threads = max(1, (os.cpu_count() or 1) // jobs)
    pool = ProcessPoolExecutor(
        min(jobs, len(families)), get_context("spawn"), _start_worker, (threads,)
    )
    try:
        with pool:
            running = [pool.submit(_make_family, work, family, _print) for family in families]
            for finished in as_completed(running):
                failed |= finished.result()
    except KeyboardInterrupt:
        pool.shutdown(cancel_futures=True)
        raise
    return failed


def _start_worker(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _print(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _make_family(work: _Work, family: Sequence[str], notify: Notify) -> dict[str, str]:
    """Make the rows that are not done; one that fails takes those with it that are made from it."""
    failed: dict[str, str] = {}
    encoders = Family(work.builder)
    for name in family:
        if work.is_done(name):
            continue
        above = work.builder.plan.rows[name].of
        if above in failed:
            failed[name] = f"{above}, which it is made from, failed"
            continue
        try:
            notify(f"{name}: {_make_row(work, encoders, name)}")
        except ContrasentError as error:
            failed[name] = str(error)
            notify(f"{name} failed: {error}")
    return failed


def _make_row(work: _Work, encoders: Family, name: str) -> str:
    from contrasent.training.run_folder import environment

    folder = work.builder.folder / name
    write_text(folder / _BEGUN, json.dumps(work.identities[name], indent=2) + "\n")
    started, busy = time.perf_counter(), time.process_time()
    encoder = encoders.encoder(name)
    seconds, busy_seconds = time.perf_counter() - started, time.process_time() - busy
    trained = work.builder.plan.rows[name].make == "train"
    recipe = work.builder.recipe(name) if trained else None
    scores = score(encoder, work.tasks, recipe.train.seed if recipe else None)
    whole, busy_whole = time.perf_counter() - started, time.process_time() - busy
    write_records(folder / RECORDS, scores.records)
    write_geometry(folder / GEOMETRY, [scores.geometry] if scores.geometry else [])
    run = {
        "identity": work.identities[name],
        "recipe": asdict(recipe) if recipe else None,
        "problems": list(scores.problems),
        "seconds": {"make": seconds, "score": whole - seconds},
        "cpu_seconds": {"make": busy_seconds, "score": busy_whole - busy_seconds},
        "environment": environment(),
    }
    write_text(folder / DONE, json.dumps(run, indent=2) + "\n")
    (folder / _BEGUN).unlink()
    return f"done in {whole:.0f} s"
