"""The work of a reproduction: jobs made and measured, one after the other or several at once.

A failure is written beside its job and stays in its cell; everything else goes on.
"""

import json
import logging
import os
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

import numpy as np

from contrasent import evaluation
from contrasent.errors import ContrasentError
from contrasent.evaluation import STS, TRANSFER, EncoderUse, Scores, Suite
from contrasent.files import remove_folder, write_text, writing
from contrasent.recipe import Recipe
from contrasent.records import lines_of_kind
from contrasent.reproduce.jobs import DONE, Job, Measured, Measurement, Store, Value
from contrasent.reproduce.papers import PAIRS, load_scales

Notify = Callable[[str], None]
"""Takes a line on every job."""

_RUN, _FITTED = "run", "fitted"
_PAPERS_TOKENS = 64
_PRELOADED = (
    *("accelerate", "contrasent.objectives", "scipy.stats"),
    "transformers.models.bert.modeling_bert",
    "transformers.tokenization_utils_tokenizers",
)
_DEV_PRESET = "dev"
"""SentEval's quick settings, by which the papers' scripts score the dev parts."""


@dataclass(frozen=True, slots=True)
class Work:
    """A job, and what is to be measured of it."""

    job: Job  # to be made, unless it is made
    measurements: tuple[Measurement, ...]  # that have no result yet
    store: Store  # where everything is kept


def plan_work(measurements: Iterable[Measurement], store: Store) -> list[Work]:
    """What is left to do, a job once, each after those that it is made from."""
    wanted: dict[str, dict[str, Measurement]] = {}
    jobs = dict[str, Job]()
    for measurement in measurements:
        of = measurement.job
        jobs = {job.key: job for job in of.chain()} | jobs
        if measurement.name and not store.path(measurement, ".json").is_file():
            wanted.setdefault(of.key, {})[measurement.key] = measurement
    work = [
        Work(job, tuple(wanted.get(key, {}).values()), store)
        for key, job in sorted(jobs.items(), key=lambda it: len(list(it[1].chain())))
    ]
    return [it for it in work if it.measurements or not store.is_made(it.job)]


def run_work(work: Sequence[Work], jobs: int, notify: Notify) -> None:
    """Do all of it, so many ``jobs`` at once.

    Each has a process of its own, which may be killed, and whose memory ends with it. It is forked
    from one that has imported what training needs.
    """
    for it in work:
        for path in it.store.folder(it.job).glob("*failed.txt"):
            path.unlink()
    left, pending = list(work), {it.job.key for it in work}
    busy: dict[Future[str], tuple[Work, ProcessPoolExecutor]] = {}
    forking = get_context("forkserver")
    forking.set_forkserver_preload([__name__, *_PRELOADED])
    try:
        while left or busy:
            ready = [
                it for it in left if pending.isdisjoint(job.key for job in [*it.job.chain()][:-1])
            ]
            for it in ready[: jobs - len(busy)]:
                process = ProcessPoolExecutor(1, forking, _end_with_parent)
                busy[process.submit(_perform, it, jobs)] = it, process
                left.remove(it)
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                it, process = busy.pop(future)
                try:
                    line = future.result()
                except BrokenExecutor:
                    line = _fail(it, "its process was killed, perhaps for want of memory")
                process.shutdown()
                pending.discard(it.job.key)
                notify(f"[{len(work) - len(left) - len(busy)}/{len(work)}] {line}")
    finally:
        for _, process in busy.values():
            process.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    def watch() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _perform(work: Work, jobs: int) -> str:
    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() // jobs))
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    if jobs == 1:  # of several, lines would not tell which they are of
        logging.basicConfig(format="%(message)s")
        logging.getLogger("contrasent").setLevel(logging.INFO)
    job, store, started = work.job, work.store, time.perf_counter()
    try:
        above = next((it for it in job.chain() if not store.is_made(it)), job)
        if above is not job:
            reason = store.failure(above)
            return _fail(work, f"{above.label}, which it is made from, failed: {reason}")
        if not store.is_made(job):
            _make(job, store)
        failed = _measure(work)
    except Exception as error:  # noqa: BLE001 - a job's failure is its own, whatever it is
        return _fail(work, _reason(error))
    seed = f" (seed {job.seed})" if job.seed is not None else ""
    line = f"{job.label}{seed}: {time.perf_counter() - started:.0f} s"
    return f"{line}; failed: {'; '.join(failed)}" if failed else line


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, ContrasentError) else f"{type(error).__name__}: {error}"


def _fail(work: Work, reason: str) -> str:
    write_text(work.store.folder(work.job) / "failed.txt", reason)
    return f"{work.job.label} failed: {reason}"


