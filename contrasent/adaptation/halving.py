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
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from contrasent.adaptation.candidates import CANDIDATES, Candidate, Text
from contrasent.data.examples import Rows, keep_rows
from contrasent.errors import ConfigError, pick
from contrasent.evaluation.suite import load_suite
from contrasent.evaluation.task_names import CROPS, NEXT
from contrasent.evaluation.task_types import Options
from contrasent.files import refuse_existing, write_text
from contrasent.model.checkpoint import is_sentence_encoder
from contrasent.model.encoder import SentenceEncoder
from contrasent.recipe import Recipe, load_recipe
from contrasent.training.run import train
from contrasent.training.scoring import BeforeAndAfter, Scorer, before_and_after, dev_task
from contrasent.training.setup import start_as_it_comes, start_encoder

logger = logging.getLogger("contrasent")

GENERAL_TEXT = Path(str(files("contrasent") / "quickstart_data" / "wikipedia.txt"))
"""Sentences that keep an encoder from forgetting what it knows of other text."""

GENERAL_PAIRS = GENERAL_TEXT.with_name("stack_exchange_pairs.tsv")
"""Rated pairs that tell how much it forgot."""

_TRAIN, _DEV, _TEST, _MIXED = "train.txt", "dev.txt", "test.txt", "mixed.txt"
_TIME_SHARES = (0.25, 0.25, 0.4)
"""Of the whole time, for each rung of the search; the rest is for the scores at its end."""

