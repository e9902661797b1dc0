"""Hyperparameter search: one recipe, settings to vary, and a dev task that decides.

Optuna (Akiba et al. 2019) proposes and remembers. Nothing but the dev task is looked at before the
best trial is known; start and result are then scored once on the final tasks.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contrasent.errors import ConfigError, ContrasentError, MissingExtraError, install_command
from contrasent.files import begins_anew, exclusive, write_text, writing_folder
from contrasent.model.encoder import SentenceEncoder
from contrasent.recipe import Recipe, load_recipe, to_yaml
from contrasent.records import write_records
from contrasent.training.run import train
from contrasent.training.run_folder import RunFolder, complete
from contrasent.training.scoring import (
    BeforeAndAfter,
    Scorer,
    before_and_after,
    dev_task,
    final_tasks,
)
from contrasent.training.setup import start_as_it_comes, start_encoder

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution

GRIDS = {
    "simcse": (
        "train.batch_size=64,128,256,512",
        "train.learning_rate=1e-5,3e-5,5e-5",
    ),
    "diffcse": (
        "train.batch_size=64,128",
        "train.learning_rate=2e-6,3e-6,5e-6,7e-6,1e-5",
        "objective.mask_rate=0.15,0.20,0.30,0.40",
        "objective.rtd_weight=0.1,0.05,0.01,0.005,0.001",
    ),
}
"""The papers' grids (Gao et al. 2021, appendix A; Chuang et al. 2022, appendix A)."""

_JOURNAL, _BASE, _SPACE, _FAILED = "trials.journal", "base.yaml", "space.json", "failed.txt"
_USUAL_TRIALS = 20
_LOG = "log"


@dataclass(frozen=True, slots=True)
class Axis:
    """A setting that is searched: one of several values, or a number between two."""

    key: str
    choices: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    whole: bool = False  # whole numbers alone
    log: bool = False  # as many between 1 and 10 as between 10 and 100

    @classmethod
    def read(cls, text: str) -> Axis:
        """Such as ``train.batch_size=64,128`` or ``train.learning_rate=1e-6..1e-4:log``.

        Raises:
            ConfigError: it is neither.
        """
        key, _, values = text.partition("=")
        key = key.strip().removeprefix("--").replace("-", "_")
        if "." not in key or not values.strip():
            raise ConfigError(
                f"--space {text} is no setting with its values, such as train.batch_size=64,128 or "
                f"train.learning_rate=1e-6..1e-4:log, and no grid of {', '.join(GRIDS)}"
            )
        if ".." not in values:
            choices = tuple(dict.fromkeys(it.strip() for it in values.split(",")))
            return cls(key, choices)
        ends, _, scale = values.partition(":")
        low, _, high = (it.strip() for it in ends.partition(".."))
        try:
            between = float(low), float(high)
        except ValueError:
            between = 0.0, 0.0
        log = scale.strip() == _LOG
        if between[0] >= between[1] or (scale and not log) or (log and between[0] <= 0):
            raise ConfigError(
                f"--space {text} is no range LOW..HIGH, or LOW..HIGH:log of numbers above 0"
            )
        return cls(key, (), *between, whole=low.isdecimal() and high.isdecimal(), log=log)

    @property
    def distribution(self) -> BaseDistribution:
        """As Optuna has it."""
        from optuna import distributions

        if self.choices:
            return distributions.CategoricalDistribution(self.choices)
        if self.whole:
            return distributions.IntDistribution(int(self.low), int(self.high), log=self.log)
        return distributions.FloatDistribution(self.low, self.high, log=self.log)

    @property
    def probes(self) -> tuple[Any, ...]:
        """Values that the recipe must be able to take: all choices, or both ends."""
        ends = (int(self.low), int(self.high)) if self.whole else (self.low, self.high)
        return self.choices or ends


def read_space(texts: Sequence[str]) -> tuple[Axis, ...]:
    """The axes of a search, of settings or of the papers' grids by their names.

    Raises:
        ConfigError: one cannot be read, or a setting is named twice.
    """
    axes = [Axis.read(line) for text in texts for line in GRIDS.get(text.strip(), (text,))]
    keys = [axis.key for axis in axes]
    if not keys:
        raise ConfigError("name what to search with --space, such as train.learning_rate=1e-5,3e-5")
    if len(set(keys)) < len(keys):
        raise ConfigError(f"--space names a setting twice: {', '.join(keys)}")
    return tuple(axes)


