"""Hyperparameter search: one recipe, settings to vary, and a dev task that decides.

Optuna (Akiba et al. 2019) proposes. Nothing but the dev task is looked at before the
best trial is known; start and result are then scored once on the final tasks.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from contrasent.errors import ConfigError, ContrasentError, require_extra
from contrasent.files import begins_anew, exclusive, write_text, writing_folder
from contrasent.recipe import Recipe, load_recipe, to_yaml
from contrasent.records import write_records
from contrasent.training import (
    BeforeAndAfter,
    RunFolder,
    complete,
    dev_task,
    final_tasks,
    score_result,
    train,
)

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

GRIDS = {
    "simcse": ("train.batch_size=64,128,256,512", "train.learning_rate=1e-5,3e-5,5e-5"),
    "diffcse": (
        "train.batch_size=64,128",
        "train.learning_rate=2e-6,3e-6,5e-6,7e-6,1e-5",
        "objective.mask_rate=0.15,0.20,0.30,0.40",
        "objective.rtd_weight=0.1,0.05,0.01,0.005,0.001",
    ),
}
"""The papers' grids (Gao et al. 2021, appendix A; Chuang et al. 2022, appendix A)."""

_STATE, _BASE = "search.json", "base.yaml"
_USUAL_TRIALS = 20
_AXIS = re.compile(r"\s*(?:--)?([\w-]+\.[\w-]+)\s*=\s*(\S.*)", re.DOTALL)
_RANGE = re.compile(r"(\S+?)\s*\.\.\s*([^:\s]+)\s*(:\s*log\s*)?")


def read_space(texts: Sequence[str]) -> dict[str, BaseDistribution]:
    """Read what is searched: settings with values, ranges of numbers, or the papers' grids.

    ``train.batch_size=64,128``, ``train.learning_rate=1e-6..1e-4:log``; two whole numbers are the
    ends of whole numbers alone.
    """
    require_extra("tune", "tune", "optuna")
    from optuna import distributions

    space: dict[str, BaseDistribution] = {}
    lines = (line for text in texts for line in GRIDS.get(text.strip(), (text,)))
    for text in lines:
        setting = _AXIS.fullmatch(text)
        key, values = (setting[1].replace("-", "_"), setting[2].strip()) if setting else ("", "..")
        try:
            if ".." not in values:
                choices = dict.fromkeys(it.strip() for it in values.split(","))
                axis: BaseDistribution = distributions.CategoricalDistribution(tuple(choices))
            elif (ends := _RANGE.fullmatch(values)) is None:
                raise ValueError("no range")
            elif ends[1].isdecimal() and ends[2].isdecimal():
                low, high = int(ends[1]), int(ends[2])
                axis = distributions.IntDistribution(low, high, log=bool(ends[3]))
            else:
                first, last = float(ends[1]), float(ends[2])
                axis = distributions.FloatDistribution(first, last, log=bool(ends[3]))
        except ValueError as error:
            raise ConfigError(
                f"--space {text} is no setting with values, such as train.batch_size=64,128, no "
                "range LOW..HIGH or LOW..HIGH:log of numbers above 0, such as "
                f"train.learning_rate=1e-6..1e-4:log, and no grid of {', '.join(GRIDS)}"
            ) from error
        if key in space:
            raise ConfigError(f"--space names {key} twice; give all its values at once")
        space[key] = axis
    return space


def _ends(axis: Any) -> list[Any]:
    """Values of an axis, as a search's file has them."""
    return [*axis.choices] if hasattr(axis, "choices") else [axis.low, axis.high, axis.log]


@dataclass(frozen=True, slots=True)
class TuningTrial:
    """A trial that has ended."""

    number: int
    settings: dict[str, Any]
    score: float | None  # the highest dev score but the start's, in [-1, 1]; None if it failed
    failure: str = ""


@dataclass(slots=True)
class _State:
    """All that is needed to go on with a search."""

    space: dict[str, list[Any]]  # what is searched
    trials: list[TuningTrial] = field(default_factory=list)
    running: dict[str, Any] | None = None  # the settings of the trial that has not ended

    def write(self, folder: Path) -> None:
        write_text(folder / _STATE, json.dumps(asdict(self), indent=1) + "\n")


@dataclass(frozen=True, slots=True)
class Tuning:
    """The result of a search."""

    trials: tuple[TuningTrial, ...]  # in the order in which they were made
    best: TuningTrial
    run: Path  # the best trial's training run
    recipe: Path  # makes it again with ``contrasent train``
    start: float | None  # dev score of the start as it comes, in [-1, 1]; None if it has none
    scores: BeforeAndAfter = field(default_factory=BeforeAndAfter)


