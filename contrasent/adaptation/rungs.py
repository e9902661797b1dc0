"""Candidates of an adaptation, and the search over them in a given time.

Every candidate trains for a few steps, the better half for more, and the best for the time that is
left (successive halving, Jamieson and Talwalkar 2016), all as long as they were measured to take.
"""

import shutil
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from contrasent.adaptation.trials import ROWS, Search, Settings, Trial
from contrasent.data import n_words, open_examples, plural
from contrasent.errors import ConfigError, ContrasentError, logger
from contrasent.evaluation import Suite, load_suite, synthesize
from contrasent.fitting import fit
from contrasent.model import INFO_FILE, are_words, is_sentence_encoder, load_encoder
from contrasent.options import AdaptOptions
from contrasent.recipe import Recipe, load_recipe
from contrasent.search import find_candidates, load_reranker
from contrasent.training import DevScore, StepMetrics, complete, start_encoder, train

GENERAL_PAIRS = Path(str(files("contrasent") / "quickstart_data" / "stack_exchange_pairs.tsv"))
"""Rated pairs that tell how much it forgot."""

TRAIN, LISTS = "train.txt", "lists.jsonl"
"""The files of the text that is trained on, and of its queries with ranked candidates."""

TABLE = "a static table is fitted to its embeddings"

_TIME_SHARES, _EVALUATIONS = (0.3, 0.3, 0.4), (1, 1, 3)
"""Of the time that is left, for each rung of the search; and how often a trial is evaluated."""
_FEWEST_STEPS, _MOST_EPOCHS, _PROBED_STEPS = 10, 3, 3
_LONGER = 1.2  # times the steps that it had, a candidate is trained again
_LISTED, _TIMED_LISTS, _LISTS_SHARE = 8, 16, 0.1
"""Candidates of a query; queries that are timed; of the time, what a teacher has for all."""
_GRACE = 1.05
"""Times what is asked for, the time is over."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way of adapting an encoder: settings of a packaged recipe that differ from it."""

    name: str  # as ``--candidates`` takes it
    description: str  # what it trains on
    settings: Mapping[str, Any] = field(default_factory=dict)
    recipe: str = "unsup-simcse"
    needs: str = ""  # a key of `NEEDS`, or nothing
    cost: float = 1.0  # of a step, in steps of ``dropout``
    frozen_share: float = 0.0  # of the layers, the lowest ones, that stay as they are


_CANDIDATES = TypeAdapter(list[Candidate]).validate_python(ROWS["candidates"])
CANDIDATES = {it.name: it for it in _CANDIDATES}
"""What is tried, by name."""

NEEDS: Mapping[str, str] = ROWS["needs"]
FIXED: Mapping[str, str] = ROWS["fixed"]
"""What a candidate may need, in words; settings of the search, and what to give instead."""


@dataclass(slots=True)
class Ground:
    """What a search found out before its trials, and the time that it took."""

    text: str = ""  # what it is
    in_documents: bool = False
    why: str = ""  # nothing is trained
    ended_after: float = 0.0  # minutes that it had, which it does not go on without more of
    candidates: list[str] = field(default_factory=list)  # names of what is tried
    left_out: list[str] = field(default_factory=list)  # of those that found no time so far
    max_tokens: int = 32  # of a line of the text, in training
    depth: int = 0  # layers of the encoder
    lines: int = 0  # that are trained on
    lists: int = 0  # queries with candidates that a teacher has ranked
    dev: list[str] = field(default_factory=list)  # tasks that choose
    tests: list[str] = field(default_factory=list)  # made of held-out text
    words_a_second: float = 0.0  # that are embedded
    final_seconds: float = 0.0  # of the scores at the end, and of judging again
    start_score: float | None = None  # the dev score of the start as it comes
    dev_metric: str = ""  # what that is
    step_seconds: float = 0.0  # of the candidate ``dropout``
    score_seconds: float = 0.0  # of a dev score
    other_seconds: float = 0.0  # of a trial beside its steps and its scores
    speed_factor: float = 1.0  # by which trials took longer than these
    rungs: list[dict[str, int]] = field(default_factory=list)  # steps of each candidate
    seconds_spent: float = 0.0


