"""Callbacks of a run: scores on the dev task, alignment and uniformity."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import product

from accelerate import Accelerator
from torch import Tensor

from contrasent.distributed import ProcessGroup
from contrasent.errors import DataError
from contrasent.evaluation.geometry import KEY, measurement
from contrasent.evaluation.rated_pairs import RatedPairs
from contrasent.model.encoder import SentenceEncoder
from contrasent.recipe import Recipe
from contrasent.settings import EvaluationSettings
from contrasent.training.metrics_log import MetricsFile, StepMetrics
from contrasent.training.scoring import DevTask
from contrasent.training.state import averaged, whitened

logger = logging.getLogger("contrasent")


@dataclass(frozen=True, slots=True)
class DevScore:
    """The scores of an evaluation on the dev task."""

    step: int  # updates made before it; at 0 the start is scored as it comes
    name: str  # of the dev task
    metric: str  # such as ``spearman`` or ``mrr@10``
    score: float  # of the encoder that is kept, in [-1, 1]
    other: float | None  # of the one beside it; None if that was not evaluated
    twin_is_better: bool  # the one that is kept is the twin
    start_share: float = 0.0  # share of the start's weights in those that were scored
    whitened: bool = False  # the encoder that was scored has a whitening
    plain: float | None = None  # of the start without a whitening, where the whitened one is kept

    @property
    def summary(self) -> str:
        """The scores in words, x 100."""
        beside = "" if self.other is None else f" (the other encoder {self.other * 100:.2f})"
        share = f" ({self.start_share:.0%} of the start)" if self.start_share else ""
        whitened = " (whitened)" if self.whitened else ""
        of = f"{self.name} {metric_name(self.metric)}"
        return f"{of} {self.score * 100:.2f}{share}{whitened}{beside}"


def metric_name(metric: str) -> str:
    """``Spearman``, or ``MRR@10 (proxy)``: only proxies are retrieval."""
    return f"{metric.upper()} (proxy)" if "@" in metric else metric.capitalize()


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Functions of the caller that a run calls."""

    # after each update, with what is known of it
    on_step: Callable[[StepMetrics], object] | None = None
    # after each evaluation on the dev task, with its scores
    on_evaluation: Callable[[DevScore], object] | None = None


