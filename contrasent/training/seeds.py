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

_SUMMARY = "seeds.json"


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
    """Train a recipe once for each seed, and compare the runs with the start.

    None in all but the first of several processes.

    Args:
        recipe: whose ``train.seed`` is replaced.
        output: the folder; run S is ``output/seed-S``, and ``seeds.json`` has the scores.
        seeds: of the runs.
        on_run: is called after each with its seed and result, as :func:`train` returns it.
        resume: keep runs that are complete and continue the one that was cut off.
        overwrite: replace runs of these seeds.
        options: further ones of :func:`train`.

    Raises:
        ContrasentError: as :func:`train`; ``output`` is a run itself.
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
    write_text(output / _SUMMARY, json.dumps({**summary, "scores": each}, indent=2) + "\n")
    return runs


def check_places(
    output: Path, seeds: Sequence[int], *, resume: bool, overwrite: bool
) -> dict[int, Path]:
    """The folders of the runs by their seeds; the first of several processes looks at them.

    Raises:
        ConfigError: one of them cannot be there.
    """
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
    evaluations = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    first = next(line for line in evaluations if "evaluation" in line)
    ((name, score),) = first.get("plain", first["evaluation"]).items()
    start = score if first["step"] == 0 else None
    return [SeedScores(f"{name}, best step", "", tuple(values), start, None)]


def _final_scores(results: Sequence[Mapping[str, Any]]) -> list[SeedScores]:
    """The scores that all runs have; none of runs that kept none."""
    runs = [
        {(it["of"], it["metric"]): it for it in result.get("changes", ())} for result in results
    ]
    scores = []
    for of, metric in runs[0]:
        changes = [run[of, metric] for run in runs if (of, metric) in run]
        if len(changes) == len(runs):
            compared = [it["compared"] for it in changes]
            errors = [it["interval"]["error"] for it in compared if it["interval"]]
            error = fmean(errors) if len(errors) == len(runs) else None
            start = max(it["value"] - it["compared"]["difference"] for it in changes)
            values = tuple(it["value"] for it in changes)
            scores.append(SeedScores(of, metric, values, start, error))
    return scores
