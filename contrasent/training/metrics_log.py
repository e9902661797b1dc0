"""Step metrics, their file, the log and the trackers of a run."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import isfinite, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from contrasent.data.batch import Batch
from contrasent.distributed import Split, launched, timeout
from contrasent.errors import ConfigError, ContrasentError, MissingExtraError, pick
from contrasent.files import write_text
from contrasent.recipe import Recipe

if TYPE_CHECKING:
    from accelerate import Accelerator

    from contrasent.objectives.base import Objective

logger = logging.getLogger("contrasent")


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """The metrics of step ``number``: the loss after so many updates, and its update.

    ``loss`` is the sum of the weighted ``terms``; ``gradient_norm`` is taken before clipping;
    ``measures`` are alignment, uniformity and what the objective measures, where they are defined;
    ``sentences`` counts every view.
    """

    number: int
    loss: float
    terms: dict[str, float]
    learning_rate: float
    gradient_norm: float
    measures: dict[str, float]
    sentences: int
    examples: int


@dataclass(frozen=True, slots=True)
class StepScalars:
    """Scalars of one step on their device; as in :class:`StepMetrics`."""

    loss: Tensor
    gradient_norm: Tensor
    terms: Mapping[str, Tensor]
    measures: Mapping[str, Tensor]


def log_split(split: Split, objective: Objective, batch_size: int) -> None:
    """Say what each of several processes computes, and how many negatives there are."""
    if split.processes > 1:
        negatives, each = objective.negatives(batch_size), batch_size / split.processes
        shared = f", {negatives} negatives of an anchor from all of them" if negatives else ""
        logger.info("%d processes: %.4g examples in each%s", split.processes, each, shared)


def _sent(values: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """Values on the host, and what tells that they have arrived, where that takes a while."""
    if values.device.type != "cuda":
        return values, None
    pinned = torch.empty(values.shape, pin_memory=True)
    pinned.copy_(values, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()
    return pinned, arrived


NOT_KEPT = (
    "nothing was kept that was updated with them. Lower train.learning_rate, raise "
    "objective.temperature, or use --train.precision fp32"
)


class MetricsReader:
    """Step metrics; those of an accelerator are read once the next step has been launched."""

    def __init__(self) -> None:
        self._pending: deque[tuple[torch.cuda.Event | None, Callable[[], StepMetrics]]] = deque()

    def send(self, number: int, learning_rate: float, batch: Batch, scalars: StepScalars) -> None:
        """Start the copy of a step's scalars."""
        rest = (*scalars.terms.values(), *scalars.measures.values())
        tensors = (scalars.loss, scalars.gradient_norm, *rest)
        values, arrived = _sent(torch.stack([tensor.detach().float() for tensor in tensors]))
        terms, measures = list(scalars.terms), list(scalars.measures)
        counts = batch.sentences, batch.examples  # a batch is not kept for its numbers

        def read() -> StepMetrics:
            if arrived is not None:
                arrived.synchronize()
            loss, norm, *rest = values.tolist()
            of_terms = dict(zip(terms, rest, strict=False))
            measured = zip(measures, rest[len(terms) :], strict=True)
            defined = {name: value for name, value in measured if not isnan(value)}
            return StepMetrics(number, loss, of_terms, learning_rate, norm, defined, *counts)

        self._pending.append((arrived, read))

    def take(self, everything: bool) -> list[StepMetrics]:
        """The steps whose values have arrived; with ``everything``, all are waited for.

        Raises ContrasentError if a loss or gradient is not finite.
        """
        left = 0 if everything or not self._pending or self._pending[-1][0] is None else 1
        steps = [self._pending.popleft()[1]() for _ in range(len(self._pending) - left)]
        for step in steps:
            if not (isfinite(step.loss) and isfinite(step.gradient_norm)):
                raise ContrasentError(
                    f"step {step.number}: the loss is {step.loss} and the gradient norm "
                    f"{step.gradient_norm}; {NOT_KEPT}"
                )
        return steps


