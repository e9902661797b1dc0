"""Search: training runs that are compared by a dev score, in a folder from which it goes on.

``tune`` searches settings of a recipe: all combinations, or what Optuna (Akiba et al. 2019)
proposes. Nothing but the dev task is looked at before the best trial is known.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import TypeAdapter

from contrasent import files, training
from contrasent.errors import ConfigError, ContrasentError, require_extra
from contrasent.model import resolve
from contrasent.options import TuneOptions
from contrasent.recipe import Recipe, default_output, dotted, load_recipe, recipe_with, to_yaml
from contrasent.records import json_lines
from contrasent.settings import takes
from contrasent.training import BeforeAndAfter, RunFolder

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Settings = dict[str, Any]
"""What tells a trial from the others."""

_STATE, _TRIALS = "search.json", "trials"


@dataclass(frozen=True, slots=True)
class Trial:
    """A training run that has ended."""

    number: int
    settings: Settings
    score: float | None  # the highest dev score but the start's, in [-1, 1]; None if it failed
    failure: str = ""
    best_step: int = 0  # the update after which its encoder was kept; 0 for the start
    seconds: float = 0.0

    @property
    def candidate(self) -> str:
        """The name of what `adapt` tried."""
        return str(self.settings["candidate"])

    @property
    def steps(self) -> int:
        """The updates that `adapt` made."""
        return int(self.settings["steps"])


@dataclass(slots=True)
class State:
    """All that is needed to go on with a search."""

    request: dict[str, Any]  # what was asked for; one that goes on is asked for the same
    ground: dict[str, Any] = field(default_factory=dict)  # what was found out before the trials
    trials: list[Trial] = field(default_factory=list)
    running: Settings | None = None  # those of the trial that has not ended

    def write(self, folder: Path) -> None:
        """Write it as JSON."""
        files.write_json(folder / _STATE, asdict(self), indent=1, ensure_ascii=False)


class Search:
    """A search in a folder: its trials, the best of which alone keeps its encoders."""

    def __init__(self, folder: Path, state: State, run_options: Mapping[str, Any]) -> None:
        self.folder, self.state, self.run_options = folder, state, run_options

    @classmethod
    @contextmanager
    def opened(
        cls,
        folder: Path,
        request: Mapping[str, Any],
        prepare: Callable[[State, Path], object],
        run_options: Mapping[str, Any],
        *,
        resume: bool,
        overwrite: bool,
    ) -> Iterator[Search]:
        """Begin a search in ``folder``, which ``prepare`` fills, or go on with the one in it.

        ConfigError if that was asked for something else, or another process is at it.
        """
        now = json.loads(json.dumps(request, default=str))  # as the file gives it back
        data = now.get("data", now.get("data.file"))
        beside = map(now.get, ("objective.teacher", "evaluation.task", "teacher", "dev"))
        sources = [*(data if isinstance(data, list) else [data]), *beside]
        paths = (it["file"] if isinstance(it, dict) else str(it) for it in sources)
        for path in filter(os.path.isfile, paths):
            now[f"text in {path} of sha256"] = files.sha256_of(path)
        with files.exclusive(folder):
            files.recover_folder(folder)
            exists = (folder / _STATE).is_file()
            if not (exists and resume != overwrite):
                remedy = "go on with it (--resume), replace it (--overwrite), or " * exists
                files.refuse_existing(folder, f"{remedy}name another --output")
            if not (exists and resume):
                with files.writing_folder(folder) as partial:
                    state = State(now)
                    prepare(state, partial)
                    state.write(partial)
            state = TypeAdapter(State).validate_json((folder / _STATE).read_bytes())
            before = state.request
            names = dict.fromkeys([*before, *now])
            if changed := [it for it in names if before.get(it) != now.get(it)]:
                changes = (f"{it} {before.get(it)}, not {now.get(it)}" for it in changed)
                raise ConfigError(
                    f"the search in {folder} has {'; '.join(changes)}; ask for the same, name "
                    "another --output, or replace it with --overwrite"
                )
            yield cls(folder, state, run_options)

    def run(
        self,
        plan: Iterable[Settings],
        make: Callable[[Settings, Path], object],
        on_trial: Callable[[Trial], object] = lambda _: None,
    ) -> None:
        """Go on with a trial that was cut off, and make those of a plan that looks at the others.

        ``make`` trains with the settings in a folder, or raises ContrasentError.
        """
        state = self.state
        failed = [it for it in state.trials if it.score is None]
        self._keep_best()
        if state.running is not None:  # in the folder that it began in
            on_trial(self._try(state.running, make))
        state.trials = [it for it in state.trials if it not in failed]  # these are tried again
        for settings in plan:
            on_trial(self._try(settings, make))

    def _try(self, settings: Settings, make: Callable[[Settings, Path], object]) -> Trial:
        state, began = self.state, time.monotonic()
        number = 1 + max((it.number for it in state.trials), default=-1)
        folder, score, failure, step = self.run_of(number), self.score_of(settings), "", 0
        state.running = settings
        state.write(self.folder)
        try:
            if score is None:
                make(settings, folder)
                *_, scores = RunFolder(folder).read_dev_scores()
                if not scores:
                    raise ConfigError("nothing decides: the run has no dev score; name a dev task")
                score, step = max(scores), RunFolder(folder).read_result()["best_step"]
        except ContrasentError as error:
            shutil.rmtree(folder, ignore_errors=True)
            failure = str(error)
        state.running = None
        state.trials.append(Trial(number, settings, score, failure, step, time.monotonic() - began))
        state.write(self.folder)
        self._keep_best()
        return state.trials[-1]

    def _keep_best(self) -> None:
        """Remove the encoders of all trials but the best, also those that a kill left in part."""
        best = self.best
        for trial in self.state.trials if best else []:
            for name in ("best", "last", "best-twin", "last-twin") if trial != best else ():
                shutil.rmtree(self.run_of(trial.number) / name, ignore_errors=True)

    def run_of(self, number: int) -> Path:
        """The folder of a trial."""
        return self.folder / _TRIALS / str(number)

    def score_of(self, settings: Settings) -> float | None:
        """The score of a trial with these settings, if one succeeded."""
        return next((it.score for it in self.succeeded if it.settings == settings), None)

    @property
    def succeeded(self) -> list[Trial]:
        """The trials that have a score."""
        return [it for it in self.state.trials if it.score is not None]

    @property
    def best(self) -> Trial | None:
        """The first of the highest score; None where every trial failed."""
        return max(self.succeeded, key=lambda it: (it.score or 0.0, -it.number), default=None)


ROWS = yaml.safe_load(Path(__file__).with_name("candidates.yaml").read_text(encoding="utf-8"))
GRIDS: Mapping[str, Sequence[str]] = ROWS["grids"]
"""The papers' grids (Gao et al. 2021, appendix A; Chuang et al. 2022, appendix A)."""

