"""A training run, from a recipe to encoders on disk."""

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator

from contrasent.data.examples import Rows, keep_data
from contrasent.distributed import ProcessGroup, launched
from contrasent.errors import ContrasentError, is_out_of_memory, logger
from contrasent.evaluation.compare import Gain
from contrasent.evaluation.suite import Suite
from contrasent.files import read_json, remove_folder, write_json, write_text
from contrasent.model.backbones.base import FULL_FP32, give_back_freed_memory
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.hub import CARD, INFO_FILE, write_card
from contrasent.progress import step_progress
from contrasent.recipe import Recipe
from contrasent.records import Record, json_lines
from contrasent.training import loop, run_folder
from contrasent.training.setup import RunParts, accelerator_on, prepare

if TYPE_CHECKING:
    from contrasent.training.callbacks import DevScore

_STEPS_BETWEEN_TRIMS = 25

OnStep = Callable[[loop.StepMetrics], object]


@dataclass(frozen=True, slots=True)
class BeforeAndAfter:
    """Scores of the start and of the result."""

    tasks: Suite | None = None  # what was scored; None for nothing
    before: list[Record] = field(default_factory=list)  # records of the start as it comes
    # records of the start with the pooler and head of the run; empty if these are its own
    with_pooler: list[Record] = field(default_factory=list)
    after: list[Record] = field(default_factory=list)  # records of the result
    # what training changed, against the better of the two; empty if the result is the start
    gains: list[Gain] = field(default_factory=list)
    # the same of every task, also where there is an average
    changes: list[Gain] = field(default_factory=list)

    @property
    def records(self) -> list[Record]:
        """The records of all."""
        return [*self.before, *self.with_pooler, *self.after]

    @property
    def rows(self) -> dict[str, list[Record]]:
        """The records by the label of their row in a table."""
        rows = {"before": self.before}
        if self.with_pooler:
            rows[f"before, {self.with_pooler[0].pooler}"] = self.with_pooler
        return {**rows, "after": self.after}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run."""

    # folder of the encoder with the highest dev score, which is the start as it comes if nothing
    # beat it; None without a dev task
    best: Path | None
    last: Path  # folder of the encoder after the last step
    steps: int  # updates made
    best_step: int | None  # the update after which ``best`` was saved; 0 for the start
    best_is_start: bool  # nothing beat the start as it comes, so ``best`` is that
    best_score: float | None  # its dev score, in [-1, 1]
    seconds: float  # time of the steps, evaluation left out
    examples: int  # examples that this process trained on
    # the start and ``best``, else ``last``, on the final tasks
    scores: BeforeAndAfter = field(default_factory=BeforeAndAfter)
    # what ``best_score`` is, such as ``spearman``; None without a dev task
    dev_metric: str | None = None
    last_loss: float | None = None  # of the last step of this process; None if it made none
    parameters: int = 0  # of the encoder that is saved
    trained_parameters: int = 0  # those that updates change, with those of the objective
    # bytes: the most that tensors took on the accelerator, else the most that this process had
    peak_memory: int = 0

    @property
    def cost(self) -> str:
        """What it took, in words."""
        return (
            f"{self.parameters / 1e6:.1f} M parameters, {self.trained_parameters / 1e6:.1f} M "
            f"trained, {self.peak_memory / 2**30:.1f} GiB of memory at most"
        )

    @property
    def before(self) -> list[Record]:
        """Records of the start as it comes."""
        return self.scores.before

    @property
    def after(self) -> list[Record]:
        """Records of ``best``, else of ``last``."""
        return self.scores.after


def train(  # noqa: PLR0913 - what a caller may choose, by name
    recipe: Recipe,
    output: str | Path,
    *,
    data: Rows | Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    device: str | torch.device | None = None,
    show_progress: bool = False,
    on_step: OnStep | None = None,
    on_evaluation: Callable[["DevScore"], object] | None = None,
) -> Result | None:
    """Train, evaluate and save what ``recipe`` says, as ``contrasent.train`` does, with its errors.

    ``data`` in memory takes the place of ``data.file``, of several sources by name. Started by
    torchrun or another launcher, all processes train one run: each embeds its share of every batch
    and evaluation, and the first writes. Nothing is written before the first step can be made. None
    is returned if ``resume`` finds the run complete, and in all but the first process.
    """
    if data is not None:
        recipe = replace(recipe, data=replace(recipe.data, file=keep_data(data)))
    recipe = run_folder.complete(recipe)
    folder, leads = run_folder.RunFolder(Path(output)), launched().leads
    if leads:
        folder.check(recipe, resume=resume, overwrite=overwrite)
    run_folder.check_trackers(recipe.train.trackers)
    if resume and folder.is_complete:
        folder.tidy()
        logger.info("%s is complete: nothing to resume", folder.root)
        return None
    accelerator = accelerator_on(device, recipe.train.trackers, folder.trackers)
    holds_out = folder.holds_out if resume else None
    group, show_progress = ProcessGroup(), show_progress and leads
    parts = prepare(recipe, accelerator.device, show_progress, holds_out, group.split)
    with _explained(recipe), ExitStack() as open_files:
        group.require_equal(parts.data["sha256"], "not all processes read the same training data")
        if leads:
            hold = folder.hold(recipe, parts.data, resume=resume, overwrite=overwrite)
            open_files.enter_context(hold)
            open_files.enter_context(run_folder.log_file(folder.log))
        group.from_leader(None)  # the others look for its files once the folder is taken
        on_step, on_evaluation = (on_step, on_evaluation) if leads else (None, None)
        session = Session(recipe, folder, parts, accelerator, group, on_evaluation)
        session.train(on_step, show_progress)
        result = session.finish(show_progress)
        return result if leads else None


@contextmanager
def _explained(recipe: Recipe) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        chunk, tokens = recipe.train.gradcache_chunk, recipe.data.max_tokens
        raise ContrasentError(
            f"out of memory: --train.gradcache_chunk {max(1, (chunk or 256) // 2)} takes the same "
            "gradient in pieces; --train.gradient_checkpointing true, a smaller --batch-size (now "
            f"{recipe.train.batch_size}) or --data.max_tokens (now {tokens}) need less"
        ) from error


class Callback:
    """Work with the weights after some updates; all processes have the same callbacks."""

    name = "evaluating"  # shown meanwhile

    def __init__(self, run: "Session", every: int) -> None:
        self.run, self.every = run, every

    def is_due(self, step: int) -> bool:
        """True if there is something to do after ``step`` updates."""
        return step == self.run.parts.steps or step % self.every == 0

    def start(self) -> None:
        """Called before the first update of a run."""

    def after_update(self) -> None:
        """Called after an update where it is due."""


class States(Callback):
    """Saves the state from which a run goes on; the last of the callbacks."""

    name = "saving"

    def is_due(self, step: int) -> bool:
        return self.run.progress.ended or super().is_due(step)

    def after_update(self) -> None:
        self.run.save_state()


@contextmanager
def stop_request(*, alone: bool = True) -> Iterator[threading.Event]:
    """Give an event that the first Ctrl-C inside the block sets; a second one stops at once.

    One of several processes, which is not ``alone``, stops at once: the others would wait.
    """
    asked = threading.Event()

    def ask(*_: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        # A handler may interrupt a write to sys.stderr, which cannot be entered twice.
        os.write(2, b"\nstopping after this step; Ctrl-C again stops at once\n")

    # A thread gets no signals, and whoever has another handler keeps it.
    main = threading.current_thread() is threading.main_thread()
    if not alone or not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield asked
        return
    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Session:
    """A run in its folder, as its callbacks see it; ConfigError if processes see another one."""

    def __init__(
        self,
        recipe: Recipe,
        folder: run_folder.RunFolder,
        parts: RunParts,
        accelerator: Accelerator,
        group: ProcessGroup,
        on_evaluation: Callable[["DevScore"], object] | None,
    ) -> None:
        self.recipe, self.folder, self.parts = recipe, folder, parts
        self.accelerator, self.group = accelerator, group
        self._loss: float | None = None
        # Before the weights of a run that goes on are read: the start is kept where it is needed.
        self.callbacks: list[Callback] = []
        plateau, every = recipe.train.schedule == "plateau", recipe.evaluation.every
        unused = plateau, recipe.train.start_shares, recipe.evaluation.patience
        if not parts.dev and (any(unused) or recipe.encoder.keep == "better"):
            logger.warning("no dev task: start_shares, patience, keep, schedule plateau do nothing")
        if parts.followed or parts.dev or plateau:
            from contrasent.training.callbacks import evaluations

            self.callbacks += evaluations(self, on_evaluation)
        self.callbacks.append(States(self, recipe.train.checkpoint_every or every))

        self.progress = loop.load_state(folder.state, parts) or loop.Progress()
        group.require_equal(
            {"run": folder.is_run, "step": self.progress.step},
            f"not all processes see the same run, so {folder.root} is not one folder that all see; "
            "put it on a file system that they share",
        )
        group.copy_weights([*parts.modules.values()])
        file = folder.metrics if group.split.leads else None
        self.metrics = run_folder.MetricsFile(file, self.progress.step)

    def train(self, on_step: OnStep | None, show_progress: bool) -> None:
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
            self.metrics.file,
            run_folder.trackers(self.accelerator, self.recipe, self.folder.root.name),
            step_progress(steps, first, show_progress) as self._shown,
            stop_request(alone=split.processes == 1) as self._stop,
            closing(self.parts.loader.stream(first, end, pinned=pinned)) as batches,
            FULL_FP32,
        ):
            if not first:
                self._call_each(self.callbacks, "start")
            self._share_progress()
            since = time.perf_counter()
            for done in loop.run(self.parts, batches, self.progress, self._is_due):
                seconds = time.perf_counter() - since
                self.progress.seconds += seconds
                for step in done:
                    self.progress.examples += step.examples
                    self._loss = step.loss
                    values = run_folder.step_values(step, seconds / len(done))
                    self.metrics.write(values)
                    values.pop("step")
                    self.accelerator.log(values, step=step.number)
                    self._shown(1, loss=f"loss {step.loss:#.4g}")
                    if on_step is not None:
                        on_step(step)
                updates = self.progress.step
                if self._is_due(updates):
                    self.progress.ended |= updates == steps
                    due = (callback for callback in self.callbacks if callback.is_due(updates))
                    self._call_each(due, "after_update")
                    self._share_progress()
                if updates % _STEPS_BETWEEN_TRIMS == 0:
                    give_back_freed_memory(above=0)
                if self._stop.is_set() and done[-1].number + 1 == updates:
                    self.save_state()
                    raise KeyboardInterrupt(f"saved after step {updates} of {steps}")
                if self.progress.ended:
                    break
                since = time.perf_counter()

    def _is_due(self, step: int) -> bool:
        return self._stop.is_set() or any(callback.is_due(step) for callback in self.callbacks)

    def _call_each(self, callbacks: Iterable[Callback], call: str) -> None:
        for callback in callbacks:
            self._shown(doing=callback.name)
            getattr(callback, call)()
        self._shown(doing="training")

    def _share_progress(self) -> None:
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
        score: "DevScore | None" = None,
    ) -> None:
        """Write the encoder that is kept, with its dev score, and the one beside it."""
        if not self.group.split.leads:
            return
        transform = encoders[0].transform
        info: dict[str, Any] = {
            "recipe": asdict(self.recipe),
            "data": {it: v for it, v in self.parts.data.items() if it != "read"},
            "step": self.progress.step,
            "train_precision": self.parts.precision,
            "start_share": 0.0 if score is None else score.start_share,
            **({} if transform is None else {"transform": {"described": transform.described}}),
            f"dev_{score.metric if score else 'spearman'}": (
                {} if score is None else {score.name: score.score}
            ),
        }
        save_encoders(target, *encoders, info, next(iter(self.parts.objectives.values())).save)

    def save_state(self) -> None:
        """Write the state from which the run goes on."""
        if self.group.split.leads:
            loop.save_state(self.folder.state, self.progress, self.parts)

    def finish(self, show_progress: bool) -> Result:
        """Save ``last``, score the start and the result, mark the run complete."""
        folder, progress, parts = self.folder, self.progress, self.parts
        leads, scores, device = self.group.split.leads, BeforeAndAfter(), self.accelerator.device
        self.save(folder.last, self.trained())
        self.group.from_leader(None)  # the others load what it saved
        best = folder.best if progress.best_step is not None else None
        if parts.final is not None:
            from contrasent.training.scoring import score_result

            names = ", ".join(name.heading for name in parts.final.names)
            logger.info("scoring the start and the result: %s (--evaluation.final chooses)", names)
            target, is_start = best or folder.last, progress.best_is_start
            how = device, show_progress, self.group
            scores = score_result(parts.final, self.recipe, target, is_start, *how)
            if leads:
                write_text(folder.scores, json_lines(scores.records))
                # Whole tasks, and gains in words, also stand beside the encoder and on its card.
                own = read_json(target / INFO_FILE)
                for name, records in (("scores", scores.after), ("scores_before", scores.before)):
                    own[name] = [asdict(it) for it in records if it.aggregation != "subset"]
                own["gains"] = [gain.sentence for gain in scores.gains]
                write_json(target / INFO_FILE, own, ensure_ascii=False)
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
        trained = loop.trainable_parameters(*parts.modules.values())
        encoder = parts.encoder.named_parameters()
        content: dict[str, Any] = {
            "seconds": progress.seconds,
            "examples": progress.examples,
            "parameters": sum(it.numel() for name, it in encoder if "lora_" not in name),
            "trained_parameters": sum(it.numel() for it in trained),
            "peak_memory": memory,
        }
        if leads:
            described = {
                **asdict(progress),
                **content,
                "precision": parts.precision,
                "examples_per_second": progress.examples / max(progress.seconds, 1e-9),
                "changes": [asdict(change) for change in scores.changes],
            }
            write_json(folder.result, described)
            shutil.rmtree(folder.state, ignore_errors=True)
        metric = None if parts.dev is None else parts.dev.metric
        content |= {"scores": scores, "dev_metric": metric, "last_loss": self._loss}
        kept = progress.best_step, progress.best_is_start, progress.best_score
        return Result(best, folder.last, progress.step, *kept, **content)


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
        remove_folder(run_folder.twin_of(folder))
    save(encoder, folder, info)
    if twin is not None:
        unscored: dict[str, Any] = {key: {} for key in info if key.startswith("dev_")}
        twin.save(run_folder.twin_of(folder), {**info, **unscored, "twin_of": folder.name})