class StopRequest:
    """Ctrl-C as a request to stop after the step that is being made."""

    def __init__(self) -> None:
        self.asked = False  # whether it was pressed

    @contextmanager
    def listening(self, *, alone: bool = True) -> Iterator[None]:
        """Take the first Ctrl-C inside the block for a request; a second one stops at once.

        One of several processes, which is not ``alone``, stops at once: the others would wait.
        """
        # A thread gets no signals, and whoever has another handler keeps it.
        takes_it = alone and threading.current_thread() is threading.main_thread()
        if not takes_it or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            yield
            return
        signal.signal(signal.SIGINT, self._ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _ask(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        # A handler may interrupt a write to sys.stderr, which cannot be entered twice.
        os.write(2, b"\nstopping after this step; Ctrl-C again stops at once\n")


def score_dev(
    dev: DevTask, encoder: SentenceEncoder, twin: SentenceEncoder | None, recipe: Recipe, step: int
) -> DevScore:
    """Evaluate the encoder after ``step`` updates, and its twin where the better one is kept.

    Of equal ones the first is kept.
    """
    precision = recipe.evaluation.precision
    ((name, first),) = dev.score(encoder, precision=precision).items()
    if twin is None or recipe.encoder.keep == "first":
        return DevScore(step, name, dev.metric, first, None, twin_is_better=False)
    (second,) = dev.score(twin, precision=precision).values()
    best, other = max(first, second), min(first, second)
    return DevScore(step, name, dev.metric, best, other, twin_is_better=second > first)


@dataclass(frozen=True, slots=True)
class Variants:
    """What is scored on the dev task at an evaluation, of which the best is kept."""

    recipe: Recipe  # of the run
    # weights before the first step, by the names of the parameters; empty without
    # ``train.start_shares``
    start: Mapping[str, Tensor]
    text: Sequence[str]  # training sentences that a whitening is fitted on; empty for none
    group: ProcessGroup  # the processes that embed together

    @classmethod
    def of_start(
        cls, recipe: Recipe, encoder: SentenceEncoder, text: Sequence[str], group: ProcessGroup
    ) -> Variants:
        """Those of a run that begins with ``encoder``."""
        shares, weights = recipe.train.start_shares, encoder.named_parameters()
        start = {name: w.detach().clone() for name, w in weights if shares}
        return cls(recipe, start, text, group)

    def best(
        self, dev: DevTask, encoder: SentenceEncoder, twin: SentenceEncoder | None, step: int
    ) -> DevScore:
        """The best of an encoder, its means with the start, and all of them whitened."""
        shares = (0.0, *self.recipe.train.start_shares) if step else (0.0,)
        maps = (False, True) if self.text and encoder.transform is None else (False,)
        scores = []
        both = self.group.encoder(encoder), None if twin is None else self.group.encoder(twin)
        for share, mapped in product(shares, maps):
            with self.of(encoder, share, mapped):
                score = score_dev(dev, *both, self.recipe, step)
            scores.append(replace(score, start_share=share, whitened=mapped))
        best = max(scores, key=lambda score: score.score)
        return best if step or not best.whitened else replace(best, plain=scores[0].score)

    @contextmanager
    def of(self, encoder: SentenceEncoder, share: float, mapped: bool) -> Iterator[None]:
        """Give ``encoder`` a share of the start's weights and a whitening, and take them back."""
        precision = self.recipe.evaluation.precision
        fitted = whitened(encoder, self.text, precision) if mapped else nullcontext()
        with averaged(encoder, self.start, share), fitted:
            yield


def followed_pairs(settings: EvaluationSettings) -> RatedPairs | None:
    """The pairs that are measured during training; None if nothing is to be measured.

    ConfigError if ``geometry_pairs`` cannot be read; DataError if the data is missing or damaged,
    or no pair is positive.
    """
    if settings.geometry_every is None:
        return None
    try:
        pairs = RatedPairs.read(settings.geometry_pairs, settings.data_dir)
    except DataError as error:
        raise DataError(f"{error}\nOr train without: --evaluation.geometry_every null") from error
    if len(pairs.sentences) < 2:
        raise DataError(f"{pairs.label}: uniformity needs two different sentences; there is one")
    return pairs


class GeometryLog:
    """Writes the trajectory of an encoder: SimCSE's Figure 2.

    A measurement draws no random number and leaves every part in its mode, so the run goes on as
    it would have without.
    """

    def __init__(
        self, recipe: Recipe, pairs: RatedPairs | None, metrics: MetricsFile, steps: int
    ) -> None:
        """Keep where to write.

        The encoder is measured after the last of ``steps`` too; nothing is without ``pairs``.
        """
        self._settings, self._trackers = recipe.evaluation, recipe.train.trackers
        self._pairs, self._metrics, self._steps = pairs, metrics, steps

    def is_due(self, step: int) -> bool:
        """Whether the encoder is measured after ``step`` updates."""
        every = self._settings.geometry_every
        return bool(self._pairs and every) and (step == self._steps or step % (every or 1) == 0)

    def measure(self, step: int, encoder: SentenceEncoder, accelerator: Accelerator) -> None:
        """Measure the encoder after ``step`` updates if it is due.

        CheckpointError if an embedding is zero or not finite.
        """
        if self._pairs is None or not self.is_due(step):
            return
        geometry = measurement(encoder, self._pairs, self._settings.precision)
        self._metrics.write({"step": step, KEY: geometry})
        logged = {name: geometry[name] for name in ("alignment", "uniformity")}
        if self._trackers:
            accelerator.log({f"{KEY}_{name}": v for name, v in logged.items()}, step=step)
        numbers = ", ".join(f"{name} {value:.4f}" for name, value in logged.items())
        logger.info("step %d: %s (%s)", step, numbers, self._pairs.label)
