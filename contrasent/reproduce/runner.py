"""What the process of a job does: it is made and measured.

A failure is written beside its job and stays in its cell; everything else goes on.
"""

import logging
import time
import warnings
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from contrasent import evaluation, model
from contrasent.data import build, open_examples
from contrasent.errors import ContrasentError
from contrasent.evaluation import STS, TRANSFER, EncoderUse, Scores, Suite
from contrasent.files import read_json, remove_folder, write_json, write_text, writing
from contrasent.fitting import FITTERS, open_fitting_text
from contrasent.recipe import Recipe
from contrasent.records import lines_of_kind
from contrasent.reproduce.jobs import DONE, Job, Measured, Measurement, Store, Value, Work
from contrasent.reproduce.materials import read_suite
from contrasent.reproduce.papers import PAIRS, load_scales
from contrasent.training import environment, train

_RUN, _FITTED = "run", "fitted"
_PAPERS_TOKENS = 64

model.prepare_loading()  # once, in the process that those of jobs are forked from


def perform(work: Work, jobs: int) -> str:
    """Do it, beside ``jobs`` less one others; a line of what became of it."""
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
            return work.fail(f"{above.label}, which it is made from, failed: {reason}")
        if not store.is_made(job):
            _make(job, store)
        failed = _measure(work)
    except Exception as error:  # noqa: BLE001 - a job's failure is its own, whatever it is
        return work.fail(_reason(error))
    seed = f" (seed {job.seed})" if job.seed is not None else ""
    line = f"{job.label}{seed}: {time.perf_counter() - started:.0f} s"
    return f"{line}; failed: {'; '.join(failed)}" if failed else line


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, ContrasentError) else f"{type(error).__name__}: {error}"


def _make(job: Job, store: Store) -> None:
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
    write_json(store.folder(job) / DONE, description, indent=1)


def _train(job: Job, recipe: Recipe, store: Store) -> dict[str, Any]:
    """Train, and keep the encoders of the best step after the first and of the last one.

    The start takes part in the selection of a run, but is no system of the papers' tables.
    """
    run = store.folder(job) / _RUN
    if job.above is not None:
        start = str(_encoder_folder(store, job.above))
        recipe = replace(recipe, encoder=replace(recipe.encoder, name=start))
    teachers = {role: str(_encoder_folder(store, it)) for role, it in job.teachers.items()}
    recipe = replace(recipe, objective={**recipe.objective, **teachers})
    train(recipe, run, resume=True, device=store.device)
    result = read_json(run / "result.json")
    kept = "best" if result["best_step"] else "last"
    for name in {"best", "best-twin", "last-twin"} - {kept}:
        remove_folder(run / name)
    note = "no step was better than the start; the last one is scored"
    return {
        "encoder": f"{_RUN}/{kept}",
        "note": note if result["best_step"] == 0 else "",
        "steps": result["step"],
        "device": model.training_device(store.device).type,
        **{it: result[it] for it in ("examples", "precision", "peak_memory", "trained_parameters")},
    }


def _fit(job: Job, store: Store) -> dict[str, Any]:
    place = store.folder(job) / _FITTED
    text = open_fitting_text([job.text], None, store.data_dir)
    remove_folder(place)
    plain = _load_job(store, job.above or job)
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
    place = _encoder_folder(store, job)
    if job.kind == "start" and not model.are_words(place):
        head = job.system.head or "none"
        return model.load_encoder(place, pooler=job.system.pooler, head=head, device=store.device)
    return model.load_encoder(place, device=None if model.are_words(place) else store.device)


def _measure(work: Work) -> list[str]:
    job, store = work.job, work.store
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
                measured = _measure_encoder(it, use, store)
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
    write_json(store.path(measurement, ".json"), content, indent=1)


def _measure_encoder(measurement: Measurement, use: EncoderUse, store: Store) -> Measured:
    kind, _, rest = measurement.name.partition(":")
    split, data_dir = "dev" if kind.endswith("-dev") else "test", store.data_dir
    match kind := kind.removesuffix("-dev"):
        case "sts":
            names = (rest,) if rest else STS if split == "test" else ("stsb", "sickr")
            return _scored(use, read_suite(names, data_dir, split), kind)
        case "transfer":
            preset = load_scales()[1][store.scale].preset
            return _scored(use, read_suite(TRANSFER, data_dir, split, preset), kind)
        case "retrieval":
            scores, problems = _scores(use, read_suite(("stsb-retrieval",), data_dir, "test"))
            moves = {of: ratio.influence for (_, of), ratio in scores.ratios.items()}
            values: dict[str, Value] = {it.metric: it.value for it in scores.records}
            return Measured(values, list(map(asdict, scores.records)), problems, examples=moves)
        case "geometry":
            return _measure_geometry(use, rest, data_dir)
        case "neighbours":
            asked, _, source = rest.partition("@")
            corpus = evaluation.read_corpus(measurement.argument or source, data_dir=data_dir)
            queries = evaluation.read_queries(asked, (), corpus)
            lines = [
                f"{it.text} -> " + "; ".join(f"{hit.text} ({hit.score:.2f})" for hit in it.nearest)
                for it in evaluation.find_neighbours(use, corpus, queries).queries
            ]
            return Measured({f"neighbours:{rest}": " | ".join(lines)})
    encoder: Any = use.encoder
    parameters = sum(it.numel() for it in encoder.parameters())
    backbone = encoder.backbone
    return Measured({"parameters": parameters, "width": backbone.width, "layers": backbone.depth})


def _scores(use: EncoderUse, suite: Suite) -> tuple[Scores, list[str]]:
    scores = suite.records(use)
    return scores, [f"{it.task}: {it.message}" for it in (*suite.problems, *scores.problems)]


def _scored(use: EncoderUse, suite: Suite, mean: str) -> Measured:
    metric, averaged = ("spearman", STS) if mean == "sts" else ("accuracy", TRANSFER)
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


def _measure_data(name: str, data: str, data_dir: str | None) -> Measured:
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
