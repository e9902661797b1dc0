"""Callbacks that evaluate on the way: the dev score that selects ``best``, alignment, uniformity.

What a callback is, and the one that saves states, are in :mod:`contrasent.training.run`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from contrasent.errors import CheckpointError, DataError, logger
from contrasent.evaluation.geometry import KIND, measurement
from contrasent.evaluation.sts_data import RatedPairs
from contrasent.model.encoder import SentenceEncoder
from contrasent.training.run import Callback, Session
from contrasent.training.scoring import DevTask
from contrasent.training.setup import start_as_it_comes


class GeometryLog(Callback):
    """Writes the trajectory of an encoder (SimCSE's Figure 2); it draws no random number."""

    def __init__(self, run: Session, pairs: RatedPairs) -> None:
        super().__init__(run, run.recipe.evaluation.geometry_every or 1)
        self._pairs = pairs

    def start(self) -> None:
        self.after_update()

    def after_update(self) -> None:
        run, step = self.run, self.run.progress.step
        encoder = run.group.encoder(run.parts.encoder)
        geometry = measurement(encoder, self._pairs, run.recipe.evaluation.precision)
        run.metrics.write({"step": step, KIND: geometry})
        logged = {name: geometry[name] for name in ("alignment", "uniformity")}
        run.accelerator.log({f"{KIND}_{name}": v for name, v in logged.items()}, step=step)
        numbers = ", ".join(f"{name} {value:.4f}" for name, value in logged.items())
        logger.info("step %d: %s (%s)", step, numbers, self._pairs.label)


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

    @property
    def summary(self) -> str:
        """The scores in words, x 100."""
        note = f" ({self.start_share:.0%} of the start)" if self.start_share else ""
        note += "" if self.other is None else f" (the other encoder {self.other * 100:.2f})"
        return f"{self.name} {metric_name(self.metric)} {self.score * 100:.2f}{note}"


def metric_name(metric: str) -> str:
    """``Spearman``, or ``MRR@10`` of retrieval."""
    return metric.upper() if "@" in metric else metric.capitalize()


class Selection(Callback):
    """Scores encoders on the dev task, keeps the best one, and stops where none gets better."""

    def __init__(
        self, run: Session, dev: DevTask, on_evaluation: Callable[[DevScore], object] | None
    ) -> None:
        super().__init__(run, run.recipe.evaluation.every)
        self._dev, self._on_evaluation = dev, on_evaluation
        self._shares = run.recipe.train.start_shares
        weights = run.parts.encoder.named_parameters()
        self._start: Mapping[str, Tensor] = {
            name: weight.detach().clone() for name, weight in weights if self._shares
        }

    def start(self) -> None:
        """Score the start as it comes, best until something beats it; loading it draws nothing."""
        with torch.random.fork_rng(devices=[]):
            start = start_as_it_comes(self.run.recipe.encoder)
        if not isinstance(start, SentenceEncoder):
            return  # the mean of word vectors is no encoder of the kind that is trained
        start.to(self.run.accelerator.device).eval()
        try:
            best = self._score(start, None)
        except (CheckpointError, DataError) as error:
            logger.warning("the start has no dev score: %s", error)
            return
        self._keep_best(best, start, (start, None if self.run.parts.twin is None else start))

    def after_update(self) -> None:
        parts, progress = self.run.parts, self.run.progress
        best = self._score(parts.encoder, parts.twin)
        progress.twin_is_better = best.twin_is_better
        self._keep_best(best, parts.encoder, self.run.trained())
        patience = self.run.recipe.evaluation.patience
        if patience is not None and progress.without_best >= patience:
            logger.info("no new best in %d evaluations: stopping", progress.without_best)
            progress.ended = True

    def _score(self, encoder: SentenceEncoder, twin: SentenceEncoder | None) -> DevScore:
        run, step, metric = self.run, self.run.progress.step, self._dev.metric
        precision, kept = run.recipe.evaluation.precision, [encoder]
        if twin is not None and run.recipe.encoder.keep == "better":
            kept.append(twin)
        scores = []
        for share in (0.0, *self._shares) if step else (0.0,):
            with self._variant(encoder, share):
                tried = [self._dev.score(run.group.encoder(it), precision=precision) for it in kept]
            (name, *_), values = tried[0], [value for it in tried for value in it.values()]
            best, other = max(values), min(values) if len(values) > 1 else None
            scores.append(DevScore(step, name, metric, best, other, values.index(best) == 1, share))
        return max(scores, key=lambda score: score.score)

    def _keep_best(
        self,
        best: DevScore,
        encoder: SentenceEncoder,
        kept: tuple[SentenceEncoder, SentenceEncoder | None],
    ) -> None:
        run, progress, scores = self.run, self.run.progress, {best.name: best.score}
        beside = {} if best.other is None else {"beside": {best.name: best.other}}
        run.metrics.write({"step": best.step, "evaluation": scores, **beside})
        run.accelerator.log(scores, step=best.step)
        is_best = progress.best_score is None or best.score > progress.best_score
        progress.without_best = 0 if is_best else progress.without_best + 1
        if is_best:
            progress.best_step, progress.best_score = best.step, best.score
            progress.best_is_start = best.step == 0
            with self._variant(encoder, best.start_share):
                run.save(run.folder.best, kept, best)
        logger.info("step %d: %s%s", best.step, best.summary, " *" if is_best else "")
        answer = None if self._on_evaluation is None else self._on_evaluation(best)
        progress.ended |= isinstance(answer, bool | np.bool_) and bool(answer)

    @contextmanager
    def _variant(self, encoder: SentenceEncoder, share: float) -> Iterator[None]:
        weights = dict(encoder.named_parameters()) if share else {}
        trained = {name: weight.detach().clone() for name, weight in weights.items()}
        with torch.no_grad():
            for name, weight in weights.items():
                weight.lerp_(self._start[name], share)
        try:
            yield
        finally:
            encoder.load_state_dict(trained, strict=False)


class Plateau(Callback):
    """Lowers the rate of the schedule plateau, and ends the run below the smallest one."""

    def is_due(self, step: int) -> bool:
        return step % self.every == 0

    def after_update(self) -> None:
        progress, settings = self.run.progress, self.run.recipe.train
        shrink = settings.rate_shrink if progress.without_best else 1
        progress.rate_factor = progress.rate_factor * settings.rate_decay / shrink
        rate = settings.learning_rate * progress.rate_factor
        if settings.min_rate is not None and rate < settings.min_rate:
            logger.info("the learning rate is below %g: stopping", settings.min_rate)
            progress.ended = True


def evaluations(
    run: Session, on_evaluation: Callable[[DevScore], object] | None
) -> Iterator[Callback]:
    """The callbacks that a run needs of these, in their order."""
    if run.parts.followed is not None:
        yield GeometryLog(run, run.parts.followed)
    if run.parts.dev is not None:
        yield Selection(run, run.parts.dev, on_evaluation)
    if run.recipe.train.schedule == "plateau":
        yield Plateau(run, run.recipe.evaluation.every)