class Rungs:
    """A search over candidates in a given time."""

    def __init__(self, search: Search, options: AdaptOptions, overrides: Settings) -> None:
        self.search, self.options, self.overrides = search, options, overrides
        self.ground = TypeAdapter(Ground).validate_python(search.state.ground)
        self.began = time.monotonic() - self.ground.seconds_spent
        self.last, self.stopped = len(_TIME_SHARES) - 1, False

    @property
    def seconds_left(self) -> float:
        """Until the scores at the end have to begin, which take less where trials did."""
        reserved = min(1.0, self.ground.speed_factor) * self.ground.final_seconds
        return 60 * self.options.minutes - reserved - (time.monotonic() - self.began)

    def save(self) -> None:
        """Keep what is known, and the time that was spent."""
        self.ground.seconds_spent = time.monotonic() - self.began
        self.search.state.ground = asdict(self.ground)
        self.search.state.write(self.search.folder)

    def run(self) -> str:
        """Make the trials that are left, as far as the time goes; why there is none."""
        ground, search = self.ground, self.search
        why = ground.why
        try:
            if not ground.why and not ground.step_seconds:
                texts = (text.sentences for text in self.final_tasks().texts())
                words = sum(map(n_words, set(chain.from_iterable(texts))))
                ground.final_seconds += 2 * words / ground.words_a_second
                self._probe()
            if not ground.why and self.options.minutes > ground.ended_after:
                search.run(self._plan(), self._make, self._learn)
        except KeyboardInterrupt:
            self.stopped = True
            logger.warning("stopped; --resume goes on")
            return "" if search.succeeded else "it was stopped before a candidate had a score"
        except ContrasentError as error:
            why = str(error)
        if search.succeeded:
            why, ground.ended_after = "", self.options.minutes
        elif search.state.trials:
            failed = (f"{it.candidate}: {it.failure}" for it in search.state.trials)
            why = "; ".join(["every candidate failed", *failed])
        self.save()
        return why

    def _probe(self) -> None:
        ground, folder, began = self.ground, self.search.folder / "probe", time.monotonic()
        scores, times = list[DevScore](), list[float]()

        def note_time(it: StepMetrics | DevScore) -> None:
            times.append(time.monotonic())
            if isinstance(it, DevScore):
                scores.append(it)
            else:
                self._check_time(it)

        recipe = self._recipe(CANDIDATES["dropout"], _PROBED_STEPS, _PROBED_STEPS)
        usual = load_recipe("unsup-simcse")  # a user's settings may be for other candidates alone
        recipe = replace(recipe, objective=usual.objective, view=usual.view)
        run_options: dict[str, Any] = {"device": self.options.device}
        run_options |= {"overwrite": True, "on_step": note_time, "on_evaluation": note_time}
        try:
            result = train(recipe, folder, **run_options)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if result is None or not scores or scores[0].step:
            raise ConfigError("the start has no dev score")
        ground.start_score, ground.dev_metric = scores[0].score, scores[0].metric
        ground.step_seconds = float(np.diff(times[1:-1]).min())  # the first takes longer
        # The start was scored, and after the last step the encoder and its means with the start.
        ground.score_seconds = (times[-1] - times[-2]) / (1 + len(recipe.train.start_shares))
        known = result.seconds + 3 * ground.score_seconds
        ground.other_seconds = max(0.0, time.monotonic() - began - known)
        if "distil" in ground.candidates:  # the teacher's embeddings are kept for its trials
            recipe = self._recipe(CANDIDATES["distil"], 1, 1)
            unscored = {"evaluation.task": "none", "train.start_shares": []}
            with suppress(ContrasentError):
                train(load_recipe(recipe, unscored), folder, **run_options)
            shutil.rmtree(folder, ignore_errors=True)
        if "rank-distil" in ground.candidates:
            with suppress(ContrasentError):  # its trial says why
                self._write_lists()
        self.save()

    def _write_lists(self) -> None:
        options, documents = self.options, self.ground.in_documents
        text = self.search.folder / TRAIN
        longest = 2 * self.ground.max_tokens // 3  # words of a passage, all of which are read
        pairs = [pair[:2] for pair in synthesize(text, documents=documents, words=longest).pairs]
        np.random.default_rng(options.seed).shuffle(pairs)
        encoder = start_encoder(self._recipe(CANDIDATES["rank-distil"], 1, 1).encoder)
        load: Any = load_encoder if options.reranker is None else load_reranker
        teacher = load(options.reranker or options.teacher, device=options.device)
        began = time.monotonic()
        find_candidates(encoder, pairs[:_TIMED_LISTS], None, _LISTED, teacher)
        seconds = (time.monotonic() - began) / _TIMED_LISTS
        most = max(_TIMED_LISTS, int(_LISTS_SHARE * 60 * options.minutes / seconds))
        corpus = chain.from_iterable(open_examples(str(text), documents=documents))
        mined = find_candidates(encoder, pairs[:most], corpus, _LISTED, teacher)
        mined.write(self.search.folder / LISTS)
        self.ground.lists = len(mined.examples)

    def _check_time(self, step: StepMetrics) -> None:
        if self.seconds_left < (1 - _GRACE) * 60 * self.options.minutes:
            raise ConfigError(f"time over after {plural(step.number + 1, 'step')}: more --minutes")

    def _cost(self, name: str, evaluations: int) -> tuple[float, float]:
        ground, it = self.ground, CANDIDATES[name]
        fixed = ground.other_seconds + (1 + 2 * evaluations) * ground.score_seconds
        return ground.speed_factor * fixed, ground.speed_factor * ground.step_seconds * it.cost

    def _steps(self, names: Sequence[str], seconds: float, rung: int) -> dict[str, int]:
        """The steps of each candidate, all taking as long; 0 where time is too short for a few."""
        steps = dict[str, int]()
        for name in names:
            recipe = self._recipe(CANDIDATES[name], 1, 1)
            lists = self.ground.lists if CANDIDATES[name].needs == "lists" else 0
            epoch = -(-(lists or self.ground.lines) // recipe.train.batch_size)
            fixed, step = self._cost(name, _EVALUATIONS[rung])
            fitting = int((seconds / len(names) - fixed) / step)
            steps[name] = min(fitting, _MOST_EPOCHS * epoch) if fitting >= _FEWEST_STEPS else 0
        return steps

    def _choose(self, names: list[str]) -> None:
        """Take the first of these candidates, as many as there is time for."""
        ground, left, many = self.ground, self.seconds_left, len(names)
        while many > 1 and not all(self._steps(names[:many], _TIME_SHARES[0] * left, 0).values()):
            many -= 1
        ground.candidates, ground.left_out = names[:many], names[many:]
        if many == 1 and not self._steps(names[:1], left, self.last)[names[0]]:
            fixed, step = self._cost(names[0], _EVALUATIONS[self.last])
            minutes = self.options.minutes
            enough = minutes + (fixed + 2 * _FEWEST_STEPS * step - left) / 60
            raise ConfigError(
                f"{minutes:g} minutes leave no time for {names[0]}; {enough:.1f} are enough for it"
            )

    def _plan(self) -> Iterator[Settings]:
        """The trials of a search, which begins anew where it took less time than was measured."""
        ground, rungs = self.ground, len(_EVALUATIONS)
        if not ground.rungs:
            self._choose(ground.candidates)
            if out := ", ".join(ground.left_out):
                logger.warning("%g minutes leave no time for %s", self.options.minutes, out)
        for first in count(0, rungs):
            names = yield from self._halve(first)
            if first + rungs == len(ground.rungs):
                names += ground.left_out
                if not names or all(it.settings["rung"] < first for it in self.search.state.trials):
                    return
                try:
                    self._choose(names)
                except ConfigError:  # the time is over
                    return

    def _halve(self, first: int) -> Generator[Settings, None, list[str]]:
        ground = self.ground
        names = ground.candidates
        for stage, evaluations in enumerate(_EVALUATIONS):
            rung = first + stage
            if rung == len(ground.rungs):
                share = _TIME_SHARES[stage] / sum(_TIME_SHARES[stage:])
                alone = len(names) == 1 and stage < self.last  # it gets the rest of the time
                steps = {} if alone else self._steps(names, share * self.seconds_left, stage)
                ground.rungs.append(steps)
                self.save()
            for name, most in ground.rungs[rung].items():
                before = self._latest(name)
                if before is None or (before.score is not None and _LONGER * before.steps <= most):
                    every = -(-most // evaluations)
                    yield {"candidate": name, "rung": rung, "steps": most, "every": every}
            if ground.rungs[rung]:
                trials = [it for it in map(self._latest, names) if it and it.score is not None]
                trials.sort(key=lambda trial: -(trial.score or 0.0))
                keep = 1 if stage == self.last - 1 else (len(trials) + 1) // 2
                names = [trial.candidate for trial in trials[:keep]]
        return names

    def _latest(self, name: str) -> Trial | None:
        return {it.candidate: it for it in self.search.state.trials}.get(name)

    def _recipe(self, candidate: Candidate, steps: int, every: int) -> Recipe:
        ground, options, folder = self.ground, self.options, self.search.folder
        changes = {
            "encoder.pooler": start_pooler(options.encoder),
            "data.max_tokens": ground.max_tokens,
            "encoder.freeze_layers": int(candidate.frozen_share * ground.depth),
            **candidate.settings,
            **self.overrides,
        }
        fixed = {
            "encoder.name": options.encoder,
            "encoder.layers": options.layers,
            "data.file": str(folder / (LISTS if candidate.needs == "lists" else TRAIN)),
            "data.columns": None,
            "train.max_steps": steps,
            "train.seed": options.seed,
            "train.start_shares": [] if changes.get("encoder.lora") else [0.5],
            "evaluation.task": options.dev or ",".join(str(folder / it) for it in ground.dev),
            "evaluation.every": every,
            "evaluation.final": "none",
        }
        if candidate.needs == "teacher":
            fixed["objective.teacher"] = teacher_of(options)
        return load_recipe(candidate.recipe, {**changes, **fixed})

    def _make(self, settings: Settings, folder: Path) -> None:
        candidate, steps = CANDIDATES[settings["candidate"]], settings["steps"]
        logger.info("%s: %s, %d steps", candidate.name, candidate.description, steps)
        fixed = {*candidate.settings, *["encoder.freeze_layers"] * (candidate.frozen_share > 0)}
        if taken := sorted(fixed & set(self.overrides)):
            raise ConfigError(f"it sets {', '.join(taken)} itself")
        if candidate.needs == "lists" and not self.ground.lists:
            self._write_lists()
        recipe, began = self._recipe(candidate, steps, settings["every"]), time.monotonic()

        def is_last(score: DevScore) -> bool:  # no time is left to come to the next
            each = (time.monotonic() - began) / max(1, score.step // settings["every"])
            return score.step > 0 and self.seconds_left < each

        calls: dict[str, Any] = {"on_step": self._check_time, "on_evaluation": is_last}
        train(recipe, folder, resume=True, **calls, **self.search.run_options)

    def _learn(self, trial: Trial) -> None:
        if trial.score is not None:
            fixed, step = self._cost(trial.candidate, -(-trial.steps // trial.settings["every"]))
            slower = trial.seconds / (fixed + trial.steps * step)
            self.ground.speed_factor *= min(max(slower, 0.5), 2.0)
        self.save()

    def fit_table(self, folder: Path) -> Path:
        """Fit a static table to the teacher on the text, unless it is there; what says how."""
        teacher = teacher_of(self.options) or self.options.encoder
        if not folder.exists():
            pooler = start_pooler(teacher)
            how: Any = {"pooler": pooler, "head": "none" if pooler else None}
            how |= {"device": self.options.device}
            fit(teacher, "static", data=self.search.folder / TRAIN, output=folder, **how)
        return folder / INFO_FILE

    def final_tasks(self) -> Suite:
        """What start and result are scored on: ``test``, held-out text, and general pairs."""
        held_out = [str(self.search.folder / task) for task in self.ground.tests]
        return load_suite([*dict.fromkeys([*self.options.test, *held_out, str(GENERAL_PAIRS)])])


def require_settings(candidates: Sequence[Candidate], overrides: Settings) -> None:
    """Refuse settings that none of the candidates, or of all, takes."""
    problems, tried = list[ConfigError](), candidates or [*CANDIDATES.values()]
    for it in tried:
        try:
            complete(load_recipe(it.recipe, {**it.settings, **overrides}))
        except ConfigError as error:
            problems.append(error)
    if len(problems) == len(tried):
        raise problems[0]


def teacher_of(options: AdaptOptions) -> str | None:
    """The encoder that is followed: by a smaller one the whole encoder, if it is for sentences."""
    is_smaller = options.layers is not None and start_pooler(options.encoder) is None
    return options.teacher or (options.encoder if is_smaller else None)


def start_pooler(encoder: str) -> str | None:
    """The pooler of the start: its own, or the mean of a masked language model's states."""
    return None if are_words(encoder) or is_sentence_encoder(encoder) else "mean"
