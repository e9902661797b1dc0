"""A training run, from a recipe to encoders on disk."""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from contrasent.data.examples import Rows, keep_rows
from contrasent.distributed import ProcessGroup, explaining_lost_processes, launched
from contrasent.evaluation.suite import Suite
from contrasent.files import write_text
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.precision import FULL_FP32
from contrasent.profiling import give_back_freed_memory
from contrasent.progress import StepProgress, step_progress
from contrasent.recipe import Recipe
from contrasent.records import write_records
from contrasent.training import metrics_log
from contrasent.training.callbacks import (
    Callback,
    DevScore,
    GeometryLog,
    Plateau,
    Selection,
    States,
    stop_request,
)
from contrasent.training.embedding import explaining_out_of_memory
from contrasent.training.loop import Training, cost_of, optimizer_of, run, trainable_parameters
from contrasent.training.metrics_log import MetricsFile, StepMetrics
from contrasent.training.run_folder import RunFolder, complete
from contrasent.training.scoring import BeforeAndAfter, Result, Scorer, before_and_after
from contrasent.training.setup import RunParts, prepare, starts_of
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
    """Train, evaluate and save what ``recipe`` says, as ``contrasent.train`` does.

    ``data`` in memory takes the place of ``data.file``. ``resume`` goes on with the run in
    ``output``, on a CPU bit-equal to one that was never cut off. Started by torchrun or another
    launcher, all processes train one run: each embeds its share of every batch and evaluation, and
    the first writes. Nothing is written before the first step can be made.

    Returns where it ended; None if ``resume`` finds the run complete, and in all but the first
    process. ContrasentError as :func:`contrasent.training.setup.prepare`, if ``output`` holds
    another run, or if the loss is not finite.
    """
    if data is not None:
        recipe = replace(recipe, data=replace(recipe.data, file=str(keep_rows(data))))
    recipe = complete(recipe)
    folder, leads = RunFolder(Path(output)), launched().leads
    if leads:
        folder.check(recipe, resume=resume, overwrite=overwrite)
    metrics_log.check_trackers(recipe.train.trackers)
    if resume and folder.is_complete:
        folder.tidy()
        logger.info("%s is complete: nothing to resume", folder.root)
        return None
    accelerator = metrics_log.accelerator_on(device, recipe.train.trackers, folder.trackers)
    holds_out = folder.holds_out if resume else None
    group, show_progress = ProcessGroup(), show_progress and leads
    processes = group.split.processes
    parts = prepare(recipe, accelerator.device, show_progress, holds_out, processes)
    memory = explaining_out_of_memory(recipe.train, recipe.data.max_tokens)
    with explaining_lost_processes(), memory, ExitStack() as open_files:
        group.require_equal(parts.data["sha256"], "not all processes read the same training data")
        if leads:
            open_files.enter_context(folder.explaining_a_full_disk())
            hold = folder.hold(recipe, parts.data, resume=resume, overwrite=overwrite)
            open_files.enter_context(hold)
            open_files.enter_context(metrics_log.log_file(folder.log))
        group.from_leader(None)  # the others look for its files once the folder is taken
        on_step, on_evaluation = (on_step, on_evaluation) if leads else (None, None)
        session = Session(recipe, folder, parts, accelerator, group, on_evaluation)
        session.train(on_step, show_progress)
        result = session.finish(show_progress)
        return result if leads else None


