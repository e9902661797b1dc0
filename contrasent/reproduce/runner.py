"""The work of a reproduction: jobs made and measured, one after the other or several at once.

A failure is written beside its job and stays in its cell; everything else goes on.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, fields, replace
from math import inf
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

import numpy as np

from contrasent.errors import ContrasentError
from contrasent.evaluation.embed import EncoderUse
from contrasent.evaluation.geometry import write_geometry
from contrasent.files import remove_folder, write_text, writing
from contrasent.recipe import Recipe
from contrasent.reproduce.jobs import DONE, Job, Measurement, Store
from contrasent.reproduce.measures import CachedEncoder, Measured, measure_data, measure_encoder
from contrasent.reproduce.papers import load_scales

Notify = Callable[[str], None]
"""Takes a line on every job."""

_RUN, _FITTED = "run", "fitted"
_PAPERS_TOKENS = 64
_YOUNG_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Work:
    """A job, and what is to be measured of it."""

    job: Job  # to be made, unless it is made
    measurements: tuple[Measurement, ...]  # that have no result yet
    store: Store  # where everything is kept
    needs_encoder: bool  # whether the job has to be made, for its measures or for other jobs


def _counts(measurement: Measurement) -> bool:
    """Whether parameters are counted of a run that need not be made."""
    return measurement.job.system.count == "trained"


def plan_work(measurements: Iterable[Measurement], store: Store) -> list[Work]:
    """What is left to do, a job once, each after those that it is made from."""
    wanted: dict[str, dict[str, Measurement]] = {}
    jobs: dict[str, Job] = {}
    needed: set[str] = set()
    for measurement in measurements:
        of = measurement.job
        chain = [of] if _counts(measurement) else list(of.chain())
        jobs = {job.key: job for job in chain} | jobs
        needed |= set() if _counts(measurement) else {job.key for job in chain}
        if measurement.name and not store.is_measured(measurement):
            wanted.setdefault(of.key, {})[measurement.key] = measurement
    work = [
        Work(job, tuple(wanted.get(key, {}).values()), store, needs_encoder=key in needed)
        for key, job in sorted(jobs.items(), key=lambda it: len(list(it[1].chain())))
    ]
    return [
        it for it in work if it.measurements or (it.needs_encoder and not store.is_made(it.job))
    ]


def seconds_left(work: Sequence[Work], usual: Mapping[str, float]) -> float:
    """What the work takes, by the jobs of its kind that were made, else as the scale says."""
    times: dict[str, list[float]] = {}
    for path in work[0].store.root.glob("jobs/*/*.json") if work else ():
        content = json.loads(path.read_text(encoding="utf-8"))
        name = content.get("of") or path.name.rpartition("-")[0]
        times.setdefault(name, []).append(content.get("seconds", 0.0))
    known = {**usual, **{name: sum(each) / len(each) for name, each in times.items()}}
    total = 0.0
    for it in work:
        if not it.store.is_made(it.job) and it.needs_encoder:
            total += known.get(it.job.system.recipe or "", known.get(it.job.kind, 0.0))
        for measurement in it.measurements:
            total += known.get(measurement.name.partition(":")[0], known["measure"])
    return total


def run_work(work: Sequence[Work], jobs: int, usual: Mapping[str, float], notify: Notify) -> None:
    """Do all of it, so many ``jobs`` at once, each in a process that may be killed.

    A process does one job after the other, until it is old, as its memory grows from training to
    training, or nothing is ready for it: an idle one might be killed before its next job.
    """
    for it in work:
        for path in it.store.folder(it.job).glob("*failed.txt"):
            path.unlink()
    left, pending = list(work), {it.job.key for it in work}
    busy: dict[Future[str], tuple[Work, ProcessPoolExecutor, float]] = {}
    free: list[tuple[ProcessPoolExecutor, float]] = []
    spawning = get_context("spawn")
    try:
        while left or busy:
            ready = [
                it for it in left if pending.isdisjoint(job.key for job in [*it.job.chain()][:-1])
            ]
            for it in ready[: jobs - len(busy)]:
                process, started = (
                    free.pop()
                    if free
                    else (ProcessPoolExecutor(1, spawning, _begin, (jobs,)), time.monotonic())
                )
                busy[process.submit(_perform, it)] = it, process, started
                left.remove(it)
            while free:
                free.pop()[0].shutdown()
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                it, process, started = busy.pop(future)
                try:
                    line = future.result()
                except BrokenExecutor:
                    line = _fail(it, "its process was killed, perhaps for want of memory")
                    started = -inf
                is_young = time.monotonic() - started < _YOUNG_SECONDS
                free.append((process, started)) if is_young else process.shutdown()
                pending.discard(it.job.key)
                undone = [*left, *(other for other, *_ in busy.values())]
                done, seconds = len(work) - len(undone), seconds_left(undone, usual) / jobs
                notify(f"[{done}/{len(work)}] {line}; about {duration(seconds)} left")
    finally:
        for process in [*(it for it, _ in free), *(it for _, it, _ in busy.values())]:
            process.shutdown(cancel_futures=True)


def duration(seconds: float) -> str:
    """Such as ``3 h 5 min``."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def _begin(jobs: int) -> None:
    """Prepare a process that works on one of so many ``jobs``."""
    import torch

    def show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        kind = "warning" if issubclass(category, UserWarning) else category.__name__
        sys.stderr.write(f"{kind}: {message}\n")

    def end_with_parent() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(1)

    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # but while it works, in _perform
    warnings.showwarning = show_warning
    if jobs == 1:  # of several, lines would not tell which they are of
        logging.basicConfig(format="%(message)s")
        logging.getLogger("contrasent").setLevel(logging.INFO)
    threading.Thread(target=end_with_parent, daemon=True).start()


