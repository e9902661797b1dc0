"""A training run, from a recipe to encoders on disk."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from contrasent.data.examples import Rows, keep_rows
from contrasent.distributed import ProcessGroup, explaining_lost_processes, launched
from contrasent.errors import CheckpointError, DataError
from contrasent.files import write_text
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.precision import FULL_FP32
from contrasent.profiling import give_back_freed_memory
from contrasent.progress import step_progress
from contrasent.recipe import Recipe
from contrasent.records import write_records
from contrasent.training import metrics_log
from contrasent.training.callbacks import Callbacks, DevScore, GeometryLog, StopRequest, Variants
from contrasent.training.embedding import explaining_out_of_memory
from contrasent.training.loop import (
    Cost,
    Training,
    below_min_rate,
    decayed_factor,
    optimizer_of,
    run,
    trainable_parameters,
)
from contrasent.training.metrics_log import StepMetrics
from contrasent.training.run_folder import RunFolder, complete
from contrasent.training.scoring import BeforeAndAfter, DevTask, Result, Scorer, before_and_after
from contrasent.training.setup import RunParts, prepare, start_as_it_comes, start_encoder
from contrasent.training.state import Progress, add_scores, load_state, save_encoders, save_state

logger = logging.getLogger("contrasent")
_STEPS_BETWEEN_TRIMS = 25


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

    ContrasentError as :func:`contrasent.training.setup.prepare`, if ``output`` holds another run,
    or if the loss is not finite. Nothing is written before the first step can be made.

    Args:
        recipe: the settings.
        output: the run's folder.
        data: the training text, instead of ``data.file``: an iterable of sentences, of tuples of
            sentences or of mappings, such as a ``datasets.Dataset``; see
            :func:`contrasent.data.examples.keep_rows`.
        resume: continue the run in ``output``, on a CPU bit-equal to one that was never cut off; a
            folder without a run starts one.
        overwrite: replace the run in ``output``.
        device: by default the CUDA device if there is one.
        show_progress: a progress bar on standard error.
        on_step: is called after each update with what is known of it; on an accelerator a step
            later.
        on_evaluation: is called after each evaluation on the dev task with its scores.

    Started by torchrun or another launcher, all processes train one run: each embeds its share of
    every batch and of the sentences of every evaluation, and the first writes.

    Returns:
        Where it ended; None if ``resume`` finds the run complete, and in all but the first process.
    """
    if data is not None:
        recipe = replace(recipe, data=replace(recipe.data, file=str(keep_rows(data))))
    recipe = complete(recipe)
    folder = RunFolder(Path(output))
    leads = launched().leads
    if leads:
        folder.check(recipe, resume=resume, overwrite=overwrite)
    metrics_log.check_trackers(recipe.train.trackers)
    if resume and folder.is_complete:
        folder.tidy()
        logger.info("%s is complete: nothing to resume", folder.root)
        return None
    accelerator = metrics_log.accelerator_on(device, recipe.train.trackers, folder.trackers)
    holds_out = folder.holds_out if resume else None
    group = ProcessGroup()
    show_progress, count = show_progress and leads, group.split.processes
    parts = prepare(recipe, accelerator.device, show_progress, holds_out, count)
    callbacks = Callbacks(on_step, on_evaluation) if leads else Callbacks()
    memory = explaining_out_of_memory(recipe.train, recipe.data.max_tokens)
    with explaining_lost_processes(), memory, ExitStack() as open_files:
        group.require_equal(parts.data["sha256"], "not all processes read the same training data")
        if leads:
            open_files.enter_context(folder.explaining_a_full_disk())
            hold = folder.hold(recipe, parts.data, resume=resume, overwrite=overwrite)
            open_files.enter_context(hold)
            open_files.enter_context(metrics_log.log_file(folder.log))
        group.from_leader(None)  # the others look for its files once the folder is taken
        session = _Session(recipe, folder, parts, accelerator, group, callbacks)
        session.train(show_progress)
        result = session.finish(show_progress)
        return result if leads else None


