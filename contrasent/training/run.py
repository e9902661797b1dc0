"""A training run, from a recipe to encoders on disk."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from contrasent.data.examples import Rows, keep_rows
from contrasent.evaluation.sts import StsTasks
from contrasent.files import remove_folder, write_text
from contrasent.model.checkpoint import INFO_FILE
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.precision import FULL_FP32
from contrasent.profiling import give_back_freed_memory
from contrasent.progress import progress_bar
from contrasent.recipe import Recipe
from contrasent.records import Record, write_records
from contrasent.training import metrics_log
from contrasent.training.callbacks import Callbacks, DevScore, GeometryLog, score_dev
from contrasent.training.loop import (
    Training,
    below_min_rate,
    decayed_factor,
    optimizer_of,
    run,
    trainable_parameters,
)
from contrasent.training.metrics_log import StepMetrics
from contrasent.training.run_folder import RunFolder, twin_of
from contrasent.training.setup import RunParts, complete, prepare, scored_start
from contrasent.training.state import Progress, load_state, save_state

logger = logging.getLogger("contrasent")
_STEPS_BETWEEN_TRIMS = 25


def save_encoders(
    folder: Path,
    encoder: SentenceEncoder,
    twin: SentenceEncoder | None,
    info: Mapping[str, Any],
    save: Callable[[SentenceEncoder, Path, Mapping[str, Any]], None] = SentenceEncoder.save,
) -> None:
    """Write the encoder that is evaluated, and its twin beside it.

    Two folders cannot be replaced at one moment. So the old twin is removed before the first
    folder is replaced, and the new one written after: wherever this is cut off, a twin that is
    there was saved at the step of the encoder beside it, and one that would not fit is missing.
    A resumed run comes back to the same step, and writes both.

    Args:
        folder: of the encoder.
        encoder: of the first view.
        twin: of the others, or None.
        info: kept in both; the twin's says whose twin it is, and has no dev scores.
        save: how the first is written.
    """
    beside = twin_of(folder)
    if twin is not None:
        remove_folder(beside)
    save(encoder, folder, info)
    if twin is not None:
        twin.save(beside, {**info, "dev_spearman": {}, "twin_of": folder.name})


def add_scores(folder: Path, records: Sequence[Record]) -> None:
    """Put the scores over whole tasks beside what is kept with the encoder in ``folder``."""
    path = folder / INFO_FILE
    info = json.loads(path.read_text(encoding="utf-8"))
    info["scores"] = [asdict(record) for record in records if record.aggregation != "subset"]
    write_text(path, json.dumps(info, indent=2, ensure_ascii=False) + "\n")


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run.

    Attributes:
        best: folder of the encoder with the highest dev score; None without a dev task.
        last: folder of the encoder after the last step.
        steps: updates made.
        best_step: the update after which ``best`` was saved.
        best_score: its dev score, in [-1, 1].
        seconds: time of the steps of this process, evaluation left out.
        examples: examples trained on in that time.
        before: records of the start encoder on the final tasks.
        after: records of ``best``, else of ``last``.
    """

    best: Path | None
    last: Path
    steps: int
    best_step: int | None
    best_score: float | None
    seconds: float
    examples: int
    before: list[Record] = field(default_factory=list)
    after: list[Record] = field(default_factory=list)


def train(  # noqa: PLR0913 - what a caller may choose, by name
    recipe: Recipe,
    output: str | Path,
    *,
    data: Rows | None = None,
    resume: bool = False,
    overwrite: bool = False,
    device: str | torch.device | None = None,
    show_progress: bool = False,
    on_step: Callable[[StepMetrics], object] | None = None,
    on_evaluation: Callable[[DevScore], object] | None = None,
) -> Result | None:
    """Train, evaluate and save what ``recipe`` says.

    Args:
        recipe: the settings.
        output: the run's folder.
        data: the training text, instead of ``data.file``: an iterable of sentences, of tuples of
            sentences or of mappings, such as a ``datasets.Dataset``; see
            :func:`contrasent.data.examples.keep_rows`.
        resume: continue the run in ``output``, bit-equal to one that was never cut off; a folder
            without a run starts one.
        overwrite: replace the run in ``output``.
        device: by default the CUDA device if there is one.
        show_progress: a progress bar on standard error.
        on_step: is called after each update with what is known of it; on an accelerator a step
            later.
        on_evaluation: is called after each evaluation on the dev task with its scores.

    Returns:
        Where it ended; None if ``resume`` finds the run complete.

    Raises:
        ContrasentError: see :func:`contrasent.training.setup.prepare`; ``output`` holds another
            run; the loss is not finite. Nothing is written before the first step can be made.
    """
    if data is not None:
        recipe = replace(recipe, data=replace(recipe.data, file=str(keep_rows(data))))
    recipe = complete(recipe)
    folder = RunFolder(Path(output))
    folder.check(recipe, resume=resume, overwrite=overwrite)
    metrics_log.check_trackers(recipe.train.trackers)
    if resume and folder.is_complete:
        logger.info("%s is complete: nothing to resume", folder.root)
        return None
    accelerator = metrics_log.accelerator_on(device, recipe.train.trackers, folder.trackers)
    parts = prepare(recipe, accelerator.device, show_progress)
    lock = folder.hold(recipe, parts.data, resume=resume, overwrite=overwrite)
    with folder.explaining_a_full_disk(), lock, metrics_log.log_file(folder.log):
        callbacks = Callbacks(on_step, on_evaluation)
        session = _Session(recipe, folder, parts, accelerator, callbacks)
        session.train(show_progress)
        return session.finish(show_progress)


