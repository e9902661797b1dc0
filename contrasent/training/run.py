"""A training run, from a recipe to encoders on disk; and runs of one recipe over several seeds."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from accelerate import Accelerator

from contrasent.data.examples import Rows, keep_rows
from contrasent.distributed import ProcessGroup, launched
from contrasent.errors import ContrasentError, is_disk_full, is_out_of_memory
from contrasent.evaluation.compare import SeedScores, gains
from contrasent.evaluation.embed import EncoderUse, Scores
from contrasent.evaluation.intervals import Bootstrap
from contrasent.evaluation.leaks import find_overlap, overlap_of
from contrasent.evaluation.suite import Suite
from contrasent.files import remove_folder, write_text
from contrasent.model.card import write_card
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.hub import CARD, INFO_FILE
from contrasent.model.lookup_encoders import WordEncoder
from contrasent.model.precision import FULL_FP32
from contrasent.profiling import give_back_freed_memory
from contrasent.progress import Advance, step_progress
from contrasent.recipe import Recipe
from contrasent.records import Record, write_records
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
from contrasent.training.loop import (
    Progress,
    load_state,
    run,
    save_state,
    trainable_parameters,
)
from contrasent.training.metrics_log import MetricsFile, StepMetrics
from contrasent.training.run_folder import RunFolder, complete, twin_of
from contrasent.training.scoring import AS_IT_COMES, BeforeAndAfter, Result
from contrasent.training.setup import RunParts, prepare, start_as_it_comes, start_encoder

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
    parts = prepare(recipe, accelerator.device, show_progress, holds_out, group.split)
    with _explained(recipe, folder), ExitStack() as open_files:
        group.require_equal(parts.data["sha256"], "not all processes read the same training data")
        if leads:
            hold = folder.hold(recipe, parts.data, resume=resume, overwrite=overwrite)
            open_files.enter_context(hold)
            open_files.enter_context(metrics_log.log_file(folder.log))
        group.from_leader(None)  # the others look for its files once the folder is taken
        on_step, on_evaluation = (on_step, on_evaluation) if leads else (None, None)
        session = Session(recipe, folder, parts, accelerator, group, on_evaluation)
        session.train(on_step, show_progress)
        result = session.finish(show_progress)
        return result if leads else None


@contextmanager
def _explained(recipe: Recipe, folder: RunFolder) -> Iterator[None]:
    """Say what to do where memory or disk are full, instead of a library's own error."""
    try:
        yield
    except Exception as error:
        settings = recipe.train
        pieces, plain = settings.gradcache_chunk, not settings.gradient_checkpointing
        if is_disk_full(error):
            problem = (
                f"the disk of {folder.root} is full ({error}); what was saved before is whole. "
                "Make room, then go on with the same command and --resume"
            )
        elif is_out_of_memory(error):
            checkpointing = "--train.gradient_checkpointing true keeps less for the gradient; "
            problem = (
                f"out of memory: --train.gradcache_chunk {max(1, (pieces or 256) // 2)} takes the "
                f"same gradient of the whole batch in pieces; {checkpointing * plain}a smaller "
                f"--batch-size (now {settings.batch_size}) or --data.max_tokens (now "
                f"{recipe.data.max_tokens}) needs less"
            )
        else:
            raise
        raise ContrasentError(problem) from error