def _make(job: Job, store: Store) -> None:
    from contrasent.training import environment

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
    """Train, and keep the encoders of the best step after the first and of the last one.

    The start takes part in the selection of a run, but is no system of the papers' tables.
    """
    from contrasent.model import training_device
    from contrasent.training import train

    run = store.folder(job) / _RUN
    if job.above is not None:
        start = str(_encoder_folder(store, job.above))
        recipe = replace(recipe, encoder=replace(recipe.encoder, name=start))
    teachers = {role: str(_encoder_folder(store, it)) for role, it in job.teachers.items()}
    recipe = replace(recipe, objective={**recipe.objective, **teachers})
    train(recipe, run, resume=True, device=store.device)
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    kept = "best" if result["best_step"] else "last"
    for name in {"best", "best-twin", "last-twin"} - {kept}:
        shutil.rmtree(run / name, ignore_errors=True)
    note = "no step was better than the start; the last one is scored"
    return {
        "encoder": f"{_RUN}/{kept}",
        "note": note if result["best_step"] == 0 else "",
        "steps": result["step"],
        "device": training_device(store.device).type,
        **{name: result[name] for name in ("examples", "precision", "peak_memory")},
        "trained_parameters": result["trained_parameters"],
    }


def _fit(job: Job, store: Store) -> dict[str, Any]:
    from contrasent.fitting import FITTERS, fit_sif, open_fitting_text
    from contrasent.model import WordEncoder

    place = store.folder(job) / _FITTED
    text = open_fitting_text([job.text], None, store.data_dir)
    remove_folder(place)
    plain = _load_job(store, job.above or job)
    if isinstance(plain, WordEncoder):
        encoder, info = fit_sif(plain, text)
        encoder.save(place, info)
    else:
        _, info = FITTERS[job.system.make].fit(plain, text, max_tokens=_PAPERS_TOKENS)
        plain.save(place, info)
    return {"encoder": _FITTED, "note": ""}


def _encoder_folder(store: Store, job: Job) -> Path | str:
    if job.above and job.system.make == "train" and job.system.step == "last":
        return store.folder(job.above) / _RUN / "last"
    if job.kind == "start":
        return _encoder_folder(store, job.above) if job.above else job.source
    return store.folder(job) / str(store.description(job)["encoder"])


def _load_job(store: Store, job: Job) -> Any:
    from contrasent.model import are_words, load_encoder

    place = _encoder_folder(store, job)
    if job.kind == "start" and not are_words(place):
        head = job.system.head or "none"
        return load_encoder(place, pooler=job.system.pooler, head=head, device=store.device)
    return load_encoder(place, device=None if are_words(place) else store.device)


def _measure(work: Work) -> list[str]:
    job, store = work.job, work.store
    preset = load_scales()[1][store.scale].preset
    use: EncoderUse | None = None
    failed = []
    for it in work.measurements:
        store.folder(job).mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        try:
            if job.kind == "data":
                measured = _measure_data(it.name, job.source, store.data_dir)
            elif it.job.system.count == "trained":
                measured = Measured({"parameters": store.description(job)["trained_parameters"]})
            else:
                if use is None:
                    encoder = _load_job(store, job)
                    encoder.name = job.label
                    use = EncoderUse(encoder, seed=job.seed)
                measured = _measure_encoder(it, use, store.data_dir, preset)
            seconds = time.perf_counter() - started
            _write(replace(measured, seconds=seconds, scale=store.scale), it, store)
        except Exception as error:  # noqa: BLE001 - a cell's failure is its own
            write_text(store.path(it, ".failed.txt"), _reason(error))
            failed.append(_reason(error))
    return failed


def _write(measured: Measured, measurement: Measurement, store: Store) -> None:
    if measured.examples is not None:
        arrays = {name: it.astype(np.float32) for name, it in measured.examples.items()}
        with writing(store.path(measurement, ".npz")) as partial, partial.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
    if measured.geometry is not None:
        lines = lines_of_kind("geometry", [measured.geometry])
        write_text(store.path(measurement, ".jsonl"), lines)
    # The file by which it counts comes last.
    names = [it.name for it in fields(measured) if it.name not in ("examples", "geometry")]
    content = {name: getattr(measured, name) for name in names}
    write_text(store.path(measurement, ".json"), json.dumps(content, indent=1) + "\n")


@cache
def read_suite(
    names: tuple[str, ...], data_dir: str | None, split: str, preset: str = _DEV_PRESET
) -> Suite:
    """Tasks, read once in a process."""
    options = evaluation.Options(data_dir, (split,), learning=evaluation.preset_named(preset))
    return evaluation.load_suite(names, options)