_USUAL_TRIALS, _TEXT = 20, ("data.file", "data.columns")
_AXIS = re.compile(r"\s*(?:--)?([\w-]+\.[\w-]+)\s*=\s*(\S.*)", re.DOTALL)
_RANGE = re.compile(r"^(\S+?)\s*\.\.\s*([^:\s]+)\s*(:\s*log\s*)?$")


def read_space(texts: Sequence[str]) -> dict[str, BaseDistribution]:
    """Read settings with values, ranges of numbers, or the papers' grids, as ``--space``."""
    require_extra("tune", "tune", "optuna")
    from optuna import distributions

    space: dict[str, BaseDistribution] = {}
    for text in (line for given in texts for line in GRIDS.get(given.strip(), (given,))):
        setting = _AXIS.fullmatch(text)
        key, values = (setting[1].replace("-", "_"), setting[2].strip()) if setting else ("", "..")
        try:
            if ".." not in values:
                choices = dict.fromkeys(files.listed(values))
                axis: BaseDistribution = distributions.CategoricalDistribution(tuple(choices))
            else:
                [(low, high, log)] = _RANGE.findall(values)
                if low.isdecimal() and high.isdecimal():
                    axis = distributions.IntDistribution(int(low), int(high), log=bool(log))
                else:
                    axis = distributions.FloatDistribution(float(low), float(high), log=bool(log))
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


@dataclass(frozen=True, slots=True)
class Tuning:
    """The result of a search over settings."""

    trials: tuple[Trial, ...]  # in the order in which they were made
    best: Trial
    run: Path  # the best trial's training run
    recipe: Path  # makes it again with ``contrasent train``
    start: float | None  # dev score of the start as it comes, in [-1, 1]; None if it has none
    scores: BeforeAndAfter = field(default_factory=BeforeAndAfter)


