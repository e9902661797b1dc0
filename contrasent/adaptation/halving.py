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
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from contrasent.adaptation.candidates import (
    CANDIDATES,
    NEEDS,
    Candidate,
    SearchRequest,
    SearchState,
    Text,
    Trial,
)
from contrasent.data.examples import Rows, keep_rows
from contrasent.errors import CheckpointError, ConfigError, DataError, pick
from contrasent.evaluation.suite import Suite, load_suite
from contrasent.evaluation.task_names import CROPS, NEXT
from contrasent.files import begins_anew, writing_folder
from contrasent.model.checkpoint import is_sentence_encoder
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.masked_lm import MaskedLm
from contrasent.recipe import Recipe, load_recipe
from contrasent.report.contents import Contents
from contrasent.report.html.page import write_report
from contrasent.settings import EncoderSettings
from contrasent.training.callbacks import DevScore
from contrasent.training.run import train
from contrasent.training.scoring import BeforeAndAfter, Scorer, before_and_after
from contrasent.training.setup import start_as_it_comes, start_encoder

logger = logging.getLogger("contrasent")

GENERAL_TEXT = Path(str(files("contrasent") / "quickstart_data" / "wikipedia.txt"))
"""Sentences that keep an encoder from forgetting what it knows of other text."""

GENERAL_PAIRS = GENERAL_TEXT.with_name("stack_exchange_pairs.tsv")
"""Rated pairs that tell how much it forgot."""

_STATE, _TRAIN, _DEV, _TEST = "search.json", "train.txt", "dev.txt", "test.txt"
_MIXED, _PRETRAINED = "mixed.txt", "pretrained"
_TIME_SHARES = (0.25, 0.25, 0.4)
"""Of the whole time, for each rung of the search; the rest is for the scores at its end."""

_FEWEST_STEPS, _MOST_EPOCHS, _PROBED_STEPS, _EVALUATIONS = 10, 3, 8, 3
_START_SHARES = [0.5]


@dataclass(frozen=True, slots=True)
class Adaptation:
    """The result of a search."""

    encoder: Path  # folder of the best encoder, which is the start if nothing beat it
    recipe: Path | None  # the recipe that makes it again, bit for bit; None if it is the start
    start_score: float  # the dev score of the start as it comes
    dev_metric: str  # what the scores of trials are, such as ``spearman`` or ``mrr@10``
    trials: list[Trial]  # in the order in which they were made
    scores: BeforeAndAfter  # start and result on text that had no part in the search
    report: Path  # a page with these scores
    seconds: float

    @property
    def helped(self) -> bool:
        """Whether the result is another encoder than the start."""
        return self.recipe is not None