@dataclass(frozen=True, slots=True)
class TuningTrial:
    """A trial that has ended."""

    number: int
    settings: Mapping[str, Any]
    score: float | None  # the highest dev score but the start's, in [-1, 1]; None if it failed
    failure: str = ""


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

    Without ``trials``, or with at least as many as there are combinations of lists, every
    combination is tried once (the papers' grid search); otherwise Optuna's tree-structured Parzen
    estimator proposes so many, each from the trials before it and from the recipe's seed. Of the
    runs only the best one keeps its encoders.

    Raises:
        ConfigError: a setting cannot be searched, nothing decides, or ``output`` holds another
            search or is searched by another process.
        MissingExtraError: Optuna is not installed.
        ContrasentError: every trial failed.
    """
    _require_optuna()
    with exclusive(output):
        if begins_anew(output, _JOURNAL, resume=resume, overwrite=overwrite):
            with writing_folder(output) as partial:
                _begin(recipe, space, partial)
        _refuse_other(recipe, space, output)
        search = _Search(output, space, recipe.train.seed, on_trial)
        search.run(trials, {"device": device, "show_progress": show_progress})
        return search.finish(device, show_progress)


def _require_optuna() -> None:
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError(f"tune needs Optuna: {install_command('tune')}") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def _begin(recipe: Recipe, space: Sequence[Axis], folder: Path) -> None:
    """Write what is searched, after every value was tried on the recipe."""
    write_text(folder / _BASE, to_yaml(recipe))
    for axis in space:
        for value in axis.probes:
            complete(load_recipe(folder / _BASE, {axis.key: value}))
    if recipe.evaluation.task == "none":
        raise ConfigError("evaluation.task is none, so nothing decides; name a dev task")
    if recipe.evaluation.task != "auto":
        dev_task(recipe.evaluation)
    final_tasks(recipe.evaluation)
    write_text(folder / _SPACE, _described(space))
    write_text(folder / _JOURNAL, "")


def _described(space: Sequence[Axis]) -> str:
    axes: dict[str, list[Any]] = {
        axis.key: [*axis.choices] or [axis.low, axis.high, axis.log] for axis in space
    }
    return json.dumps(axes, indent=1) + "\n"


def _refuse_other(recipe: Recipe, space: Sequence[Axis], folder: Path) -> None:
    kept = load_recipe(folder / _BASE), (folder / _SPACE).read_text(encoding="utf-8")
    if kept != (recipe, _described(space)):
        raise ConfigError(
            f"{folder} holds a search of other settings ({_BASE} and {_SPACE} have them); ask for "
            "the same, name another --output, or replace it with --overwrite"
        )


class _Search:
    """A search in a folder."""

    def __init__(
        self,
        folder: Path,
        space: Sequence[Axis],
        seed: int,
        on_trial: Callable[[TuningTrial], object],
    ) -> None:
        self.folder, self.space, self.seed, self.on_trial = folder, space, seed, on_trial
        self.study = _open_study(folder / _JOURNAL)

    def run(self, trials: int | None, options: Mapping[str, Any]) -> None:
        """Go on with a trial that was cut off, try again what failed, and make the trials left."""
        from optuna.samplers import TPESampler
        from optuna.trial import TrialState

        grid = [axis.choices for axis in self.space]
        size = prod(map(len, grid))  # 0 with a range
        asked = trials or size or _USUAL_TRIALS
        if 0 < size <= asked:
            asked = size
            for values in product(*grid):
                keys = (axis.key for axis in self.space)
                settings = dict(zip(keys, values, strict=True))
                self.study.enqueue_trial(settings, skip_if_exists=True)
        self._take_up(options)
        distributions = {axis.key: axis.distribution for axis in self.space}
        for _ in range(asked - len(self.study.get_trials(states=(TrialState.COMPLETE,)))):
            number = len(self.study.get_trials(deepcopy=False))
            self.study.sampler = TPESampler(seed=self.seed + number)
            trial = self.study.ask(distributions)
            self._try(trial.number, trial.params, options)

    def _take_up(self, options: Mapping[str, Any]) -> None:
        """Finish the trial that was cut off, and ask for those again that failed."""
        from optuna.trial import TrialState

        before = self.study.get_trials()
        for trial in before:
            if trial.state == TrialState.RUNNING:
                if len(trial.params) == len(self.space):
                    self._try(trial.number, trial.params, options)
                else:  # it was cut off before its settings were whole
                    self.study.tell(trial.number, state=TrialState.FAIL)
        failed = {_key(it.settings): it.settings for it in self.trials() if it.score is None}
        for settings in failed.values():
            if len(settings) == len(self.space):
                self.study.enqueue_trial(dict(settings))

    def _try(self, number: int, settings: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        """Train with these settings, and keep the encoders if they are the best so far."""
        from optuna.trial import TrialState

        known = {_key(it.settings): it.score for it in self.trials() if it.score is not None}
        score, folder = known.get(_key(settings)), self._run(number)
        (folder / _FAILED).unlink(missing_ok=True)
        if score is None:
            try:
                recipe = load_recipe(self.folder / _BASE, dict(settings))
                recipe = replace(recipe, evaluation=replace(recipe.evaluation, final="none"))
                train(recipe, folder, resume=True, **options)
                _, score = _dev_scores(RunFolder(folder))
            except ContrasentError as error:
                shutil.rmtree(folder, ignore_errors=True)
                write_text(folder / _FAILED, str(error))
                self.study.tell(number, state=TrialState.FAIL)
                self.on_trial(TuningTrial(number, settings, None, str(error)))
                return
        self.study.tell(number, score)
        best = self._best()
        for trial in self.trials():
            if trial.number != best.number:
                for name in ("best", "last", "best-twin", "last-twin"):
                    shutil.rmtree(self._run(trial.number) / name, ignore_errors=True)
        self.on_trial(TuningTrial(number, settings, score))

    def _run(self, number: int) -> Path:
        return self.folder / "trials" / str(number)

    def trials(self) -> list[TuningTrial]:
        """Those that have ended, in their order; what failed is not there if it then succeeded."""
        from optuna.trial import TrialState

        ended = self.study.get_trials(states=(TrialState.COMPLETE, TrialState.FAIL))
        complete = {_key(it.params) for it in ended if it.state == TrialState.COMPLETE}
        trials = []
        for trial in ended:
            if trial.state == TrialState.FAIL and _key(trial.params) in complete:
                continue
            path = self._run(trial.number) / _FAILED
            failure = path.read_text(encoding="utf-8") if path.is_file() else ""
            trials.append(TuningTrial(trial.number, trial.params, trial.value, failure))
        return trials

    def _best(self) -> TuningTrial:
        """The first of the highest score."""
        scored = [(it.score, -it.number, it) for it in self.trials() if it.score is not None]
        if not scored:
            reasons = dict.fromkeys(it.failure for it in self.trials())
            raise ContrasentError("every trial failed:\n" + "\n".join(reasons))
        return max(scored, key=lambda it: it[:2])[2]

    def finish(self, device: str | None, show_progress: bool) -> Tuning:
        """Write the recipe of the best trial, and score its run beside the start."""
        best = self._best()
        recipe, path = load_recipe(self.folder / _BASE, dict(best.settings)), self.folder
        write_text(path / "recipe.yaml", to_yaml(recipe))
        run, scores = RunFolder(self._run(best.number)), BeforeAndAfter()
        if tasks := final_tasks(recipe.evaluation):
            result = SentenceEncoder.load(run.best, device=device)
            scorer = Scorer(tasks, recipe.evaluation.precision, result.device, show_progress)
            starts = [start_as_it_comes(recipe.encoder), start_encoder(recipe.encoder)]
            ended = json.loads(run.result.read_text(encoding="utf-8"))
            seed = None if ended["best_is_start"] else recipe.train.seed
            scores = before_and_after(scorer, starts, result, seed)
            records = [*scores.before, *scores.with_pooler, *scores.after]
            write_records(path / "scores.jsonl", records)
        start, _ = _dev_scores(run)
        return Tuning(tuple(self.trials()), best, run.root, path / "recipe.yaml", start, scores)


def _open_study(journal: Path) -> Study:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    storage = JournalStorage(JournalFileBackend(str(journal)))
    return optuna.create_study(
        storage=storage, study_name="tune", direction="maximize", load_if_exists=True
    )


def _key(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


def _dev_scores(run: RunFolder) -> tuple[float | None, float]:
    """The score of the start as it comes, and the highest one of all else that was evaluated."""
    start, scores = None, list[float]()
    for line in map(json.loads, run.metrics.read_text(encoding="utf-8").splitlines()):
        if "evaluation" in line:
            (score,) = line["evaluation"].values()
            if not line["step"]:
                (start,) = line.get("plain", line["evaluation"]).values()
            if line["step"] or "plain" in line:
                scores.append(score)
    if not scores:
        raise ConfigError("nothing decides: the run has no dev score; name one, evaluation.task")
    return start, max(scores)
