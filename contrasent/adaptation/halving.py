"""Adaptation to a text without labels: a search over recipes in a given time.

Every candidate trains for a few steps, the better half for more, and the best for the time that is
left (successive halving, Jamieson and Talwalkar 2016). Scores on held-out text, or on labelled
pairs where there are some, decide. The start as it comes is what each of them has to beat.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from contrasent.adaptation.candidates import (
    CANDIDATES,
    DEV,
    FIXED,
    GENERAL_TEXT,
    MIXED,
    STATE,
    TEST,
    TRAIN,
    Candidate,
    Failure,
    SearchRequest,
    SearchState,
    Trial,
    split_text,
)
from contrasent.data import Rows, keep_rows
from contrasent.errors import ConfigError, ContrasentError, DataError, pick
from contrasent.evaluation import Suite, load_suite
from contrasent.files import begins_anew, exclusive, writing_folder
from contrasent.model import SentenceEncoder, is_sentence_encoder
from contrasent.options import AdaptOptions, takes
from contrasent.recipe import Recipe, load_recipe
from contrasent.report import Contents, write_report
from contrasent.settings import checked
from contrasent.training import (
    BeforeAndAfter,
    DevScore,
    RunFolder,
    score_result,
    start_as_it_comes,
    train,
)

logger = logging.getLogger("contrasent")

GENERAL_PAIRS = GENERAL_TEXT.with_name("stack_exchange_pairs.tsv")
"""Rated pairs that tell how much it forgot."""


_PRETRAINED, _RUN = "pretrained", "run"

_TIME_SHARES = (0.25, 0.25, 0.4)
"""Of the whole time, for each rung of the search; the rest is for the scores at its end."""
_FEWEST_STEPS, _MOST_EPOCHS, _PROBED_STEPS, _EVALUATIONS = 10, 3, 8, 3

_OF_PRETRAINING = {
    *("data.max_tokens", "train.batch_size", "train.gradient_checkpointing", "train.precision")
}
"""The settings of the user that a masked language model is trained with too."""


@dataclass(frozen=True, slots=True)
class Adaptation:
    """The result of a search."""

    encoder: Path  # folder of the best encoder, which is the start if nothing beat it
    recipe: Path | None  # the recipe that makes it again, bit for bit; None if it is the start
    start_score: float  # the dev score of the start as it comes
    dev_metric: str  # what the scores of trials are, such as ``spearman`` or ``mrr@10``
    trials: list[Trial]  # in the order in which they were made
    failures: list[Failure]  # what could not be trained
    # start and result on text that had no part in the search; its gains say whether it helped
    scores: BeforeAndAfter
    report: Path  # a page with these scores
    seconds: float


class Search:
    """A search in a folder."""

    def __init__(
        self, folder: Path, state: SearchState, device: str | None, show_progress: bool
    ) -> None:
        self.folder, self.state = folder, state
        self.device, self.show_progress = device, show_progress

    def begin(self) -> None:
        """Score the start, and measure how long a step takes and a trial beside its steps."""
        state, folder, began = self.state, self.folder / "probe", time.monotonic()
        recipe = self._recipe(CANDIDATES["dropout"], _PROBED_STEPS, state.request.encoder)
        scores: list[DevScore] = []
        result = train(recipe, folder, device=self.device, on_evaluation=scores.append)
        if result is None or not scores or scores[0].step:
            raise ConfigError(f"{recipe.evaluation.task} gives the start no score; name another")
        start = scores[0]
        state.start_score = start.score if start.plain is None else start.plain
        state.dev_metric = start.metric
        state.seconds_per_step = result.seconds / result.steps
        state.overhead = time.monotonic() - began - result.seconds
        shutil.rmtree(folder)
        seconds, left_out = 60 * _TIME_SHARES[0] * state.request.minutes, list[str]()
        if not state.request.candidates:
            while len(state.candidates) > 1 and self._least(state.candidates) > seconds:
                left_out.append(state.candidates.pop())
        if left_out:
            names = ", ".join(reversed(left_out))
            logger.warning("--minutes %g leaves no time for %s", state.request.minutes, names)
        self._steps(state.candidates, seconds)

    def _least(self, names: Sequence[str]) -> float:
        """The seconds in which each of the candidates makes a few steps."""
        cost = max(CANDIDATES[name].cost for name in names)
        each = self.state.overhead + _FEWEST_STEPS * self.state.seconds_per_step * cost
        return len(names) * each

    def run(self) -> None:
        """Make the trials that are left or failed: all candidates, the better half, the best."""
        self._keep_best()
        state, last, share = self.state, len(_TIME_SHARES) - 1, sum(_TIME_SHARES)
        names = state.candidates
        if not (self.folder / _RUN).exists():
            state.failures.clear()
        for rung in range(len(_TIME_SHARES)):
            if not names or (len(names) == 1 and rung < last):
                continue  # the rest of the time is for the only one
            of_time = _TIME_SHARES[rung] if rung < last else share
            steps = self._steps(names, 60 * of_time * state.request.minutes)
            share -= _TIME_SHARES[rung]
            for name in names:
                before = self._longest(rung).get(name)
                longer = before is None or (before.rung < rung and before.steps < steps[name])
                if longer and name not in self._failed(rung):
                    self._try(name, rung, steps[name])
            tried, failed = self._longest(rung), self._failed(rung)
            names = [name for name in names if name not in failed]
            names.sort(key=lambda name: -tried[name].score)
            names = names[: 1 if rung == last - 1 else (len(names) + 1) // 2]
        if not state.trials:
            reasons = (f"{failure.candidate}: {failure.reason}" for failure in state.failures)
            raise ContrasentError("\n".join(["every candidate failed:", *reasons]))

    def _longest(self, rung: int) -> dict[str, Trial]:
        """The longest trial of each candidate up to a rung."""
        trials = sorted(self.state.trials, key=lambda trial: trial.rung)
        return {trial.candidate: trial for trial in trials if trial.rung <= rung}

    def _failed(self, rung: int) -> set[str]:
        return {it.candidate for it in self.state.failures if it.rung <= rung}

    def final_tasks(self, test: Sequence[str]) -> Suite:
        """What start and result are scored on: ``test``, held-out text, and general pairs."""
        file = self.folder / TEST
        held_out = [f"{self.state.proxy}{file}"] if file.is_file() else []
        suite = load_suite([*dict.fromkeys([*test, *held_out, str(GENERAL_PAIRS)])])
        for problem in suite.problems:
            raise DataError(problem.message)
        return suite

    def finish(self, suite: Suite, began: float) -> Adaptation:
        """Keep the best run, and score it beside the start on what had no part in the search."""
        state, run, recipe = self.state, self.folder / _RUN, None
        if not run.exists():
            (self.folder / "trials" / state.best.run).rename(run)
        settings = load_recipe(run / "recipe.yaml")
        start = replace(settings.encoder, name=state.request.encoder)
        is_start: bool = RunFolder(run).read_result()["best_is_start"]
        if settings.encoder != start:  # it began with a masked language model of its own
            is_start = state.best.score <= state.start_score
            usual = start_as_it_comes(start)
            if is_start and isinstance(usual, SentenceEncoder):
                usual.save(run / "best")
        if not is_start:
            recipe = self.folder / "recipe.yaml"
            shutil.copyfile(run / "recipe.yaml", recipe)
        made = replace(settings, encoder=start)
        how = is_start, self.device, self.show_progress
        scores = score_result(suite, made, run / "best", *how)
        report = self.folder / "report.html"
        write_report(report, Contents(tuple(scores.records)))
        return Adaptation(
            encoder=run / "best",
            recipe=recipe,
            start_score=state.start_score,
            dev_metric=state.dev_metric,
            trials=state.trials,
            failures=state.failures,
            scores=scores,
            report=report,
            seconds=time.monotonic() - began,
        )

    def _recipe(self, candidate: Candidate, steps: int, encoder: str) -> Recipe:
        request, state = self.state.request, self.state
        defaults = {
            "encoder.pooler": None if is_sentence_encoder(request.encoder) else "mean",
            "data.max_tokens": state.max_tokens,
            "encoder.freeze_layers": int(candidate.frozen_share * state.depth),
            **candidate.settings,
        }
        fixed = {
            "encoder.name": encoder,
            "data.file": str(self.folder / (MIXED if candidate.general_text else TRAIN)),
            "data.columns": None,
            "train.max_steps": steps,
            "train.seed": request.seed,
            "train.start_shares": [0.5],
            "evaluation.task": request.dev or f"{state.proxy}{self.folder / DEV}",
            "evaluation.every": -(-steps // _EVALUATIONS),
            "evaluation.final": "none",
        }
        return load_recipe(candidate.recipe, {**defaults, **request.settings, **fixed})

    def _steps(self, names: Sequence[str], seconds: float) -> dict[str, int]:
        """The steps of each candidate in a rung, all taking as long, and some epochs at most."""
        state, steps = self.state, dict[str, int]()
        if (least := self._least(names)) > seconds:
            raise ConfigError(
                f"--minutes {state.request.minutes:g} is too short for {_FEWEST_STEPS} steps of "
                f"{', '.join(names)}; give at least {least / min(_TIME_SHARES) / 60:.1f}, or "
                "fewer --candidates"
            )
        for name in names:
            recipe = self._recipe(CANDIDATES[name], 1, state.request.encoder)
            epoch = -(-state.lines[Path(recipe.data.file).name] // recipe.train.batch_size)
            each = seconds / len(names) - state.overhead
            each /= state.seconds_per_step * CANDIDATES[name].cost
            steps[name] = min(int(each), _MOST_EPOCHS * epoch)
        return steps

    def _try(self, name: str, rung: int, steps: int) -> None:
        """Train a candidate, and keep its run if it is the best so far; note it if it fails."""
        state, candidate, began = self.state, CANDIDATES[name], time.monotonic()
        logger.info("%s: %s, %d steps", name, candidate.description, steps)
        folder = self.folder / "trials" / f"{rung}-{name}"
        encoder, first = state.request.encoder, steps // 2 if candidate.mlm_first else 0
        try:
            own = {*candidate.settings, *["encoder.freeze_layers"] * (candidate.frozen_share > 0)}
            if taken := sorted(own & set(state.request.settings)):
                raise ConfigError(f"it sets {', '.join(taken)} itself")
            if first:
                encoder = self._pretrain(folder.name, first)
            self._train(self._recipe(candidate, steps - first, encoder), folder)
        except ContrasentError as error:
            logger.warning("%s failed: %s", name, error)
            state.failures.append(Failure(name, rung, str(error)))
            state.write(self.folder)
            self._remove(folder.name)
            return
        ended = RunFolder(folder).read_result()
        seconds = time.monotonic() - began
        trial = Trial(name, rung, steps, ended["best_score"], ended["best_step"], seconds)
        state.trials.append(trial)
        state.write(self.folder)
        self._keep_best()

    def _keep_best(self) -> None:
        """Remove all trials but the best, also those that a kill left in part."""
        for other in self.state.trials:
            if other != self.state.best:
                self._remove(other.run)

    def _remove(self, trial: str) -> None:
        for folder in ("trials", _PRETRAINED):
            shutil.rmtree(self.folder / folder / trial, ignore_errors=True)

    def _pretrain(self, name: str, steps: int) -> str:
        """Train the start as a masked language model; where the result is."""
        request, folder = self.state.request, self.folder / _PRETRAINED / name
        settings = {
            "encoder.name": request.encoder,
            "data.file": str(self.folder / TRAIN),
            "data.max_tokens": self.state.max_tokens,
            **{key: value for key, value in request.settings.items() if key in _OF_PRETRAINING},
            "train.max_steps": steps,
            "train.seed": request.seed,
        }
        self._train(load_recipe("pretrain-mlm", settings), folder)
        return str(folder / "last")

    def _train(self, recipe: Recipe, folder: Path) -> None:
        shown = self.show_progress
        train(recipe, folder, resume=True, device=self.device, show_progress=shown)


@takes(AdaptOptions)
def adapt(
    encoder: str | Path,
    *,
    data: str | Path | Rows,
    settings: Mapping[str, Any] | None = None,
    show_progress: bool = False,
    **options: Any,
) -> Adaptation:
    """Search for the best encoder of a text, as ``contrasent adapt`` does.

    The folder gets ``run`` with the best encoder, ``recipe.yaml`` that makes it again,
    ``search.json`` with every trial, ``report.html``, and the parts of the text.

    Args:
        encoder: the start: a folder, a run or a Hugging Face id.
        data: text without labels: a file or data set as ``--data`` takes it, or strings. Sentences
            or longer texts; of a ``.txt`` an empty line ends a document.
        settings: of every candidate's recipe, by dotted name; not those that the search sets. A
            candidate that sets or lacks one fails.
        show_progress: progress bars on standard error.
        **options: by name.

    Raises:
        ConfigError: no such candidate or task, or a candidate that does not fit; ``output`` holds
            another search or another process's; the time is too short for a few steps of each.
        ContrasentError: every candidate failed.
        DataError: there is too little text, or a file is missing or damaged.

    Example:
        >>> import contrasent
        >>> result = contrasent.adapt("runs/mine", data="tickets.txt", minutes=9)  # doctest: +SKIP
        >>> [gain.verdict for gain in result.scores.gains]  # doctest: +SKIP
    """
    source = str(data if isinstance(data, str | Path) else keep_rows(data))
    chosen = checked(AdaptOptions, {"encoder": str(encoder), "data": source, **options})
    began, folder, device = time.monotonic(), Path(chosen.output), chosen.device
    names = list(chosen.candidates or [])
    for name in names:
        pick("candidate", name, CANDIDATES)
    given = json.loads(json.dumps(dict(settings or {}), default=str))  # as the state keeps it
    for key in FIXED.keys() & given.keys():
        raise ConfigError(f"the search itself sets {key}; {FIXED[key]}")
    request = SearchRequest(
        chosen.encoder, source, chosen.minutes, chosen.dev, names, given, chosen.seed
    )
    with exclusive(folder):
        if begins_anew(folder, STATE, resume=chosen.resume, overwrite=chosen.overwrite):
            with writing_folder(folder) as partial:
                state = split_text(request, partial)
                Search(partial, state, device, show_progress).begin()
                state.write(partial)
        search = Search(folder, SearchState.read(folder, request), device, show_progress)
        suite = search.final_tasks(chosen.test)
        search.run()
        return search.finish(suite, began)