def _measure_encoder(
    measurement: Measurement, use: EncoderUse, data_dir: str | None, preset: str
) -> Measured:
    kind, _, rest = measurement.name.partition(":")
    split = "dev" if kind.endswith("-dev") else "test"
    match kind.removesuffix("-dev"):
        case "sts":
            names = (rest,) if rest else STS if split == "test" else ("stsb", "sickr")
            return _scored(use, read_suite(names, data_dir, split), "spearman", "sts", STS)
        case "transfer":
            preset = preset if split == "test" else _DEV_PRESET
            suite = read_suite(TRANSFER, data_dir, split, preset)
            return _scored(use, suite, "accuracy", "transfer", TRANSFER)
        case "retrieval":
            suite = read_suite(("stsb-retrieval",), data_dir, "test")
            scores, problems = _scores(use, suite)
            moves = {of: ratio.influence for (_, of), ratio in scores.ratios.items()}
            values: dict[str, Value] = {it.metric: it.value for it in scores.records}
            return Measured(values, list(map(asdict, scores.records)), problems, examples=moves)
        case "geometry":
            return _measure_geometry(use, rest, data_dir)
        case "neighbours":
            return _measure_neighbours(use, rest, measurement.argument, data_dir)
    encoder: Any = use.encoder
    parameters = sum(it.numel() for it in encoder.parameters())
    backbone = encoder.backbone
    return Measured({"parameters": parameters, "width": backbone.width, "layers": backbone.depth})


def _scores(use: EncoderUse, suite: Suite) -> tuple[Scores, list[str]]:
    scores = suite.records(use)
    return scores, [f"{it.task}: {it.message}" for it in (*suite.problems, *scores.problems)]


def _scored(
    use: EncoderUse, suite: Suite, metric: str, mean: str, averaged: Sequence[str]
) -> Measured:
    scores, problems = _scores(use, suite)
    (split,) = suite.options.splits
    suffix = "" if split == "test" else "-dev"
    matching = [
        it for it in scores.records if (it.metric, it.split) == (metric, split) and not it.subset
    ]
    values: dict[str, Value] = {}
    for it in matching:
        way = f"/{it.aggregation}" if mean == "sts" and it.aggregation != "all" else ""
        values[f"{it.task}{suffix}{way}"] = it.value
    for way in ("", "/wmean", "/mean"):
        parts = [f"{task}{suffix}{way}" for task in averaged]
        if values.keys() >= set(parts):
            values[f"{mean}{suffix}{way}"] = sum(float(values[it]) for it in parts) / len(parts)
    examples = {label: np.concatenate(each) for label, each in scores.similarities.items()}
    examples |= {
        name.label: it.influence for (name, of), it in scores.ratios.items() if of == metric
    }
    return Measured(values, list(map(asdict, matching)), problems, examples=examples)


def _measure_geometry(use: EncoderUse, pairs: str, data_dir: str | None) -> Measured:
    rated = evaluation.RatedPairs.read(pairs, data_dir)
    geometry = evaluation.measure(use, rated)
    suffix = "" if pairs == PAIRS else f":{pairs}"
    values: dict[str, Value] = {f"{it.metric}{suffix}": it.value for it in geometry.records}
    values["spectrum" + suffix] = float(geometry.spectrum.mean())
    cosines = {it.label: it.cosines for it in geometry.groups}
    values |= {f"group:{label}{suffix}": float(it.mean()) for label, it in cosines.items()}
    low, high = evaluation.rating_range(rated.gold)
    cosines[f"{low:g}-{high:g}"] = np.concatenate([*cosines.values()])
    values |= {f"deviation:{label}{suffix}": float(it.std()) for label, it in cosines.items()}
    influences = evaluation.geometry_influences(rated.embed(use), rated)
    moves = {f"{name}{suffix}": it for name, it in influences.items()}
    return Measured(values, list(map(asdict, geometry.records)), examples=moves, geometry=geometry)


def _measure_neighbours(use: EncoderUse, asked: str, file: str, data_dir: str | None) -> Measured:
    queries, _, source = asked.partition("@")
    corpus = evaluation.read_corpus(file or source, data_dir=data_dir)
    nearest = evaluation.find_neighbours(use, corpus, evaluation.read_queries(queries, (), corpus))
    lines = [
        f"{query.text} -> " + "; ".join(f"{it.text} ({it.score:.2f})" for it in query.nearest)
        for query in nearest.queries
    ]
    return Measured({f"neighbours:{asked}": " | ".join(lines)})


def _measure_data(name: str, data: str, data_dir: str | None) -> Measured:
    from contrasent.data import build, open_examples

    kind, _, split = name.partition(":")
    if kind == "pairs":
        if split not in evaluation.STS_TASKS[data].splits:
            return Measured({name: "N/A"})
        suite = read_suite((data,), data_dir, split)
        evaluation.raise_problems(suite.problems)
        return Measured({name: sum(len(it.gold) for it in suite.tasks("sts")[0].subsets)})
    count, overlaps = 0, list[float]()
    for sentences in open_examples(data):
        count += 1
        overlap = build.f1(sentences[0], sentences[1]) if len(sentences) > 1 else None
        overlaps += [] if overlap is None else [overlap]
    mean: dict[str, Value] = {"overlap": sum(overlaps) / len(overlaps)} if overlaps else {}
    return Measured({"examples": count, **mean})