class Session:
    """A run in its folder, as its callbacks see it: from its state, or from its start.

    ConfigError if not all processes see the same run.

    Attributes:
        progress: the updates made, and the best evaluation.
        metrics: the file of metrics, to which the first process writes.
    """

    _shown: Advance
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
        self._seconds, self._examples = 0.0, 0
        self._loss: float | None = None
        every = recipe.evaluation.every
        # Before the weights of a run that goes on are read: the start is kept where it is needed.
        self.callbacks: list[Callback] = []
        if parts.followed is not None:
            self.callbacks.append(GeometryLog(self, parts.followed))
        if parts.dev is not None:
            self.callbacks.append(Selection(self, parts.dev, on_evaluation))
        if recipe.train.schedule == "plateau":
            self.callbacks.append(Plateau(self, every))
        self.callbacks.append(States(self, recipe.train.checkpoint_every or every))

        restored = load_state(folder.state, parts.modules, parts.optimizer, accelerator.device)
        self.progress = restored or Progress()
        group.require_equal(
            {"run": folder.is_run, "step": self.progress.step},
            f"not all processes see the same run, so {folder.root} is not one folder that all see; "
            "put it on a file system that they share",
        )
        group.copy_weights([*parts.modules.values()])
        file = folder.metrics if group.split.leads else None
        self.metrics = MetricsFile(file, self.progress.step)

    def train(self, on_step: Callable[[StepMetrics], object] | None, show_progress: bool) -> None:
        """Make the steps that are left, and what is due after each."""
        first, steps, device = self.progress.step, self.parts.steps, self.accelerator.device
        batch_size, split = self.recipe.train.batch_size, self.group.split
        logger.info(
            "%s%d steps of %d examples in %s on %s",
            f"resuming after {first} of " if first else "training: ",
            *(steps, batch_size, self.parts.precision, device),
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
            since = time.perf_counter()
            for done in run(self.parts, batches, self.progress, self._is_due):
                seconds = time.perf_counter() - since
                self._seconds += seconds
                for step in done:
                    self._examples, self._loss = self._examples + step.examples, step.loss
                    values = metrics_log.step_values(step, seconds / len(done))
                    self.metrics.write(values)
                    self.accelerator.log(values, step=step.number)
                    self._shown(1, loss=f"loss {step.loss:#.4g}")
                    if on_step is not None:
                        on_step(step)
                made = self.progress.step
                if self._is_due(made):
                    self.progress.ended = made == steps
                    due = (callback for callback in self.callbacks if callback.is_due(made))
                    self._call_each(due, "after_update")
                    self._share_progress()
                if made % _STEPS_BETWEEN_TRIMS == 0:
                    give_back_freed_memory()
                if self._stop.is_set() and done[-1].number + 1 == made:
                    self.save_state()
                    raise KeyboardInterrupt(f"saved after step {made} of {steps}")
                if self.progress.ended:
                    break
                since = time.perf_counter()

    def _is_due(self, step: int) -> bool:
        """True if something is done with the weights after ``step`` updates."""
        return self._stop.is_set() or any(callback.is_due(step) for callback in self.callbacks)

    def _call_each(self, callbacks: Iterable[Callback], call: str) -> None:
        for callback in callbacks:
            self._shown(doing=callback.name)
            getattr(callback, call)()
        self._shown(doing="training")

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
            "train_precision": self.parts.precision,
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
            parts, device = self.parts, self.accelerator.device
            save_state(self.folder.state, self.progress, parts.modules, parts.optimizer, device)

    def finish(self, show_progress: bool) -> Result:
        """Save ``last``, score the start and the result, mark the run complete."""
        folder, progress, parts = self.folder, self.progress, self.parts
        leads, scores, device = self.group.split.leads, BeforeAndAfter(), self.accelerator.device
        self.save(folder.last, self.trained())
        self.group.from_leader(None)  # the others load what it saved
        best = folder.best if progress.best_step is not None else None
        if parts.final is not None:
            names = ", ".join(name.heading for name in parts.final.names)
            logger.info("scoring the start and the result: %s (--evaluation.final chooses)", names)
            target, is_start = best or folder.last, progress.best_is_start
            how = device, show_progress, self.group
            scores = score_result(parts.final, self.recipe, target, is_start, *how)
            if leads:
                write_records(folder.scores, scores.records)
                # Whole tasks, and gains in words, also stand beside the encoder and on its card.
                info = json.loads((target / INFO_FILE).read_text(encoding="utf-8"))
                for name, records in (("scores", scores.after), ("scores_before", scores.before)):
                    info[name] = [asdict(it) for it in records if it.aggregation != "subset"]
                info["gains"] = [gain.sentence for gain in scores.gains]
                told = json.dumps(info, indent=2, ensure_ascii=False)
                write_text(target / INFO_FILE, told + "\n")
                if (target / CARD).is_file():
                    write_card(target)
        if device.type == "cuda":
            memory = torch.cuda.max_memory_allocated(device)
        elif sys.platform == "win32":
            memory = 0
        else:
            import resource

            unit = 1 if sys.platform == "darwin" else 1024
            memory = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        trained = trainable_parameters(*parts.modules.values())
        made: dict[str, Any] = {
            "best_step": progress.best_step,
            "best_score": progress.best_score,
            "best_is_start": progress.best_is_start,
            "seconds": self._seconds,
            "examples": self._examples,
            "parameters": sum(it.numel() for it in parts.encoder.parameters()),
            "trained_parameters": sum(it.numel() for it in trained),
            "peak_memory": memory,
        }
        if leads:
            described = {
                **asdict(progress),
                **made,
                "precision": parts.precision,
                "examples_per_second": self._examples / self._seconds if self._seconds else 0.0,
                "changes": [asdict(change) for change in scores.changes],
            }
            write_text(folder.result, json.dumps(described, indent=2) + "\n")
            shutil.rmtree(folder.state, ignore_errors=True)
        metric, end = None if parts.dev is None else parts.dev.metric, progress.step
        made |= {"scores": scores, "dev_metric": metric, "last_loss": self._loss}
        return Result(best, folder.last, end, **made)


def save_encoders(
    folder: Path,
    encoder: SentenceEncoder,
    twin: SentenceEncoder | None,
    info: Mapping[str, Any],
    save: Callable[[SentenceEncoder, Path, Mapping[str, Any]], None] = SentenceEncoder.save,
) -> None:
    """Write the encoder that is evaluated, and its twin, without dev scores, beside it.

    The old twin is removed before the first folder is replaced, and the new one written after:
    wherever this is cut off, a twin that is there was saved at the step of the encoder beside it.
    """
    if twin is not None:
        remove_folder(twin_of(folder))
    save(encoder, folder, info)
    if twin is not None:
        unscored: dict[str, Any] = {key: {} for key in info if key.startswith("dev_")}
        twin.save(twin_of(folder), {**info, **unscored, "twin_of": folder.name})


def score_result(
    tasks: Suite,
    recipe: Recipe,
    folder: Path,
    is_start: bool,
    device: str | torch.device | None = None,
    show_progress: bool = False,
    group: ProcessGroup | None = None,
) -> BeforeAndAfter:
    """Score the encoder in ``folder``, made by ``recipe`` unless it is the start, beside the start.

    That as it comes, and with the pooler and the head of the run. A result that is the start as it
    comes is scored once, and compared with both like any other.
    """
    result, together = SentenceEncoder.load(folder, device=device), group or ProcessGroup()

    def score(encoder: SentenceEncoder | WordEncoder, seed: int | None = None) -> Scores:
        logger.info("scoring %s", encoder.name)
        if isinstance(encoder, SentenceEncoder):
            encoder.to(result.device).eval()
        precision = recipe.evaluation.precision
        use = EncoderUse(together.encoder(encoder), precision, seed, show_progress)
        scores = tasks.records(use)
        for problem in scores.problems:
            logger.warning("%s is not scored: %s", problem.task, problem.message)
        return scores

    usual = start_as_it_comes(recipe.encoder)
    trained = as_it_comes = score(usual)
    scores = {AS_IT_COMES: as_it_comes}
    before, with_pooler = list(as_it_comes.records), list[Record]()
    if isinstance(usual, SentenceEncoder):
        other = start_encoder(recipe.encoder)
        if (other.pooler, other.head_name) != (usual.pooler, usual.head_name):
            named = f"the start with pooler {other.pooler}, head {other.head_name}"
            scores[named] = score(other)
            with_pooler = list(scores[named].records)
    if is_start:
        after = [replace(record, encoder=result.name) for record in before]
    else:
        trained = score(result, recipe.train.seed)
        logger.info("looking for sentences of the tasks in the training text")
        seen = find_overlap(result.name, tasks)
        after = [replace(record, overlap=overlap_of(record, seen)) for record in trained.records]
    comparisons = {}
    for start, of_start in scores.items():
        bootstrap = Bootstrap(resamples=2) if of_start is trained else Bootstrap()
        of_types = tasks.compare(of_start, trained, bootstrap)
        comparisons[start] = [of_metrics[0] for of_metrics in of_types.values() if of_metrics]
    shown = [] if is_start else gains(comparisons)
    changes = gains(comparisons, every=True)
    return BeforeAndAfter(tasks, before, with_pooler, after, shown, changes)


@dataclass(frozen=True, slots=True)
class SeedRuns:
    """Runs that differ in their seed alone."""

    folders: Mapping[int, Path]  # of the runs, by their seeds
    scores: tuple[SeedScores, ...]  # the dev task, then the final tasks and their average
    # folder of the encoder with the highest dev score, of the first run without a dev task
    best: Path


def train_seeds(
    recipe: Recipe,
    output: Path,
    seeds: Sequence[int],
    *,
    on_run: Callable[[int, Result | None], object] = lambda *_: None,
    **options: Any,
) -> SeedRuns | None:
    """Train a recipe once for each seed into ``output/seed-S``, and compare with the start.

    ``on_run`` is called with a seed and its result; ``options`` are those of :func:`train`.
    None in all but the first of several processes. ContrasentError as :func:`train`.
    """
    folders = {seed: output / f"seed-{seed}" for seed in seeds}
    for seed, folder in folders.items():
        result = train(replace(recipe, train=replace(recipe.train, seed=seed)), folder, **options)
        if launched().leads:
            on_run(seed, result)
    if not launched().leads:
        return None
    runs = {seed: RunFolder(folder) for seed, folder in folders.items()}
    results = {seed: run.read_result() for seed, run in runs.items()}
    dev = [result["best_score"] for result in results.values()]
    scores = []
    if None not in dev:
        name, start, _ = next(iter(runs.values())).read_dev_scores()
        scores.append(SeedScores(f"{name}, best step", "", tuple(dev), start, None))
    first, *others = (
        {(it["of"], it["metric"]): it for it in result.get("changes", ())}
        for result in results.values()
    )
    for of, metric in (key for key in first if all(key in other for other in others)):
        changes = [each[of, metric] for each in (first, *others)]
        intervals = [it["compared"]["interval"] for it in changes]
        error = fmean(it["error"] for it in intervals) if all(intervals) else None
        start = max(it["value"] - it["compared"]["difference"] for it in changes)
        values = tuple(it["value"] for it in changes)
        scores.append(SeedScores(of, metric, values, start, error))
    best = runs[max(results, key=lambda seed: results[seed]["best_score"] or 0.0)]
    encoder = best.best if best.best.is_dir() else best.last
    each = [
        {**asdict(it), "mean": it.mean, "deviation": it.deviation}
        | {"difference": it.difference, "interval": it.interval}
        for it in scores
    ]
    summary = {"seeds": list(folders), "best": encoder.relative_to(output).as_posix()}
    write_text(output / "seeds.json", json.dumps({**summary, "scores": each}, indent=2) + "\n")
    return SeedRuns(folders, tuple(scores), encoder)