def _perform(work: Work) -> str:
    """Make and measure a job; a line on what came of it."""
    job, store = work.job, work.store
    started = time.perf_counter()
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        above = next((it for it in job.chain() if not store.is_made(it)), job)
        if above is not job and work.needs_encoder:
            reason = store.failure(above)
            return _fail(work, f"{above.label}, which it is made from, failed: {reason}")
        if work.needs_encoder and not store.is_made(job):
            _make(job, store)
        failed = _measure(work)
    except Exception as error:  # noqa: BLE001 - a job's failure is its own, whatever it is
        return _fail(work, _reason(error))
    finally:
        signal.signal(signal.SIGINT, interrupt)
    seed = f" (seed {job.seed})" if job.seed is not None else ""
    line = f"{job.label}{seed}: {time.perf_counter() - started:.0f} s"
    return f"{line}; failed: {'; '.join(failed)}" if failed else line


def _reason(error: Exception) -> str:
    is_ours = isinstance(error, ContrasentError)
    return str(error) if is_ours else f"{type(error).__name__}: {error}"


def _fail(work: Work, reason: str) -> str:
    write_text(work.store.folder(work.job) / "failed.txt", reason)
    return f"{work.job.label} failed: {reason}"


def _make(job: Job, store: Store) -> None:
    from contrasent.training.run_folder import environment

    started, busy = time.perf_counter(), time.process_time()
    more = _train(job, job.recipe, store) if job.recipe else _fit(job, store)
    description = {
        "label": job.label,
        "scale": store.scale,
        "seed": job.seed,
        "of": job.system.recipe or job.kind,
        "identity": job.identity,
        "recipe": asdict(job.recipe) if job.recipe else None,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": time.process_time() - busy,
        "environment": environment(),
        **more,
    }
    write_text(store.folder(job) / DONE, json.dumps(description, indent=1) + "\n")


def _train(job: Job, recipe: Recipe, store: Store) -> dict[str, Any]:
    """Train, and keep the encoder of the best step after the first, else the last one.

    The start takes part in the selection of a run, but is no system of the papers' tables.
    """
    from contrasent.model.precision import training_device
    from contrasent.training.run import train

    run = store.folder(job) / _RUN
    if job.above is not None:
        start = str(encoder_folder(store, job.above))
        recipe = replace(recipe, encoder=replace(recipe.encoder, name=start))
    teachers = {role: str(encoder_folder(store, it)) for role, it in job.teachers.items()}
    recipe = replace(recipe, objective={**recipe.objective, **teachers})
    train(recipe, run, resume=True, device=store.device)
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    kept = "best" if result["best_step"] else "last"
    for name in {"best", "last", "best-twin", "last-twin"} - {kept}:
        shutil.rmtree(run / name, ignore_errors=True)
    note = "no step was better than the start; the last one is scored"
    return {
        "encoder": f"{_RUN}/{kept}",
        "note": note if result["best_step"] == 0 else "",
        "steps": result["step"],
        "examples": result["examples"],
        "precision": result["precision"],
        "device": training_device(store.device).type,
        "peak_memory": result["peak_memory"],
    }