class Session:
    """A run in its folder, as its callbacks see it: from its state, or from its start.

    ConfigError if not all processes see the same run.

    Attributes:
        progress: the updates made, and the best evaluation.
        metrics: the file of metrics, to which the first process writes.
    """

    _shown: StepProgress
    _stop: threading.Event

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        parts: RunParts,
        accelerator: Accelerator,
        group: ProcessGroup,
        on_evaluation: Callable[[DevScore], object] | None,
    ) -> None:
        self.recipe, self.folder, self.parts = recipe, folder, parts
        self.accelerator, self.group = accelerator, group
        self._seconds, self._examples, self._since = 0.0, 0, 0.0
        self._loss: float | None = None
        settings, every = recipe.train, recipe.evaluation.every
        trained = trainable_parameters(parts.encoder, parts.objective, parts.twin)
        self.training = training = Training(
            encoder=parts.encoder,
            objective=parts.objective,
            optimizer=optimizer_of(settings, trained),
            accelerator=accelerator,
            settings=settings,
            precision=parts.encoder.resolve_precision(settings.precision),
            steps=parts.steps,
            twin=parts.twin,
            mlm_view=parts.mlm_view,
            fixed_dropout=recipe.view.fixed_dropout,
            split=replace(group.split, chunk=settings.gradcache_chunk),
        )
        # Before the weights of a run that goes on are read: the start is kept where it is needed.
        self.callbacks: list[Callback] = []
        if parts.followed is not None:
            self.callbacks.append(GeometryLog(self, parts.followed))
        if parts.dev is not None:
            self.callbacks.append(Selection(self, parts.dev, on_evaluation))
        if settings.schedule == "plateau":
            self.callbacks.append(Plateau(self, every))
        self.callbacks.append(States(self, settings.checkpoint_every or every))

        device = accelerator.device
        restored = load_state(folder.state, training.modules, training.optimizer, device)
        self.progress = restored or Progress()
        group.require_equal(
            {"run": folder.is_run, "step": self.progress.step},
            f"not all processes see the same run, so {folder.root} is not one folder that all see; "
            "put it on a file system that they share",
        )
        group.copy_weights([*training.modules.values()])
        file = folder.metrics if group.split.leads else None
        self.metrics = MetricsFile(file, self.progress.step)

    def train(self, on_step: Callable[[StepMetrics], object] | None, show_progress: bool) -> None:
        """Make the steps that are left, and what is due after each."""
        first, steps, device = self.progress.step, self.parts.steps, self.accelerator.device
        batch_size, split = self.recipe.train.batch_size, self.group.split
        logger.info(
            "%s%d steps of %d examples in %s on %s",
            f"resuming after {first} of " if first else "training: ",
            *(steps, batch_size, self.training.precision, device),
        )
        if split.processes > 1:
            each = batch_size / split.processes
            logger.info("%d processes: %.4g examples in each", split.processes, each)
        end, pinned = first if self.progress.ended else steps, device.type == "cuda"
        with (
            closing(self.metrics),
            metrics_log.trackers(self.accelerator, self.recipe),
            step_progress(steps, first, show_progress) as self._shown,
            stop_request(alone=split.processes == 1) as self._stop,
            closing(self.parts.loader.stream(first, end, pinned=pinned)) as batches,
            FULL_FP32,
        ):
            if not first:
                self._call_each(self.callbacks, "start")
            self._share_progress()
            self._since = time.perf_counter()

            def after_steps(done: list[StepMetrics]) -> bool:
                seconds = time.perf_counter() - self._since
                self._seconds += seconds
                for step in done:
                    self._examples, self._loss = self._examples + step.examples, step.loss
                    values = metrics_log.step_values(step, seconds / len(done))
                    self.metrics.write(values)
                    self.accelerator.log(values, step=step.number)
                    self._shown.step(step.number + 1, step.loss)
                    if on_step is not None:
                        on_step(step)
                self._after_update(done[-1].number + 1)
                self._since = time.perf_counter()
                return not self.progress.ended

            run(self.training, batches, self.progress, self._is_due, after_steps)

    def _is_due(self, step: int) -> bool:
        """Whether something is done with the weights after ``step`` updates."""
        return self._stop.is_set() or any(callback.is_due(step) for callback in self.callbacks)

    def _after_update(self, read: int) -> None:
        """Do what is due; the metrics of so many updates have been read."""
        step, steps = self.progress.step, self.parts.steps
        if self._is_due(step):
            self.progress.ended = step == steps
            due = (callback for callback in self.callbacks if callback.is_due(step))
            self._call_each(due, "after_update")
            self._share_progress()
        if step % _STEPS_BETWEEN_TRIMS == 0:
            give_back_freed_memory()
        if self._stop.is_set() and read == step:
            self.save_state()
            raise KeyboardInterrupt(f"saved after step {step} of {steps}")

    def _call_each(self, callbacks: Iterable[Callback], call: str) -> None:
        for callback in callbacks:
            self._shown.doing(callback.name)
            getattr(callback, call)()
        self._shown.doing("training")

    def _share_progress(self) -> None:
        """Let the other processes wait for the first, and go on as it does."""
        for name, value in self.group.from_leader(asdict(self.progress)).items():
            setattr(self.progress, name, value)

    def trained(self) -> tuple[SentenceEncoder, SentenceEncoder | None]:
        """The encoder that is kept, and the one beside it."""
        encoder, twin = self.parts.encoder, self.parts.twin
        if twin is not None and self.progress.twin_is_better:
            return twin, encoder
        return encoder, twin

    def save(
        self,
        target: Path,
        encoders: tuple[SentenceEncoder, SentenceEncoder | None],
        score: DevScore | None = None,
    ) -> None:
        """Write the encoder that is kept, with its dev score, and the one beside it."""
        if not self.group.split.leads:
            return
        transform = encoders[0].transform
        info: dict[str, Any] = {
            "recipe": asdict(self.recipe),
            "data": self.parts.data,
            "step": self.progress.step,
            "train_precision": self.training.precision,
            "start_share": 0.0 if score is None else score.start_share,
            **({} if transform is None else {"transform": {"described": transform.described}}),
            f"dev_{score.metric if score else 'spearman'}": (
                {} if score is None else {score.name: score.score}
            ),
        }
        save_encoders(target, *encoders, info, self.parts.objective.save)

    def save_state(self) -> None:
        """Write the state from which the run goes on."""
        if self.group.split.leads:
            modules, optimizer = self.training.modules, self.training.optimizer
            device = self.accelerator.device
            save_state(self.folder.state, self.progress, modules, optimizer, device)

    def finish(self, show_progress: bool) -> Result:
        """Save ``last``, score the start and the result, mark the run complete."""
        folder, progress, tasks = self.folder, self.progress, self.parts.final
        leads, scores = self.group.split.leads, BeforeAndAfter()
        self.save(folder.last, self.trained())
        self.group.from_leader(None)  # the others load what it saved
        best = folder.best if progress.best_step is not None else None
        if tasks is not None:
            names = ", ".join(name.heading for _, data in tasks.kinds for name in data.names)
            logger.info("scoring the start and the result: %s (--evaluation.final chooses)", names)
            how = self.accelerator.device, show_progress, self.group
            is_start, target = progress.best_is_start, best or folder.last
            scores = score_result(tasks, self.recipe, target, is_start, *how)
            if leads:
                write_records(folder.scores, scores.records)
                gains = [gain.sentence for gain in scores.gains]
                add_scores(target, scores.after, scores.before, gains)
        cost = cost_of(self.training, self._examples, self._seconds)
        if leads:
            described = {
                **asdict(progress),
                "seconds": self._seconds,
                "examples": self._examples,
                "precision": self.training.precision,
                **asdict(cost),
                "changes": [asdict(change) for change in scores.changes],
            }
            write_text(folder.result, json.dumps(described, indent=2) + "\n")
            shutil.rmtree(folder.state, ignore_errors=True)
        return Result(
            best=best,
            last=folder.last,
            steps=progress.step,
            best_step=progress.best_step,
            best_is_start=progress.best_is_start,
            best_score=progress.best_score,
            seconds=self._seconds,
            examples=self._examples,
            scores=scores,
            dev_metric=None if self.parts.dev is None else self.parts.dev.metric,
            last_loss=self._loss,
            cost=cost,
        )


def score_result(
    tasks: Suite,
    recipe: Recipe,
    folder: Path,
    is_start: bool,
    device: str | torch.device | None = None,
    show_progress: bool = False,
    group: ProcessGroup | None = None,
) -> BeforeAndAfter:
    """Score the encoder in ``folder``, made by ``recipe`` unless it is the start, beside that."""
    result = SentenceEncoder.load(folder, device=device)
    how = recipe.evaluation.precision, result.device, show_progress, group or ProcessGroup()
    seed = None if is_start else recipe.train.seed
    return before_and_after(Scorer(tasks, *how), starts_of(recipe.encoder), result, seed)