_FEWEST_STEPS, _MOST_EPOCHS, _PROBED_STEPS, _EVALUATIONS = 10, 3, 6, 4
_START_SHARES = (0.5,)
_NEEDS = {
    "documents": "a .txt whose documents have an empty line between them",
    "masked_lm": "a masked language model to start from",
}


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of a candidate.

    Attributes:
        candidate: its name.
        rung: 0 for the first, shortest one.
        steps: updates it was to make.
        score: the best dev score on the way, in [-1, 1].
        best_step: where that was; 0 for the start.
        seconds: it took.
    """

    candidate: str
    rung: int
    steps: int
    score: float
    best_step: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Adaptation:
    """The result of a search.

    Attributes:
        encoder: folder of the best encoder, which is the start if nothing beat it.
        recipe: the recipe that makes it again, bit for bit; None if it is the start.
        start_score: the dev score of the start as it comes.
        dev_metric: what the scores of trials are, such as ``spearman`` or ``mrr@10``.
        trials: in the order in which they were made; the last is that of the best.
        scores: start and result on text that had no part in the search.
        seconds: of the whole search.
    """

    encoder: Path
    recipe: Path | None
    start_score: float
    dev_metric: str
    trials: list[Trial]
    scores: BeforeAndAfter
    seconds: float

    @property
    def helped(self) -> bool:
        """Whether the result is another encoder than the start."""
        return self.recipe is not None


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """What a search was asked for; a search that goes on is asked for the same."""

    encoder: str
    data: str
    minutes: float
    dev: str | None
    settings: dict[str, Any]
    seed: int


class Search:
    """A search in a folder, which holds all that is needed to go on with it."""

    def __init__(
        self, request: SearchRequest, folder: Path, device: str | None, show_progress: bool
    ) -> None:
        self.request, self.folder = request, folder
        self.device, self.show_progress = device, show_progress
        self.trials: list[Trial] = []
        self.names: list[str] = []
        self.in_documents, self.steps_per_epoch, self.dev_metric = False, 0, ""
        self.start_score = self.seconds_per_step = self.overhead = 0.0

    @property
    def _state(self) -> Path:
        return self.folder / "search.json"

    def open(self, names: Sequence[str], *, resume: bool, overwrite: bool) -> None:
        """Read what is there, or split the text and score the start.

        Raises:
            ConfigError: another search is there, or a candidate does not fit.
            DataError: there is too little text.
        """
        if resume and self._state.is_file():
            self._load()
            return
        if overwrite and self._state.is_file():
            shutil.rmtree(self.folder)
        remedy = "go on with it (--resume), replace it (--overwrite), or name another --output"
        refuse_existing(self.folder, remedy)
        text = Text.read(self.request.data)
        batch = load_recipe("unsup-simcse", self.request.settings).train.batch_size
        train_text, dev_text, test_text = text.split(self.request.seed, fewest=batch)
        self.names, self.in_documents = self._fitting(names, train_text), text.in_documents
        self.steps_per_epoch = -(-train_text.lines // batch)
        self.folder.mkdir(parents=True)
        train_text.write(self.folder / _TRAIN)
        dev_text.write(self.folder / _DEV)
        test_text.write(self.folder / _TEST)
        general = GENERAL_TEXT.read_text(encoding="utf-8").splitlines()
        train_text.write(self.folder / _MIXED, general[: train_text.lines])
        recipe = self._recipe(CANDIDATES["dropout"], 1)
        dev = dev_task(recipe.evaluation)
        start = start_as_it_comes(recipe.encoder)
        (self.start_score,) = dev.score(start, precision=recipe.evaluation.precision).values()
        self.dev_metric = dev.metric
        self._probe(recipe)
        self._save()

    def run(self, seconds: float) -> None:
        """Make the trials that are left: all candidates, the better half, the best.

        Raises:
            ConfigError: the time does not suffice for a few steps of each.
        """
        names = self.names
        for rung, share in enumerate(_TIME_SHARES):
            steps = self._steps(names, share * seconds)
            made = {trial.candidate for trial in self.trials if trial.rung == rung}
            for name in names:
                if name not in made:
                    self._try(name, rung, steps[name])
            of_rung = [trial for trial in self.trials if trial.rung == rung]
            ranked = sorted(of_rung, key=lambda trial: -trial.score)
            left = 1 if rung == len(_TIME_SHARES) - 2 else (len(ranked) + 1) // 2
            names = [trial.candidate for trial in ranked[:left]]

    def finish(self, test: Sequence[str], started: float) -> Adaptation:
        """Keep the best run, and score it beside the start on what had no part in the search."""
        best = self.best
        run = self.folder / "run"
        if not run.exists():
            self._folder(best.candidate, best.rung).rename(run)
        recipe = None
        if best.best_step:
            recipe = self.folder / "recipe.yaml"
            shutil.copyfile(run / "recipe.yaml", recipe)
        settings = load_recipe(run / "recipe.yaml")
        held_out = [] if self.request.dev else [self._proxy(self.folder / _TEST)]
        tasks = [*test, *held_out, str(GENERAL_PAIRS)]
        suite = load_suite(list(dict.fromkeys(tasks)), Options())
        result = SentenceEncoder.load(run / "best", device=self.device)
        precision = settings.evaluation.precision
        scorer = Scorer(suite, precision, result.device, self.show_progress)
        starts = [start_as_it_comes(settings.encoder), start_encoder(settings.encoder)]
        seed = settings.train.seed if recipe else None
        scores = before_and_after(scorer, starts, result, seed)
        return Adaptation(
            encoder=run / "best",
            recipe=recipe,
            start_score=self.start_score,
            dev_metric=self.dev_metric,
            trials=self.trials,
            scores=scores,
            seconds=time.monotonic() - started,
        )

    @property
    def best(self) -> Trial:
        """The trial with the highest dev score."""
        return max(self.trials, key=lambda trial: trial.score)

    def _fitting(self, names: Sequence[str], text: Text) -> list[str]:
        """The candidates that fit the text and the encoder.

        Raises:
            ConfigError: one of ``names`` does not.
        """
        has = {
            "": True,
            "documents": text.in_documents,
            "masked_lm": not is_sentence_encoder(self.request.encoder),
        }
        for name in names:
            needs = CANDIDATES[name].needs
            if not has[needs]:
                raise ConfigError(f"the candidate {name} needs {_NEEDS[needs]}; leave it out")
        return [*names] or [name for name, each in CANDIDATES.items() if has[each.needs]]

    def _recipe(self, candidate: Candidate, steps: int) -> Recipe:
        data = self.folder / (_MIXED if candidate.name == "general" else _TRAIN)
        fixed = {
            "encoder.name": self.request.encoder,
            "data.file": str(data),
            "train.max_steps": steps,
            "train.seed": self.request.seed,
            "train.start_shares": list(_START_SHARES),
            "evaluation.task": self.request.dev or self._proxy(self.folder / _DEV),
            "evaluation.every": max(1, steps // _EVALUATIONS),
            "evaluation.final": "none",
        }
        return load_recipe(
            candidate.recipe, {**candidate.settings, **self.request.settings, **fixed}
        )

    def _steps(self, names: Sequence[str], seconds: float) -> dict[str, int]:
        """The steps of each candidate in a rung, all of them taking as long.

        Raises:
            ConfigError: they are too few to tell anything.
        """
        costs = {name: self.seconds_per_step * CANDIDATES[name].cost for name in names}
        each = seconds / len(names) - self.overhead
        if any(each / cost < _FEWEST_STEPS for cost in costs.values()):
            needed = len(names) * (self.overhead + _FEWEST_STEPS * max(costs.values()))
            raise ConfigError(
                f"--minutes {self.request.minutes:g} is too short for {_FEWEST_STEPS} steps of "
                f"{', '.join(names)}; give at least {needed / min(_TIME_SHARES) / 60:.1f}, or "
                "fewer --candidates"
            )
        most = _MOST_EPOCHS * self.steps_per_epoch
        return {name: min(int(each / cost), most) for name, cost in costs.items()}

    def _probe(self, recipe: Recipe) -> None:
        """Measure how long a step takes, and what a trial takes beside its steps."""
        folder, started = self.folder / "probe", time.monotonic()
        steps = replace(recipe.train, max_steps=_PROBED_STEPS)
        result = train(replace(recipe, train=steps), folder, device=self.device)
        if result is None:
            raise ConfigError(f"{folder} holds a complete run; remove it")
        self.seconds_per_step = result.seconds / result.steps
        self.overhead = time.monotonic() - started - result.seconds
        shutil.rmtree(folder)

    def _try(self, name: str, rung: int, steps: int) -> None:
        """Train a candidate, and keep its run if it is the best so far."""
        candidate, started = CANDIDATES[name], time.monotonic()
        logger.info("%s: %s, %d steps", name, candidate.description, steps)
        folder = self._folder(name, rung)
        train(
            self._recipe(candidate, steps),
            folder,
            resume=True,
            device=self.device,
            show_progress=self.show_progress,
        )
        ended = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        seconds = time.monotonic() - started
        trial = Trial(name, rung, steps, ended["best_score"], ended["best_step"], seconds)
        self.trials.append(trial)
        self._save()
        for other in self.trials:
            if other != self.best:
                shutil.rmtree(self._folder(other.candidate, other.rung), ignore_errors=True)

    def _folder(self, name: str, rung: int) -> Path:
        return self.folder / "trials" / f"{rung}-{name}"

    def _proxy(self, held_out: Path) -> str:
        return f"{NEXT if self.in_documents else CROPS}{held_out}"

    def _save(self) -> None:
        state = {
            "request": asdict(self.request),
            "candidates": self.names,
            "in_documents": self.in_documents,
            "steps_per_epoch": self.steps_per_epoch,
            "start_score": self.start_score,
            "dev_metric": self.dev_metric,
            "seconds_per_step": self.seconds_per_step,
            "overhead": self.overhead,
            "trials": [asdict(trial) for trial in self.trials],
        }
        write_text(self._state, json.dumps(state, indent=2, ensure_ascii=False) + "\n")

    def _load(self) -> None:
        """Read the state of a search that goes on.

        Raises:
            ConfigError: it was asked for something else.
        """
        state = json.loads(self._state.read_text(encoding="utf-8"))
        before, now = state["request"], asdict(self.request)
        changed = [f"{key} {before[key]}, not {now[key]}" for key in now if before[key] != now[key]]
        if changed:
            raise ConfigError(
                f"the search in {self.folder} has {'; '.join(changed)}; ask for the same, or "
                "replace it with --overwrite"
            )
        self.names, self.in_documents = state["candidates"], state["in_documents"]
        self.steps_per_epoch, self.start_score = state["steps_per_epoch"], state["start_score"]
        self.dev_metric, self.overhead = state["dev_metric"], state["overhead"]
        self.seconds_per_step = state["seconds_per_step"]
        self.trials = [Trial(**trial) for trial in state["trials"]]


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
            again, ``search.json`` with every trial, and the parts of the text.
        minutes: for all of it.
        dev: a task that chooses, such as a file of rated pairs; else held-out text, a proxy.
        test: tasks to score start and result on, beside held-out text and shipped pairs.
        candidates: names in :data:`CANDIDATES`; None for those that fit the text and the encoder.
        settings: of every candidate's recipe, by dotted name.
        seed: of the parts of the text, and of every run.
        resume: go on with the search in ``output``.
        overwrite: replace it.
        device: ``cpu``, ``cuda:1`` and the like; else the accelerator if there is one.
        show_progress: progress bars on standard error.

    Raises:
        ConfigError: no such candidate, or one that does not fit; ``output`` holds another search;
            the time is too short for a few steps of each candidate.
        DataError: there is too little text, or it is damaged.

    Example:
        >>> import contrasent
        >>> found = contrasent.adapt("runs/mine", data="tickets.txt", minutes=10)  # doctest: +SKIP
        >>> found.encoder, found.helped  # doctest: +SKIP
    """
    started = time.monotonic()
    source = str(data) if isinstance(data, str | Path) else str(keep_rows(data))
    request = SearchRequest(str(encoder), source, minutes, dev, dict(settings or {}), seed)
    names = list(candidates or [])
    for name in names:
        pick("candidate", name, CANDIDATES)
    folder = Path(output)
    search = Search(request, folder, device, show_progress)
    search.open(names, resume=resume, overwrite=overwrite)
    search.run(60 * minutes)
    return search.finish(test, started)