class MetricsFile:
    """``metrics.jsonl``: a line per step and per evaluation; those from ``first_step`` on go.

    Without a path, in a process that writes nothing, lines are dropped.
    """

    def __init__(self, path: Path | None, first_step: int) -> None:
        if path is not None:
            kept = [line for line in _whole_lines(path) if _is_before(line, first_step)]
            write_text(path, "".join(kept))
        self._file = (path or Path(os.devnull)).open("a", encoding="utf-8")

    def write(self, values: Mapping[str, Any]) -> None:
        """Append a line; it is on disk when the process dies, not when the machine does."""
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def step_values(step: StepMetrics, seconds: float) -> dict[str, float | int]:
    """The numbers of a step under the names they have in ``metrics.jsonl`` and in trackers."""
    return {
        "step": step.number,
        "loss": step.loss,
        **{f"term_{name}": value for name, value in step.terms.items()},
        "learning_rate": step.learning_rate,
        "gradient_norm": step.gradient_norm,
        **step.measures,
        "sentences_per_second": step.sentences / seconds,
    }


class Stopwatch:
    """Seconds between laps."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap; one before work that is not counted starts anew."""
        now = time.perf_counter()
        passed, self._since = now - self._since, now
        return passed


class _LogFile(logging.FileHandler):
    """Raises what goes wrong, such as a full disk, where logging would print a traceback."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging names it
        error = sys.exception()
        if error is not None:
            raise error


@contextmanager
def log_file(path: Path) -> Iterator[None]:
    """Append what is logged to ``path``, with the time."""
    handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        handler.close()


@contextmanager
def trackers(accelerator: Accelerator, recipe: Recipe) -> Iterator[None]:
    """The trackers that ``recipe`` names, open inside."""
    if not recipe.train.trackers:
        yield
        return
    accelerator.init_trackers("contrasent", config=flat_settings(asdict(recipe)))
    try:
        yield
    finally:
        accelerator.end_training()


def check_trackers(names: list[str]) -> None:
    """Raise ConfigError for an unknown tracker, MissingExtraError if its package is missing."""
    if not names:  # accelerate.tracking takes a second to import
        return
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    known = [str(name) for name in LOGGER_TYPE_TO_CLASS]
    installed = {str(name) for name in get_available_trackers()}
    for name in names:
        if pick("tracker", name, known) not in installed:
            raise MissingExtraError(f"tracker {name!r} needs its package: pip install {name}")


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names, in the types that every tracker takes."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flat_settings(value, f"{prefix}{key}.")
        else:
            simple = isinstance(value, bool | int | float | str)
            flat[f"{prefix}{key}"] = value if simple else str(value)
    return flat


def accelerator_on(
    device: str | torch.device | None, names: Sequence[str], folder: Path
) -> Accelerator:
    """The accelerator of a run on ``device``, with trackers that write to ``folder``."""
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs, ProjectConfiguration

    from contrasent.model.precision import training_device

    here, patience = launched(), timeout()
    try:
        accelerator = Accelerator(
            cpu=training_device(device).type == "cpu",
            log_with=list(names) or None,
            project_config=ProjectConfiguration(logging_dir=str(folder)),
            kwargs_handlers=[InitProcessGroupKwargs(timeout=patience)],
        )
    except RuntimeError as error:
        if here.processes == 1:
            raise
        raise ContrasentError(
            f"process {here.rank} of {here.processes} did not meet the others within "
            f"{patience.total_seconds():g} seconds ({str(error).splitlines()[0][:200]}); see that "
            "all were started with the same MASTER_ADDR and MASTER_PORT, or wait longer with "
            "CONTRASENT_TIMEOUT (seconds)"
        ) from error
    refuse_launcher_settings(accelerator)
    return accelerator


def refuse_launcher_settings(accelerator: Accelerator) -> None:
    """Raise ConfigError if ``accelerate launch`` would train otherwise than the recipe says."""
    if accelerator.gradient_accumulation_steps != 1 or accelerator.mixed_precision == "fp16":
        raise ConfigError(
            "accelerate was told to use "
            f"{accelerator.gradient_accumulation_steps} gradient accumulation steps and mixed "
            f"precision {accelerator.mixed_precision!r}; start without accelerate launch, and "
            "choose with --train.batch_size and --train.precision"
        )


def _is_before(line: str, first_step: int) -> bool:
    """Whether a line was written before update ``first_step``; not if it cannot be read.

    An evaluation of step N was made after N updates, the loss of step N before the next. What
    is measured at step 0 belongs to the start, which a run without a state makes again.
    """
    try:
        values = json.loads(line)
        after = values["step"] > 0 and ("evaluation" in values or "geometry" in values)
        reached: int = values["step"] + (0 if after else 1)
    except (ValueError, KeyError, TypeError):
        return False
    return reached <= first_step


def _whole_lines(path: Path) -> Iterator[str]:
    """The lines of a file without the last one if it was cut off."""
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from (line for line in file if line.endswith("\n"))
