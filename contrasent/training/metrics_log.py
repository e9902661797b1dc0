"""Step metrics, their file, the log and the trackers of a run."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from contrasent.data.batch import Batch
from contrasent.distributed import launched, timeout
from contrasent.errors import ContrasentError, MissingExtraError, pick
from contrasent.files import write_text
from contrasent.recipe import Recipe
from contrasent.training.run_folder import dotted

if TYPE_CHECKING:
    from accelerate import Accelerator

    from contrasent.objectives.base import Terms

logger = logging.getLogger("contrasent")

NOT_KEPT = (
    "nothing was kept that was updated with them. Lower train.learning_rate, raise "
    "objective.temperature, or use --train.precision fp32"
)


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


def _sent(values: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """Values on the host, and what tells that they have arrived, where that takes a while."""
    if values.device.type != "cuda":
        return values, None
    pinned = torch.empty(values.shape, pin_memory=True)
    pinned.copy_(values, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()
    return pinned, arrived


class MetricsReader:
    """Step metrics; those of an accelerator are read once the next step has been launched."""

    def __init__(self) -> None:
        self._pending: deque[tuple[torch.cuda.Event | None, Callable[[], StepMetrics]]] = deque()

    def send(
        self, number: int, rate: float, batch: Batch, loss: Tensor, norm: Tensor, scored: Terms
    ) -> None:
        """Start the copy of a step's scalars: its loss, the norm of the gradient, and its terms."""
        tensors = (loss, norm, *scored.values(), *scored.measures.values())
        values, arrived = _sent(torch.stack([tensor.detach().float() for tensor in tensors]))
        terms, measures = list(scored), list(scored.measures)
        counts = batch.sentences, batch.examples  # a batch is not kept for its numbers

        def read() -> StepMetrics:
            if arrived is not None:
                arrived.synchronize()
            loss, norm, *rest = values.tolist()
            of_terms = dict(zip(terms, rest, strict=False))
            measured = zip(measures, rest[len(terms) :], strict=True)
            defined = {name: value for name, value in measured if not isnan(value)}
            return StepMetrics(number, loss, of_terms, rate, norm, defined, *counts)

        self._pending.append((arrived, read))

    def take(self, everything: bool) -> list[StepMetrics]:
        """The steps whose values have arrived, or all; ContrasentError if one is not finite."""
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
    """``metrics.jsonl``, without lines from ``first_step`` on; no path drops all lines."""

    def __init__(self, path: Path | None, first_step: int) -> None:
        if path is not None:
            text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
            lines = text.splitlines(keepends=True)
            write_text(path, "".join(line for line in lines if _is_before(line, first_step)))
        self._file = (path or Path(os.devnull)).open("a", encoding="utf-8")

    def write(self, values: Mapping[str, Any]) -> None:
        """Append a line; it is on disk when the process dies, not when the machine does."""
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _is_before(line: str, first_step: int) -> bool:
    """True if a whole line was written before update ``first_step``; not if it cannot be read.

    An evaluation of step N was made after N updates, the loss of step N before the next. What
    is measured at step 0 belongs to the start, which a run without a state makes again.
    """
    try:
        values = json.loads(line)
        after = values["step"] > 0 and ("evaluation" in values or "geometry" in values)
        reached: int = values["step"] + (0 if after else 1)
    except (ValueError, KeyError, TypeError):
        return False
    return reached <= first_step and line.endswith("\n")


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


@contextmanager
def trackers(accelerator: Accelerator, recipe: Recipe) -> Iterator[None]:
    """The trackers that ``recipe`` names, open inside."""
    if not recipe.train.trackers:
        yield
        return
    simple = bool | int | float | str  # what every tracker takes
    settings = {k: v if isinstance(v, simple) else str(v) for k, v in dotted(recipe).items()}
    accelerator.init_trackers("contrasent", config=settings)
    try:
        yield
    finally:
        accelerator.end_training()


def accelerator_on(
    device: str | torch.device | None, names: Sequence[str], folder: Path
) -> Accelerator:
    """The accelerator of a run on ``device``, with trackers that write to ``folder``."""
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs, ProjectConfiguration

    from contrasent.model.precision import training_device

    here, patience = launched(), timeout()
    try:
        return Accelerator(
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