class Search:
    """A search in a folder."""

    def __init__(
        self, folder: Path, state: SearchState, device: str | None, show_progress: bool
    ) -> None:
        self.folder, self.state = folder, state
        self.device, self.show_progress = device, show_progress

    def begin(self) -> None:
        """Score the start, and measure how long a step takes and a trial beside its steps.

        Candidates that were not asked for by name are left out where there is no time for them.
        ConfigError if what is to choose gives no score, or there is not enough time.
        """
        state, folder, began = self.state, self.folder / "probe", time.monotonic()
        recipe = self._recipe(CANDIDATES["dropout"], _PROBED_STEPS, state.request.encoder)
        scores: list[DevScore] = []
        result = train(recipe, folder, device=self.device, on_evaluation=scores.append)
        if result is None or not scores or scores[0].step:
            raise ConfigError(f"{recipe.evaluation.task} gives the start no score; name another")
        state.start_score, state.dev_metric = scores[0].score, scores[0].metric
        state.seconds_per_step = result.seconds / result.steps
        state.overhead = time.monotonic() - began - result.seconds
        shutil.rmtree(folder)
        if not state.request.candidates:
            state.candidates = self._in_time()
        self._steps(state.candidates, self._seconds(_TIME_SHARES[0]))

    def _in_time(self) -> list[str]:
        """The first candidates that can each make a few steps in the first rung."""
        state, kept, missing = self.state, list[str](), list[str]()
        for name in state.candidates:
            cost = max(CANDIDATES[each].cost for each in [*kept, name])
            each = state.overhead + _FEWEST_STEPS * state.seconds_per_step * cost
            fits = (len(kept) + 1) * each <= self._seconds(_TIME_SHARES[0])
            (kept if fits or not kept else missing).append(name)
        if missing:
            minutes = state.request.minutes
            logger.warning("--minutes %g leaves no time for %s", minutes, ", ".join(missing))
        return kept

    def _seconds(self, share: float) -> float:
        return 60 * share * self.state.request.minutes

    def run(self) -> None:
        """Make the trials that are left: all candidates, the better half, the best.

        ConfigError if the time does not suffice for a few steps of each.
        """
        names, last, share = self.state.candidates, len(_TIME_SHARES) - 1, sum(_TIME_SHARES)
        for rung in range(len(_TIME_SHARES)):
            if len(names) == 1 and rung < last:
                continue  # the rest of the time is for the only one
            steps = self._steps(names, self._seconds(_TIME_SHARES[rung] if rung < last else share))
            share -= _TIME_SHARES[rung]
            complete = {trial.candidate for trial in self.state.trials if trial.rung == rung}
            for name in names:
                if name not in complete:
                    self._try(name, rung, steps[name])
            of_rung = [trial for trial in self.state.trials if trial.rung == rung]
            ranked = sorted(of_rung, key=lambda trial: -trial.score)
            left = 1 if rung == last - 1 else (len(ranked) + 1) // 2
            names = [trial.candidate for trial in ranked[:left]]

    def final_tasks(self, test: Sequence[str]) -> Suite:
        """What start and result are scored on: ``test``, held-out text, and general pairs.

        ConfigError if one of ``test`` is no task; DataError if its data is missing or damaged.
        """
        state = self.state
        held_out = [] if state.request.dev else [f"{state.proxy}{self.folder / _TEST}"]
        suite = load_suite([*dict.fromkeys([*test, *held_out, str(GENERAL_PAIRS)])])
        for problem in suite.problems:
            raise DataError(problem.message)
        return suite

    def finish(self, suite: Suite, began: float) -> Adaptation:
        """Keep the best run, and score it beside the start on what had no part in the search."""
        state, run, recipe = self.state, self.folder / "run", None
        if not run.exists():
            self._folder(state.best).rename(run)
        if state.best.score > state.start_score:
            recipe = self.folder / "recipe.yaml"
            shutil.copyfile(run / "recipe.yaml", recipe)
        settings = load_recipe(run / "recipe.yaml")
        result = SentenceEncoder.load(run / "best", device=self.device)
        scorer = Scorer(suite, settings.evaluation.precision, result.device, self.show_progress)
        start = replace(settings.encoder, name=state.request.encoder)
        starts = [start_as_it_comes(start), start_encoder(start)]
        scores = before_and_after(scorer, starts, result, settings.train.seed if recipe else None)
        report = self.folder / "report.html"
        write_report(report, Contents((*scores.before, *scores.with_pooler, *scores.after)))
        return Adaptation(
            encoder=run / "best",
            recipe=recipe,
            start_score=state.start_score,
            dev_metric=state.dev_metric,
            trials=state.trials,
            scores=scores,
            report=report,
            seconds=time.monotonic() - began,
        )

    def _recipe(self, candidate: Candidate, steps: int, encoder: str) -> Recipe:
        request, state = self.state.request, self.state
        finished = is_sentence_encoder(request.encoder)
        own = {
            "encoder.pooler": None if finished else "mean",
            "data.max_tokens": state.max_tokens,
            "encoder.freeze_layers": int(candidate.frozen_share * state.depth),
            **candidate.settings,
        }
        fixed = {
            "encoder.name": encoder,
            "data.file": str(self.folder / (_MIXED if candidate.general_text else _TRAIN)),
            "train.max_steps": steps,
            "train.seed": request.seed,
            "train.start_shares": _START_SHARES,
            "evaluation.task": request.dev or f"{state.proxy}{self.folder / _DEV}",
            "evaluation.every": -(-steps // _EVALUATIONS),
            "evaluation.final": "none",
        }
        return load_recipe(candidate.recipe, {**own, **request.settings, **fixed})

    def _steps(self, names: Sequence[str], seconds: float) -> dict[str, int]:
        """The steps of each candidate in a rung, all of them taking as long.

        ConfigError if they are too few to tell anything.
        """
        state = self.state
        costs = {name: state.seconds_per_step * CANDIDATES[name].cost for name in names}
        each = seconds / len(names) - state.overhead
        if any(each / cost < _FEWEST_STEPS for cost in costs.values()):
            needed = len(names) * (state.overhead + _FEWEST_STEPS * max(costs.values()))
            raise ConfigError(
                f"--minutes {state.request.minutes:g} is too short for {_FEWEST_STEPS} steps of "
                f"{', '.join(names)}; give at least {needed / min(_TIME_SHARES) / 60:.1f}, or "
                "fewer --candidates"
            )
        most = _MOST_EPOCHS * state.steps_per_epoch
        return {name: min(int(each / cost), most) for name, cost in costs.items()}

    def _try(self, name: str, rung: int, steps: int) -> None:
        """Train a candidate, and keep its run if it is the best so far."""
        candidate, began = CANDIDATES[name], time.monotonic()
        logger.info("%s: %s, %d steps", name, candidate.description, steps)
        folder = self.folder / "trials" / f"{rung}-{name}"
        encoder, first = self.state.request.encoder, steps // 2 if candidate.mlm_first else 0
        if first:
            encoder = self._pretrain(folder.name, first)
        self._train(self._recipe(candidate, steps - first, encoder), folder)
        ended = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        seconds = time.monotonic() - began
        trial = Trial(name, rung, steps, ended["best_score"], ended["best_step"], seconds)
        self.state.trials.append(trial)
        self.state.write(self.folder / _STATE)
        for other in self.state.trials:
            if other != self.state.best:
                shutil.rmtree(self._folder(other), ignore_errors=True)
                shutil.rmtree(self.folder / _PRETRAINED / self._folder(other).name, True)

    def _pretrain(self, name: str, steps: int) -> str:
        """Train the start as a masked language model; where the result is."""
        request, folder = self.state.request, self.folder / _PRETRAINED / name
        settings = {
            "encoder.name": request.encoder,
            "data.file": str(self.folder / _TRAIN),
            "data.max_tokens": self.state.max_tokens,
            "train.max_steps": steps,
            "train.seed": request.seed,
        }
        self._train(load_recipe("pretrain-mlm", settings), folder)
        return str(folder / "last")

    def _train(self, recipe: Recipe, folder: Path) -> None:
        shown = self.show_progress
        train(recipe, folder, resume=True, device=self.device, show_progress=shown)

    def _folder(self, trial: Trial) -> Path:
        return self.folder / "trials" / f"{trial.rung}-{trial.candidate}"


def split_text(request: SearchRequest, folder: Path) -> SearchState:
    """Read the text, write its parts into a folder, and choose the candidates that fit.

    ConfigError if one that was asked for does not fit the text or the encoder; DataError if there
    is too little text.
    """
    text = Text.read(request.data)
    batch = load_recipe("unsup-simcse", request.settings).train.batch_size
    parts = text.split(request.seed, fewest=batch)
    start = start_encoder(EncoderSettings(name=request.encoder))
    given = {"", *text.gives}
    if not is_sentence_encoder(request.encoder):
        with suppress(CheckpointError):  # it may have no head, or not the whole of it
            MaskedLm.load(request.encoder)
            given.add("masked_lm")
    if parts[0].lines > start.width:
        given.add("more_texts_than_dimensions")
    for name in request.candidates:
        needs = CANDIDATES[name].needs
        if needs not in given:
            raise ConfigError(f"the candidate {name} needs {NEEDS[needs]}; leave it out")
    if request.candidates and all(CANDIDATES[name].mlm_first for name in request.candidates):
        raise ConfigError(
            "mlm-first trains from another start than yours, so nothing keeps the result from "
            "being worse; name another candidate beside it, such as dropout"
        )
    general = [it for it in GENERAL_TEXT.read_text(encoding="utf-8").splitlines() if it]
    for part, name in zip(parts, (_TRAIN, _DEV, _TEST), strict=True):
        part.write(folder / name)
    parts[0].write(folder / _MIXED, general[: parts[0].lines])
    return SearchState(
        request=request,
        candidates=request.candidates
        or [n for n, each in CANDIDATES.items() if each.needs in given],
        proxy=NEXT if text.in_documents else CROPS,
        max_tokens=parts[0].max_tokens,
        depth=start.backbone.depth,
        steps_per_epoch=-(-parts[0].lines // batch),
    )


def adapt(  # noqa: PLR0913 - what the command takes, by name
    encoder: str | Path,
    *,
    data: str | Path | Rows,
    output: str | Path = "runs/adapt",
    minutes: float = 30,
    dev: str | None = None,
    test: Sequence[str] = (),
    candidates: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    seed: int = 42,
    resume: bool = False,
    overwrite: bool = False,
    device: str | None = None,
    show_progress: bool = False,
) -> Adaptation:
    """Search for the best encoder of a text, as ``contrasent adapt`` does.

    Args:
        encoder: the start: a folder, a run or a Hugging Face id.
        data: text without labels: a file or data set as ``--data`` takes it, or strings. Sentences
            or longer texts; of a ``.txt`` an empty line ends a document.
        output: folder of the search: ``run`` with the best encoder, ``recipe.yaml`` that makes it
            again, ``search.json`` with every trial, ``report.html``, and the parts of the text.
        minutes: for all of it.
        dev: a task that chooses, such as a file of rated pairs; else held-out text, a proxy.
        test: tasks to score start and result on, beside held-out text and shipped pairs.
        candidates: names in `contrasent.adaptation.candidates.CANDIDATES`; None for those
            that fit the text and the encoder.
        settings: of every candidate's recipe, by dotted name.
        seed: of the parts of the text, and of every run.
        resume: go on with the search in ``output``.
        overwrite: replace it.
        device: ``cpu``, ``cuda:1`` and the like; else the accelerator if there is one.
        show_progress: progress bars on standard error.

    Raises:
        ConfigError: no such candidate or task, or a candidate that does not fit; ``output`` holds
            another search; the time is too short for a few steps of each candidate.
        DataError: there is too little text, or a file is missing or damaged.

    Example:
        >>> import contrasent
        >>> result = contrasent.adapt("runs/mine", data="tickets.txt", minutes=9)  # doctest: +SKIP
        >>> result.encoder, result.helped  # doctest: +SKIP
    """
    began, folder = time.monotonic(), Path(output)
    names = list(candidates or [])
    for name in names:
        pick("candidate", name, CANDIDATES)
    given = json.loads(json.dumps(dict(settings or {}), default=str))  # as the state keeps it
    source = str(data if isinstance(data, str | Path) else keep_rows(data))
    request = SearchRequest(str(encoder), source, minutes, dev, names, given, seed)
    if begins_anew(folder, _STATE, resume=resume, overwrite=overwrite):
        with writing_folder(folder) as partial:
            state = split_text(request, partial)
            Search(partial, state, device, show_progress).begin()
            state.write(partial / _STATE)
    search = Search(folder, SearchState.read(folder / _STATE, request), device, show_progress)
    suite = search.final_tasks(test)
    search.run()
    return search.finish(suite, began)