@takes(TuneOptions)
def tune(
    recipe: str | Path | Recipe,
    space: Sequence[str],
    *,
    show_progress: bool = False,
    on_trial: Callable[[Trial], object] = lambda _: None,
    **settings: Any,
) -> Tuning:
    """Search settings of a recipe by the dev task alone, as ``contrasent tune`` does.

    Every combination is tried once (the papers' grid search); with fewer ``trials`` or a range
    Optuna's tree-structured Parzen estimator proposes each from those before it and from the
    recipe's seed. Start and result are then scored once on the final tasks.

    Args:
        recipe: as `train` takes it.
        space: what to search: ``train.batch_size=64,128``, ``train.learning_rate=1e-6..1e-4:log``,
            or the grid of a paper, ``simcse`` or ``diffcse``.
        show_progress: a progress bar on standard error.
        on_trial: called with every trial that has ended.
        **settings: of every trial, by dotted name.

    Example:
        >>> contrasent.tune(
        ...     "unsup-simcse", ["train.learning_rate=1e-5,3e-5"], encoder="bert-base-uncased",
        ...     data="sentences.txt",
        ... ).best.settings  # doctest: +SKIP
    """
    base, options = recipe_with(recipe, {"space": space, **settings}, TuneOptions)
    axes: Mapping[str, Any] = read_space(options.space)
    output = options.output or Path("runs") / f"tune-{default_output(recipe).name}"
    run_options: dict[str, Any] = {"device": options.device, "show_progress": show_progress}

    def check(*_: object) -> None:
        for key, axis in axes.items():
            for value in getattr(axis, "choices", ()) or (axis.low, axis.high):
                training.complete(load_recipe(base, {key: value}))
                if key == "encoder.name":
                    resolve(value)
        task = base.evaluation.task
        of_task = {"evaluation.task"} | set(_TEXT * (task == "auto"))
        differ = ", ".join(axes.keys() & of_task)
        if differ or task == "none":
            why = differ and f"trials of another {differ} have another dev task"
            raise ConfigError(f"{why or 'the dev task is none'}, so nothing decides; name a task")
        if task != "auto":
            training.dev_task(base.evaluation)
        training.final_tasks(base.evaluation)

    def make(settings: Settings, folder: Path) -> None:
        tried = load_recipe(base, {**settings, "evaluation.final": "none"})
        training.train(tried, folder, resume=True, **run_options)

    request = {**dotted(base), "space": {key: str(axis) for key, axis in axes.items()}}
    if "data.file" in axes:
        request["data"] = axes["data.file"].choices
    keep = {"resume": options.resume, "overwrite": options.overwrite}
    with Search.opened(output, request, check, run_options, **keep) as search:
        search.run(_plan(search, axes, options.trials, base.train.seed), make, on_trial)
        best, path = search.best, output / "recipe.yaml"
        if best is None:
            reasons = dict.fromkeys(it.failure for it in search.state.trials)
            raise ContrasentError("every trial failed:\n" + "\n".join(reasons))
        chosen, run = load_recipe(base, best.settings), RunFolder(search.run_of(best.number))
        files.write_text(path, to_yaml(chosen))
        scores = BeforeAndAfter()
        if tasks := training.final_tasks(chosen.evaluation):
            is_start = run.read_result()["best_is_start"]
            scores = training.score_result(tasks, chosen, run.best, is_start, **run_options)
            files.write_text(output / "scores.jsonl", json_lines(scores.records))
        _, start, _ = run.read_dev_scores()
        return Tuning(tuple(search.state.trials), best, run.root, path, start, scores)


def _plan(
    search: Search, space: Mapping[str, BaseDistribution], trials: int | None, seed: int
) -> Iterator[Settings]:
    import optuna
    from optuna.trial import TrialState

    choices = [getattr(axis, "choices", ()) for axis in space.values()]
    size = prod(map(len, choices))  # 0 with a range
    asked = trials or size or _USUAL_TRIALS
    if 0 < size <= asked:
        every = (dict(zip(space, values, strict=True)) for values in product(*choices))
        yield from (it for it in every if search.score_of(it) is None)
        return
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    while len(search.state.trials) < asked:
        trials_so_far = search.state.trials
        sampler = optuna.samplers.TPESampler(seed=seed + len(trials_so_far))
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for it in trials_so_far:
            state = TrialState.FAIL if it.score is None else TrialState.COMPLETE
            known: dict[str, Any] = {"params": it.settings, "value": it.score, "state": state}
            study.add_trial(optuna.trial.create_trial(distributions=dict(space), **known))
        yield study.ask(dict(space)).params