class _Session:
    """The state of one call of :func:`train`."""

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        parts: RunParts,
        accelerator: Accelerator,
        callbacks: Callbacks,
    ) -> None:
        self.recipe, self.folder, self.parts, self.callbacks = recipe, folder, parts, callbacks
        settings = recipe.train
        optimizer = optimizer_of(
            settings, trainable_parameters(parts.encoder, parts.objective, parts.twin)
        )
        self.training = Training(
            encoder=parts.encoder,
            objective=parts.objective,
            optimizer=optimizer,
            accelerator=accelerator,
            settings=settings,
            precision=parts.encoder.resolve_precision(settings.precision),
            steps=parts.steps,
            twin=parts.twin,
            mlm_view=parts.mlm_view,
            fixed_dropout=recipe.view.fixed_dropout,
        )
        self.seconds, self.examples = 0.0, 0
        restored = load_state(folder.state, self.training.modules, optimizer, accelerator.device)
        self.progress = restored or Progress()
        self.metrics = metrics_log.MetricsFile(folder.metrics, self.progress.step)
        self.geometry = GeometryLog(recipe, parts.followed, self.metrics, parts.steps)
        self.watch = metrics_log.Stopwatch()

    def train(self, show_progress: bool) -> None:
        """Make the steps that are left."""
        first, steps = self.progress.step, self.parts.steps
        logger.info(
            "%s%d steps of %d examples in %s on %s",
            f"resuming after {first} of " if first else "training: ",
            steps,
            self.recipe.train.batch_size,
            self.training.precision,
            self.training.accelerator.device,
        )
        shown_progress = progress_bar(
            *("training", "bar", "count", "loss {task.fields[loss]:.4f}", "elapsed", "remaining"),
            total=steps,
            done=first,
            shown=show_progress,
            loss=float("nan"),
        )
        trackers = metrics_log.trackers(self.training.accelerator, self.recipe)
        with closing(self.metrics), trackers, shown_progress as advance:

            def after_steps(steps: list[StepMetrics]) -> bool:
                for step in steps:
                    advance(1, loss=step.loss)
                    if self.callbacks.on_step is not None:
                        self.callbacks.on_step(step)
                return self._after_steps(steps)

            end = first if self.progress.ended else steps
            pinned = self.training.accelerator.device.type == "cuda"
            with closing(self.parts.loader.stream(first, end, pinned=pinned)) as batches, FULL_FP32:
                if not first:
                    self.geometry.measure(0, self.parts.encoder, self.training.accelerator)
                self.watch.lap()
                run(self.training, batches, self.progress, self._is_due, after_steps)

    def finish(self, show_progress: bool) -> Result:
        """Save ``last``, score the start and the result, mark the run complete."""
        folder, progress = self.folder, self.progress
        self._save_encoder(folder.last, {})
        best = folder.best if progress.best_step is not None else None
        before, after = self._before_and_after(best or folder.last, show_progress)
        result = Result(
            best=best,
            last=folder.last,
            steps=progress.step,
            best_step=progress.best_step,
            best_score=progress.best_score,
            seconds=self.seconds,
            examples=self.examples,
            before=before,
            after=after,
        )
        described = {**asdict(progress), "seconds": self.seconds, "examples": self.examples}
        write_text(folder.result, json.dumps(described, indent=2) + "\n")
        shutil.rmtree(folder.state, ignore_errors=True)
        return result

    def _after_steps(self, steps: list[StepMetrics]) -> bool:
        """Log the steps and do what is due after the last of them; False stops the run."""
        seconds = self.watch.lap()
        self.seconds += seconds
        for step in steps:
            self.examples += step.examples
            values = metrics_log.step_values(step, seconds / len(steps))
            self.metrics.write(values)
            if self.recipe.train.trackers:
                self.training.accelerator.log(values, step=step.number)
        if self._is_due(self.progress.step):
            self._after_update(self.progress)
        if self.progress.step % _STEPS_BETWEEN_TRIMS == 0:
            give_back_freed_memory()
        self.watch.lap()
        return not self.progress.ended

    def _evaluates(self, step: int) -> bool:
        every = self.recipe.evaluation.every
        return self.parts.dev is not None and (step == self.parts.steps or step % every == 0)

    def _is_due(self, step: int) -> bool:
        """Whether something is done with the weights after ``step`` updates."""
        every = self.recipe.train.checkpoint_every or self.recipe.evaluation.every
        regular = step % every == 0 or step % self.recipe.evaluation.every == 0
        return step == self.parts.steps or regular or self.geometry.is_due(step)

    def _after_update(self, progress: Progress) -> None:
        """Evaluate, stop and save the state when it is time."""
        settings = self.recipe.evaluation
        progress.ended = progress.step == self.parts.steps
        self.geometry.measure(progress.step, self.parts.encoder, self.training.accelerator)
        if self.parts.dev is not None and self._evaluates(progress.step):
            self._evaluate(self.parts.dev)
            if settings.patience is not None and progress.without_best >= settings.patience:
                logger.info("no new best in %d evaluations: stopping", progress.without_best)
                progress.ended = True
        if progress.step % settings.every == 0:
            self._lower_rate()
        every = self.recipe.train.checkpoint_every or settings.every
        if progress.ended or progress.step % every == 0:
            training, device = self.training, self.training.accelerator.device
            save_state(self.folder.state, progress, training.modules, training.optimizer, device)

    def _lower_rate(self) -> None:
        progress, settings = self.progress, self.recipe.train
        is_best = progress.without_best == 0
        progress.rate_factor = decayed_factor(settings, progress.rate_factor, is_best=is_best)
        if below_min_rate(settings, progress.rate_factor):
            logger.info("the learning rate is below %g: stopping", settings.min_rate)
            progress.ended = True

    def _evaluate(self, dev: StsTasks) -> None:
        progress, parts = self.progress, self.parts
        score = score_dev(dev, parts.encoder, parts.twin, self.recipe, progress.step)
        progress.twin_is_better = score.twin_is_better
        scores = {score.name: score.score}
        beside = {} if score.other is None else {"beside": {score.name: score.other}}
        self.metrics.write({"step": progress.step, "evaluation": scores, **beside})
        if self.recipe.train.trackers:
            self.training.accelerator.log(scores, step=progress.step)
        is_best = progress.best_score is None or score.score > progress.best_score
        if is_best:
            progress.best_step, progress.best_score = progress.step, score.score
            progress.without_best = 0
            self._save_encoder(self.folder.best, scores)
        else:
            progress.without_best += 1
        logger.info("step %d: %s%s", progress.step, score.summary, " *" if is_best else "")
        if self.callbacks.on_evaluation is not None:
            self.callbacks.on_evaluation(score)

    def _save_encoder(self, target: Path, dev_scores: dict[str, float]) -> None:
        parts = self.parts
        info: dict[str, Any] = {
            "recipe": asdict(self.recipe),
            "data": parts.data,
            "step": self.progress.step,
            "train_precision": self.training.precision,
            "dev_spearman": dev_scores,
        }
        kept, other = parts.encoder, parts.twin
        if other is not None and self.progress.twin_is_better:
            kept, other = other, kept
        save_encoders(target, kept, other, info, parts.objective.save)

    def _before_and_after(
        self, target: Path, show_progress: bool
    ) -> tuple[list[Record], list[Record]]:
        final = self.parts.final
        if final is None:
            return [], []
        scores: list[list[Record]] = []
        device = self.training.accelerator.device
        trained = SentenceEncoder.load(target, device=device)
        for encoder in (scored_start(self.recipe.encoder), trained):
            logger.info("scoring %s", encoder.name)
            if isinstance(encoder, SentenceEncoder):
                encoder.to(device).eval()
            scored = final.records(
                encoder,
                precision=self.recipe.evaluation.precision,
                seed=self.recipe.train.seed if scores else None,
                show_progress=show_progress,
            )
            for problem in scored.problems:
                logger.warning("%s is not scored: %s", problem.task, problem.message)
            scores.append(list(scored.records))
        before, after = scores
        write_records(self.folder.scores, before + after)
        add_scores(target, after)
        return before, after