class _Session:
    """The state of one call of :func:`train`."""

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        parts: RunParts,
        accelerator: Accelerator,
        group: ProcessGroup,
        callbacks: Callbacks,
    ) -> None:
        self.group = group
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
            split=replace(group.split, chunk=settings.gradcache_chunk),
        )
        self.seconds, self.examples = 0.0, 0
        self.loss: float | None = None
        self.group_encoder = group.encoder(parts.encoder)
        text = parts.whitening_text
        self.variants = Variants.of_start(recipe, parts.encoder, text, group)
        restored = load_state(folder.state, self.training.modules, optimizer, accelerator.device)
        self.progress = restored or Progress()
        group.require_equal(
            {"run": folder.is_run, "step": self.progress.step},
            f"not all processes see the same run, so {folder.root} is not one folder that all see; "
            "put it on a file system that they share",
        )
        group.copy_weights([*self.training.modules.values()])
        file = folder.metrics if group.split.leads else None
        self.metrics = metrics_log.MetricsFile(file, self.progress.step)
        self.geometry = GeometryLog(recipe, parts.followed, self.metrics, parts.steps)
        self.watch, self.stop = metrics_log.Stopwatch(), StopRequest()

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
        metrics_log.log_split(self.group.split, self.parts.objective, self.recipe.train.batch_size)
        trackers = metrics_log.trackers(self.training.accelerator, self.recipe)
        shown = step_progress(steps, first, show_progress)
        listening = self.stop.listening(alone=self.group.split.processes == 1)
        with closing(self.metrics), trackers, shown as self.shown, listening:

            def after_steps(steps: list[StepMetrics]) -> bool:
                for step in steps:
                    self.shown.step(step.number + 1, step.loss)
                    if self.callbacks.on_step is not None:
                        self.callbacks.on_step(step)
                return self._after_steps(steps)

            end = first if self.progress.ended else steps
            pinned = self.training.accelerator.device.type == "cuda"
            with closing(self.parts.loader.stream(first, end, pinned=pinned)) as batches, FULL_FP32:
                if not first:
                    self.geometry.measure(0, self.group_encoder, self.training.accelerator)
                    self.shown.doing("evaluating")
                    self._evaluate_start()
                    self.shown.doing("training")
                self._share_progress()
                self.watch.lap()
                run(self.training, batches, self.progress, self._is_due, after_steps)

    def finish(self, show_progress: bool) -> Result:
        """Save ``last``, score the start and the result, mark the run complete."""
        folder, progress = self.folder, self.progress
        self._save(folder.last, self._trained())
        self.group.from_leader(None)  # the others load what it saved
        best = folder.best if progress.best_step is not None else None
        scores = self._before_and_after(best or folder.last, show_progress)
        cost = Cost.of(self.training, self.examples, self.seconds)
        result = Result(
            best=best,
            last=folder.last,
            steps=progress.step,
            best_step=progress.best_step,
            best_is_start=progress.best_is_start,
            best_score=progress.best_score,
            seconds=self.seconds,
            examples=self.examples,
            scores=scores,
            dev_metric=None if self.parts.dev is None else self.parts.dev.metric,
            last_loss=self.loss,
            cost=cost,
        )
        described = {**asdict(progress), "seconds": self.seconds, "examples": self.examples}
        described["precision"] = self.training.precision
        described |= {**asdict(cost), "changes": [asdict(change) for change in scores.changes]}
        if self.group.split.leads:
            write_text(folder.result, json.dumps(described, indent=2) + "\n")
            shutil.rmtree(folder.state, ignore_errors=True)
        return result

    def _after_steps(self, steps: list[StepMetrics]) -> bool:
        """Log the steps and do what is due after the last of them; False stops the run."""
        seconds = self.watch.lap()
        self.seconds += seconds
        for step in steps:
            self.examples += step.examples
            self.loss = step.loss
            values = metrics_log.step_values(step, seconds / len(steps))
            self.metrics.write(values)
            self.training.accelerator.log(values, step=step.number)
        if self._is_due(self.progress.step):
            self.shown.doing("evaluating" if self._evaluates(self.progress.step) else "saving")
            self._after_update(self.progress)
            self.shown.doing("training")
            self._share_progress()
        if self.progress.step % _STEPS_BETWEEN_TRIMS == 0:
            give_back_freed_memory()
        if self.stop.asked and steps[-1].number + 1 == self.progress.step:
            self._save_state()
            raise KeyboardInterrupt(f"saved after step {self.progress.step} of {self.parts.steps}")
        self.watch.lap()
        return not self.progress.ended

    def _share_progress(self) -> None:
        """Let the other processes wait for the first, and go on as it does."""
        for name, value in self.group.from_leader(asdict(self.progress)).items():
            setattr(self.progress, name, value)

    def _evaluates(self, step: int) -> bool:
        every = self.recipe.evaluation.every
        return self.parts.dev is not None and (step == self.parts.steps or step % every == 0)

    def _is_due(self, step: int) -> bool:
        """Whether something is done with the weights after ``step`` updates."""
        every = self.recipe.train.checkpoint_every or self.recipe.evaluation.every
        regular = step % every == 0 or step % self.recipe.evaluation.every == 0
        due = step == self.parts.steps or regular or self.geometry.is_due(step)
        return due or self.stop.asked

    def _after_update(self, progress: Progress) -> None:
        """Evaluate, stop and save the state when it is time."""
        settings = self.recipe.evaluation
        progress.ended = progress.step == self.parts.steps
        self.geometry.measure(progress.step, self.group_encoder, self.training.accelerator)
        if self.parts.dev is not None and self._evaluates(progress.step):
            self._evaluate(self.parts.dev)
            if settings.patience is not None and progress.without_best >= settings.patience:
                logger.info("no new best in %d evaluations: stopping", progress.without_best)
                progress.ended = True
        if progress.step % settings.every == 0:
            self._lower_rate()
        every = self.recipe.train.checkpoint_every or settings.every
        if progress.ended or progress.step % every == 0:
            self._save_state()

    def _save_state(self) -> None:
        if not self.group.split.leads:
            return
        its, device = self.training, self.training.accelerator.device
        save_state(self.folder.state, self.progress, its.modules, its.optimizer, device)

    def _lower_rate(self) -> None:
        progress, settings = self.progress, self.recipe.train
        is_best = progress.without_best == 0
        progress.rate_factor = decayed_factor(settings, progress.rate_factor, is_best=is_best)
        if below_min_rate(settings, progress.rate_factor):
            logger.info("the learning rate is below %g: stopping", settings.min_rate)
            progress.ended = True

    def _evaluate_start(self) -> None:
        """Score the start as it comes, which is best until something beats it.

        The loading of an encoder may draw weights that are replaced then; the generator is put
        back, so that the run is the same as without.
        """
        dev = self.parts.dev
        if dev is None:
            return
        with torch.random.fork_rng(devices=[]):
            start = start_as_it_comes(self.recipe.encoder)
        if not isinstance(start, SentenceEncoder):
            return  # the mean of word vectors is no encoder of the kind that is trained
        start.to(self.training.accelerator.device).eval()
        try:
            best = self.variants.best(dev, start, None, step=0)
        except (CheckpointError, DataError) as error:
            logger.warning("the start has no dev score: %s", error)
            return
        with self.variants.of(start, best.start_share, best.whitened):
            self._keep_if_best(best, (start, None if self.parts.twin is None else start))

    def _evaluate(self, dev: DevTask) -> None:
        parts = self.parts
        best = self.variants.best(dev, parts.encoder, parts.twin, self.progress.step)
        self.progress.twin_is_better = best.twin_is_better
        with self.variants.of(parts.encoder, best.start_share, best.whitened):
            self._keep_if_best(best, self._trained())

    def _trained(self) -> tuple[SentenceEncoder, SentenceEncoder | None]:
        """The encoder that is kept, and the one beside it."""
        encoder, twin = self.parts.encoder, self.parts.twin
        if twin is not None and self.progress.twin_is_better:
            return twin, encoder
        return encoder, twin

    def _keep_if_best(
        self, score: DevScore, encoders: tuple[SentenceEncoder, SentenceEncoder | None]
    ) -> None:
        progress = self.progress
        scores = {score.name: score.score}
        others = {"beside": score.other, "plain": score.plain}
        beside = {of: {score.name: it} for of, it in others.items() if it is not None}
        self.metrics.write({"step": score.step, "evaluation": scores, **beside})
        self.training.accelerator.log(scores, step=score.step)
        is_best = progress.best_score is None or score.score > progress.best_score
        if is_best:
            progress.best_step, progress.best_score = score.step, score.score
            progress.best_is_start = score.step == 0 and not score.whitened
            progress.without_best = 0
            self._save(self.folder.best, encoders, score)
        else:
            progress.without_best += 1
        logger.info("step %d: %s%s", score.step, score.summary, " *" if is_best else "")
        if self.callbacks.on_evaluation is not None:
            self.callbacks.on_evaluation(score)

    def _save(
        self,
        target: Path,
        encoders: tuple[SentenceEncoder, SentenceEncoder | None],
        score: DevScore | None = None,
    ) -> None:
        if not self.group.split.leads:
            return
        dev_scores = {} if score is None else {score.name: score.score}
        transform = encoders[0].transform
        info: dict[str, Any] = {
            "recipe": asdict(self.recipe),
            "data": self.parts.data,
            "step": self.progress.step,
            "train_precision": self.training.precision,
            "start_share": 0.0 if score is None else score.start_share,
            **({} if transform is None else {"transform": {"described": transform.described}}),
            f"dev_{score.metric if score else 'spearman'}": dev_scores,
        }
        save_encoders(target, *encoders, info, self.parts.objective.save)

    def _before_and_after(self, target: Path, show_progress: bool) -> BeforeAndAfter:
        if self.parts.final is None:
            return BeforeAndAfter()
        recipe, device = self.recipe, self.training.accelerator.device
        precision = recipe.evaluation.precision
        scorer = Scorer(self.parts.final, precision, device, show_progress, self.group)
        names = ", ".join(name.heading for _, data in self.parts.final.kinds for name in data.names)
        logger.info("scoring the start and the result: %s (--evaluation.final chooses)", names)
        starts = [start_as_it_comes(recipe.encoder)]
        if isinstance(starts[0], SentenceEncoder):
            starts.append(start_encoder(recipe.encoder))
        trained = SentenceEncoder.load(target, device=device)
        seed = None if self.progress.best_is_start else recipe.train.seed
        scores = before_and_after(scorer, starts, trained, seed)
        if self.group.split.leads:
            write_records(self.folder.scores, scores.before + scores.with_pooler + scores.after)
            gains = [gain.sentence for gain in scores.gains]
            add_scores(target, scores.after, scores.before, gains)
        return scores