def tune(  # noqa: PLR0913 - what the command takes, by name
    recipe: Recipe,
    space: Mapping[str, BaseDistribution],
    output: Path,
    *,
    trials: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    device: str | None = None,
    show_progress: bool = False,
    on_trial: Callable[[TuningTrial], object] = lambda _: None,
) -> Tuning:
    """Search settings of a recipe, as ``contrasent tune`` does.

    Without ``trials``, or with as many as there are combinations of lists, every combination is
    tried once (the papers' grid search); otherwise Optuna's tree-structured Parzen estimator
    proposes so many, each from the trials before it and from the recipe's seed. Only the best run
    keeps its encoders. ConfigError if a setting cannot be searched, nothing decides, or ``output``
    holds another search; ContrasentError if every trial failed.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    described = {key: _ends(axis) for key, axis in space.items()}
    with exclusive(output):
        if begins_anew(output, _STATE, resume=resume, overwrite=overwrite):
            with writing_folder(output) as folder:
                write_text(folder / _BASE, to_yaml(recipe))
                for key, values in described.items():
                    for value in values[: None if isinstance(values[-1], str) else 2]:
                        complete(load_recipe(folder / _BASE, {key: value}))
                if recipe.evaluation.task == "none":
                    raise ConfigError("evaluation.task is none, so nothing decides; name a task")
                if recipe.evaluation.task != "auto":
                    dev_task(recipe.evaluation)
                final_tasks(recipe.evaluation)
                _State(described).write(folder)
        search = _Search(output, space, recipe, {"device": device, "show_progress": show_progress})
        if load_recipe(output / _BASE) != recipe or search.state.space != described:
            raise ConfigError(
                f"{output} holds a search of other settings ({_BASE} and {_STATE} have them); ask "
                "for the same, name another --output, or replace it with --overwrite"
            )
        search.run(trials, on_trial)
        return search.finish()


class _Search:
    """A search in a folder."""

    def __init__(
        self,
        folder: Path,
        space: Mapping[str, BaseDistribution],
        recipe: Recipe,
        options: Mapping[str, Any],
    ) -> None:
        self.folder, self.space, self.seed, self.options = folder, space, recipe.train.seed, options
        self.state = TypeAdapter(_State).validate_json((folder / _STATE).read_bytes())

    def run(self, trials: int | None, on_trial: Callable[[TuningTrial], object]) -> None:
        """Go on with a trial that was cut off, try again what failed, and make the trials left."""
        self._keep_best()
        choices = [getattr(axis, "choices", ()) for axis in self.space.values()]
        size = prod(map(len, choices))  # 0 with a range
        asked = trials or size or _USUAL_TRIALS
        plan = [self.state.running, *(it.settings for it in self.trials if it.score is None)]
        if 0 < size <= asked:
            plan += [dict(zip(self.space, values, strict=True)) for values in product(*choices)]
            asked = 0  # no more than these
        for settings in plan:
            if settings is not None and self._score(settings) is None:
                on_trial(self._try(settings))
        for _ in range(asked - sum(it.score is not None for it in self.trials)):
            on_trial(self._try(self._proposed()))

    def _proposed(self) -> dict[str, Any]:
        """Settings that Optuna proposes after the trials there are."""
        import optuna
        from optuna.trial import TrialState

        sampler = optuna.samplers.TPESampler(seed=self.seed + len(self.state.trials))
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for it in self.state.trials:
            state = TrialState.FAIL if it.score is None else TrialState.COMPLETE
            study.add_trial(
                optuna.trial.create_trial(
                    params=it.settings, distributions=dict(self.space), value=it.score, state=state
                )
            )
        return study.ask(dict(self.space)).params

    def _score(self, settings: Mapping[str, Any]) -> float | None:
        """The score of a trial with these settings, if one succeeded."""
        scores = (it.score for it in self.trials if it.settings == settings)
        return next((score for score in scores if score is not None), None)

    def _try(self, settings: dict[str, Any]) -> TuningTrial:
        """Train with these settings, and keep the encoders if they are the best so far."""
        state, number, failure = self.state, len(self.state.trials), ""
        score, folder = self._score(settings), self._run(number)
        if score is None:
            state.running = settings
            state.write(self.folder)
            recipe = load_recipe(self.folder / _BASE, settings)
            recipe = replace(recipe, evaluation=replace(recipe.evaluation, final="none"))
            try:
                train(recipe, folder, resume=True, **self.options)
                score = max(self._dev_scores(number)[1])
            except ContrasentError as error:
                shutil.rmtree(folder, ignore_errors=True)
                failure = str(error)
        state.running = None
        state.trials.append(TuningTrial(number, settings, score, failure))
        state.write(self.folder)
        self._keep_best()
        return state.trials[-1]

    def _keep_best(self) -> None:
        """Remove the encoders of all trials but the best, also those that a kill left in part."""
        best = self._best()
        for trial in self.state.trials if best else []:
            if trial != best:
                for name in ("best", "last", "best-twin", "last-twin"):
                    shutil.rmtree(self._run(trial.number) / name, ignore_errors=True)

    def _run(self, number: int) -> Path:
        return self.folder / "trials" / str(number)

    @property
    def trials(self) -> list[TuningTrial]:
        """Those that have ended, in their order, but what failed and then succeeded."""
        succeeded = [it.settings for it in self.state.trials if it.score is not None]
        return [
            it for it in self.state.trials if it.score is not None or it.settings not in succeeded
        ]

    def _best(self) -> TuningTrial | None:
        """The first of the highest score; None where every trial failed."""
        scored = [(it.score, -it.number, it) for it in self.trials if it.score is not None]
        return max(scored, key=lambda it: it[:2])[2] if scored else None

    def _dev_scores(self, number: int) -> tuple[float | None, list[float]]:
        _, start, scores = RunFolder(self._run(number)).read_dev_scores()
        if not scores:
            raise ConfigError(
                "nothing decides: the run has no dev score; name one, evaluation.task"
            )
        return start, scores

    def finish(self) -> Tuning:
        """Write the recipe of the best trial, and score its run beside the start."""
        best, path = self._best(), self.folder
        if best is None:
            reasons = dict.fromkeys(it.failure for it in self.trials)
            raise ContrasentError("every trial failed:\n" + "\n".join(reasons))
        recipe = load_recipe(path / _BASE, best.settings)
        write_text(path / "recipe.yaml", to_yaml(recipe))
        run, scores = RunFolder(self._run(best.number)), BeforeAndAfter()
        if tasks := final_tasks(recipe.evaluation):
            is_start = run.read_result()["best_is_start"]
            scores = score_result(tasks, recipe, run.best, is_start, **self.options)
            write_records(path / "scores.jsonl", scores.records)
        start, _ = self._dev_scores(best.number)
        return Tuning(tuple(self.trials), best, run.root, path / "recipe.yaml", start, scores)
