"""Runs of one recipe over several seeds: means, deviations, and differences to the start."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from contrasent.distributed import launched
from contrasent.errors import ConfigError
from contrasent.evaluation.compare import SeedScores
from contrasent.files import write_text
from contrasent.recipe import Recipe
from contrasent.training.run import train
from contrasent.training.run_folder import RunFolder
from contrasent.training.scoring import Result


@dataclass(frozen=True, slots=True)
class SeedRuns:
    """Runs that differ in their seed alone."""

    folders: Mapping[int, Path]  # of the runs, by their seeds
    scores: tuple[SeedScores, ...]  # the dev task, then the final tasks and their average
    # folder of the encoder with the highest dev score, of the first run without a dev task
    best: Path


def train_seeds(
    recipe: Recipe,
    output: Path,
    seeds: Sequence[int],
    *,
    on_run: Callable[[int, Result | None], object] = lambda *_: None,
    resume: bool = False,
    overwrite: bool = False,
    **options: Any,
) -> SeedRuns | None:
    """Train a recipe once for each seed into ``output/seed-S``, and compare with the start.

    ``on_run`` is called with a seed and its result; further ``options`` are those of :func:`train`.
    None in all but the first of several processes. ContrasentError as :func:`train`.
    """
    folders = check_places(output, seeds, resume=resume, overwrite=overwrite)
    for seed, folder in folders.items():
        of_seed = replace(recipe, train=replace(recipe.train, seed=seed))
        result = train(of_seed, folder, resume=resume, overwrite=overwrite, **options)
        if launched().leads:
            on_run(seed, result)
    if not launched().leads:
        return None
    runs = read_seeds(folders)
    each = [
        {**asdict(it), "mean": it.mean, "deviation": it.deviation}
        | {"difference": it.difference, "interval": it.interval}
        for it in runs.scores
    ]
    summary = {"seeds": list(folders), "best": runs.best.relative_to(output).as_posix()}
    write_text(output / "seeds.json", json.dumps({**summary, "scores": each}, indent=2) + "\n")
    return runs


def check_places(
    output: Path, seeds: Sequence[int], *, resume: bool, overwrite: bool
) -> dict[int, Path]:
    """The folders of the runs by their seeds; ConfigError if one of them cannot be there."""
    folders = {seed: output / f"seed-{seed}" for seed in seeds}
    if not launched().leads:
        return folders
    if RunFolder(output).is_run:
        raise ConfigError(
            f"{output} holds a training run; with several seeds it would hold one in a folder "
            "each, so choose another with --output"
        )
    for folder in folders.values():
        RunFolder(folder).check_place(resume=resume, overwrite=overwrite)
    return folders


def read_seeds(folders: Mapping[int, Path]) -> SeedRuns:
    """Complete runs, by their seeds."""
    results = {
        seed: json.loads(RunFolder(folder).result.read_text(encoding="utf-8"))
        for seed, folder in folders.items()
    }
    scores = [*_dev_scores(folders, results), *_final_scores(list(results.values()))]
    best = max(results, key=lambda seed: results[seed]["best_score"] or 0.0)
    run = RunFolder(folders[best])
    return SeedRuns(folders, tuple(scores), run.best if run.best.is_dir() else run.last)


def _dev_scores(
    folders: Mapping[int, Path], results: Mapping[int, Mapping[str, Any]]
) -> list[SeedScores]:
    values = [result["best_score"] for result in results.values()]
    if None in values:
        return []
    file = RunFolder(next(iter(folders.values()))).metrics
    lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    first = next(line for line in lines if "evaluation" in line)
    ((name, score),) = first.get("plain", first["evaluation"]).items()
    start = None if first["step"] else score
    return [SeedScores(f"{name}, best step", "", tuple(values), start, None)]


def _final_scores(results: Sequence[Mapping[str, Any]]) -> list[SeedScores]:
    """The scores that all runs have; none of runs that kept none."""
    runs = [{(it["of"], it["metric"]): it for it in run.get("changes", ())} for run in results]
    scores = []
    for of, metric in (key for key in runs[0] if all(key in run for run in runs)):
        changes = [run[of, metric] for run in runs]
        intervals = [it["compared"]["interval"] for it in changes]
        error = fmean(it["error"] for it in intervals) if all(intervals) else None
        start = max(it["value"] - it["compared"]["difference"] for it in changes)
        values = tuple(it["value"] for it in changes)
        scores.append(SeedScores(of, metric, values, start, error))
    return scores