def _fit(job: Job, store: Store) -> dict[str, Any]:
    from contrasent.fitting.maps import FITTERS, Embedding
    from contrasent.fitting.sif import fit_sif
    from contrasent.fitting.text import open_fitting_text
    from contrasent.model.lookup_encoders import WordEncoder

    place = store.folder(job) / _FITTED
    text = open_fitting_text([job.text], None, store.data_dir)
    remove_folder(place)
    plain = load_job(store, job.above or job)
    if isinstance(plain, WordEncoder):
        encoder, info = fit_sif(plain, text)
        encoder.save(place, info)
    else:
        how = Embedding(max_tokens=_PAPERS_TOKENS)
        info = FITTERS[job.system.make].fit(plain, text, None, how)
        plain.save(place, info)
    return {"encoder": _FITTED, "note": ""}


def encoder_folder(store: Store, job: Job) -> Path | str:
    """The folder of a job's encoder, or the start that it is."""
    if job.kind == "start":
        return encoder_folder(store, job.above) if job.above else job.source
    return store.folder(job) / str(store.description(job)["encoder"])


def load_job(store: Store, job: Job) -> Any:
    """The encoder of a job that was made."""
    from contrasent.model.loading import load_encoder
    from contrasent.model.lookup_encoders import are_words

    place = encoder_folder(store, job)
    if job.kind == "start" and not are_words(place):
        head = job.system.head or "none"
        return load_encoder(place, pooler=job.system.pooler, head=head, device=store.device)
    return load_encoder(place, device=None if are_words(place) else store.device)


def _measure(work: Work) -> list[str]:
    """Measure what has no result yet; what failed."""
    job, store = work.job, work.store
    preset = load_scales()[1][store.scale].preset
    use: EncoderUse | None = None
    failed = []
    for it in work.measurements:
        store.folder(job).mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        try:
            if job.kind == "data":
                measured = measure_data(it.name, job.source, store.data_dir)
            elif job.recipe and _counts(it):
                measured = _count_trained(job.recipe)
            else:
                if use is None:
                    encoder = CachedEncoder(load_job(store, job), job.label)
                    use = EncoderUse(encoder, seed=job.seed)
                measured = measure_encoder(it.name, use, store.data_dir, preset, it.argument)
            seconds = time.perf_counter() - started
            _write(replace(measured, seconds=seconds, scale=store.scale), it, store)
        except Exception as error:  # noqa: BLE001 - a cell's failure is its own
            write_text(store.path(it, ".failed.txt"), _reason(error))
            failed.append(_reason(error))
    return failed


def _write(measured: Measured, measurement: Measurement, store: Store) -> None:
    """Write a result, the file by which it counts last."""
    if measured.examples is not None:
        arrays = {name: it.astype(np.float32) for name, it in measured.examples.items()}
        with writing(store.path(measurement, ".npz")) as partial, partial.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
    if measured.geometry is not None:
        write_geometry(store.path(measurement, ".jsonl"), [measured.geometry])
    names = [it.name for it in fields(measured) if it.name not in ("examples", "geometry")]
    content = {name: getattr(measured, name) for name in names}
    write_text(store.path(measurement, ".json"), json.dumps(content, indent=1) + "\n")


def _count_trained(recipe: Recipe) -> Measured:
    """The parameters that a run trains: those of the encoder and of its objective."""
    import torch

    from contrasent.training.loop import trainable_parameters
    from contrasent.training.run_folder import complete
    from contrasent.training.setup import prepare

    parts = prepare(complete(recipe), torch.device("cpu"))
    trained = trainable_parameters(parts.encoder, parts.objective, parts.twin)
    return Measured({"parameters": sum(it.numel() for it in trained)})
