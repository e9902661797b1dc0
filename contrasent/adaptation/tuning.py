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

from contrasent.errors import ConfigError, ContrasentError, MissingExtraError, install_command
from contrasent.files import begins_anew, exclusive, write_text, writing_folder
from contrasent.recipe import Recipe, load_recipe, to_yaml
from contrasent.records import write_records
from contrasent.training.run import score_result, train
from contrasent.training.run_folder import RunFolder, complete
from contrasent.training.scoring import BeforeAndAfter, dev_task, final_tasks

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


@dataclass(frozen=True, slots=True)
class Axis:
    """A setting that is searched: one of several values, or a number between two."""

    key: str
    choices: tuple[str, ...] = ()
    low: float = 0  # two whole numbers are ends of whole numbers alone
    high: float = 0
    log: bool = False  # as many between 1 and 10 as between 10 and 100

    @classmethod
    def read(cls, text: str) -> Axis:
        """Read ``train.batch_size=64,128`` or ``train.learning_rate=1e-6..1e-4:log``."""
        setting = _AXIS.fullmatch(text)
        key, values = (setting[1].replace("-", "_"), setting[2].strip()) if setting else ("", "..")
        if ".." not in values:
            return cls(key, tuple(dict.fromkeys(it.strip() for it in values.split(","))))
        if ends := _RANGE.fullmatch(values):
            whole = ends[1].isdecimal() and ends[2].isdecimal()
            try:
                low, high = (int(it) if whole else float(it) for it in ends.groups()[:2])
            except ValueError:
                low, high = 0, 0
            if low < high and (low > 0 or not ends[3]):
                return cls(key, (), low, high, log=bool(ends[3]))
        raise ConfigError(
            f"--space {text} is no setting with values, such as train.batch_size=64,128, no range "
            "LOW..HIGH or LOW..HIGH:log of numbers above 0, such as "
            f"train.learning_rate=1e-6..1e-4:log, and no grid of {', '.join(GRIDS)}"
        )

    @property
    def described(self) -> list[Any]:
        """As a search's file has it."""
        return [*self.choices] if self.choices else [self.low, self.high, self.log]

    @property
    def distribution(self) -> BaseDistribution:
        """As Optuna has it."""
        from optuna import distributions

        if self.choices:
            return distributions.CategoricalDistribution(self.choices)
        if isinstance(self.low, int) and isinstance(self.high, int):
            return distributions.IntDistribution(self.low, self.high, log=self.log)
        return distributions.FloatDistribution(self.low, self.high, log=self.log)


def read_space(texts: Sequence[str]) -> tuple[Axis, ...]:
    """Read the axes of a search, settings or the papers' grids by their names."""
    axes = [Axis.read(line) for text in texts for line in GRIDS.get(text.strip(), (text,))]
    keys = [axis.key for axis in axes]
    if not keys or len(set(keys)) < len(keys):
        raise ConfigError(
            "name what to search with --space, such as train.learning_rate=1e-5,3e-5"
            if not keys
            else f"--space names a setting twice: {', '.join(keys)}"
        )
    return tuple(axes)


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
    space: Sequence[Axis],
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
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError(f"tune needs Optuna: {install_command('tune')}") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    described = {axis.key: axis.described for axis in space}
    with exclusive(output):
        if begins_anew(output, _STATE, resume=resume, overwrite=overwrite):
            with writing_folder(output) as folder:
                write_text(folder / _BASE, to_yaml(recipe))
                for axis in space:
                    for value in axis.choices or (axis.low, axis.high):
                        complete(load_recipe(folder / _BASE, {axis.key: value}))
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
        self, folder: Path, space: Sequence[Axis], recipe: Recipe, options: Mapping[str, Any]
    ) -> None:
        self.folder, self.space, self.seed, self.options = folder, space, recipe.train.seed, options
        self.state = TypeAdapter(_State).validate_json((folder / _STATE).read_bytes())

    def run(self, trials: int | None, on_trial: Callable[[TuningTrial], object]) -> None:
        """Go on with a trial that was cut off, try again what failed, and make the trials left."""
        self._keep_best()
        size = prod(len(axis.choices) for axis in self.space)  # 0 with a range
        asked = trials or size or _USUAL_TRIALS
        plan = [self.state.running, *(it.settings for it in self.trials if it.score is None)]
        if 0 < size <= asked:
            keys = [axis.key for axis in self.space]
            grid = product(*(axis.choices for axis in self.space))
            plan += [dict(zip(keys, values, strict=True)) for values in grid]
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
        distributions = {axis.key: axis.distribution for axis in self.space}
        for it in self.state.trials:
            state = TrialState.FAIL if it.score is None else TrialState.COMPLETE
            study.add_trial(
                optuna.trial.create_trial(
                    params=it.settings, distributions=distributions, value=it.score, state=state
                )
            )
        return study.ask(distributions).params

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
