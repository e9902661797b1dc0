"""The training loop, its updates and their metrics, and the state from which it goes on."""

import math
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.profiler import record_function

from contrasent.data.batch import Batch
from contrasent.distributed import WHOLE, Split, splitting, sum_gradients
from contrasent.errors import CheckpointError, ContrasentError
from contrasent.files import read_json, write_json, writing_folder
from contrasent.functional import alignment, uniformity
from contrasent.model.backbones.base import evaluating, keep_freed_memory, matrix_precision
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.masked_lm import MlmView
from contrasent.objectives import Objective, Terms, require_terms
from contrasent.settings import TrainSettings
from contrasent.training.embedding import embedding, random_state, set_random_state

_RATIO = 32
"""Of the largest rate of the slanted triangle to the smallest (Howard and Ruder 2018, eq. 3)."""
_NOT_KEPT = (
    "nothing was kept that was updated with them. Lower train.learning_rate, raise "
    "objective.temperature, or use --train.precision fp32"
)


def learning_rate(settings: TrainSettings, steps: int, step: int) -> float:
    """The rate of update ``step``, counted from 0, of ``steps``; plateau multiplies it further."""
    peak = settings.learning_rate
    warmup = settings.warmup_steps or math.ceil(settings.warmup_share * steps)
    if settings.schedule == "slanted_triangular":
        share = step / warmup if step < warmup else (steps - step) / max(1, steps - warmup)
        return peak * (1 + share * (_RATIO - 1)) / _RATIO
    if step < warmup:
        return peak * step / warmup
    if settings.schedule == "linear":
        return peak * (steps - step) / max(1, steps - warmup)
    reached = [number for number in settings.rate_steps if number <= step]
    return settings.rate_steps[max(reached)] if reached else peak


def trainable_parameters(*parts: nn.Module | None) -> list[nn.Parameter]:
    """The parameters that an update changes, in a fixed order, shared ones once."""
    every = (p for part in parts if part is not None for p in part.parameters())
    return list(dict.fromkeys(p for p in every if p.requires_grad))


def optimizer_of(settings: TrainSettings, parameters: Sequence[nn.Parameter]) -> Optimizer:
    """The optimiser of ``settings``; without ``decay_all``, vectors do not decay."""
    given: dict[str, Any] = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    first, second = settings.betas
    optimizer: Optimizer
    if settings.optimizer == "sgd":
        optimizer = torch.optim.SGD(parameters, **given)
    elif settings.optimizer == "rmsprop":
        optimizer = torch.optim.RMSprop(parameters, alpha=second, eps=settings.eps, **given)
    else:
        given |= {"betas": (first, second), "eps": settings.eps}
        optimizer = torch.optim.AdamW(parameters, fused=True, **given)
    if not settings.decay_all:
        optimizer.param_groups[0]["params"] = [it for it in parameters if it.ndim > 1]
        vectors = [it for it in parameters if it.ndim <= 1]
        optimizer.add_param_group({"params": vectors, "weight_decay": 0.0})
    return optimizer


def gradient_norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    """The 2-norm of the gradient of all parameters together, on their device."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients or gradients[0].device.type != "cpu":
        return nn.utils.get_total_norm(gradients)
    # A dot product reads a gradient at the speed of memory, torch's norm at a third of it.
    flat = [gradient.flatten() for gradient in gradients]
    return torch.stack([torch.dot(g, g) for g in flat]).sum().sqrt()


def set_rate(optimizer: Optimizer, settings: TrainSettings, rate: float, step: int) -> None:
    """Make ``rate`` that of update ``step``, counted from 0.

    Without ``bias_correction`` AdamW is to move by m / (sqrt(v) + eps). torch divides m by
    1 - beta1^t and v by 1 - beta2^t, which another rate, eps and decay undo exactly.
    """
    changed = {"lr": rate}
    if settings.optimizer == "adamw" and not settings.bias_correction:
        first, second = (1 - beta ** (step + 1) for beta in settings.betas)
        factor = first / math.sqrt(second)
        changed = {
            "lr": rate * factor,
            "eps": settings.eps / math.sqrt(second),
            "weight_decay": settings.weight_decay / factor,
        }
    for group in optimizer.param_groups:
        group.update(changed | ({} if group["weight_decay"] else {"weight_decay": 0.0}))


def update(optimizer: Optimizer, norm: Tensor, clip: float | None) -> None:
    """Make the step of an optimiser with gradients of ``norm`` clipped to ``clip``; forget them.

    As ``clip_grad_norm_``, but a fused optimiser divides while it reads the gradients.
    """
    if clip is not None:
        scale = ((norm + 1e-6) / clip).clamp(min=1)
        if optimizer.defaults.get("fused"):
            optimizer.grad_scale = scale  # type: ignore[attr-defined]
        else:
            held = (p for group in optimizer.param_groups for p in group["params"])
            for gradient in (p.grad for p in held if p.grad is not None):
                gradient.div_(scale)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """The metrics of step ``number``: the loss after so many updates, and its update.

    ``loss`` is the sum of the weighted ``terms``; ``gradient_norm`` is taken before clipping;
    ``measures`` are alignment, uniformity and what the objective measures, where they are defined;
    ``sentences`` counts every view. ``source`` is that of the batch, where there are several.
    """

    number: int
    loss: float
    terms: dict[str, float]
    learning_rate: float
    gradient_norm: float
    measures: dict[str, float]
    sentences: int
    examples: int
    source: str = ""


def _sent(values: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    # Values on the host, and what tells that they have arrived, where that takes a while.
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
        # a batch is not kept for its numbers
        counts = batch.sentences, batch.examples, batch.origin

        def read() -> StepMetrics:
            if arrived is not None:
                arrived.synchronize()
            loss, norm, *rest = values.tolist()
            of_terms = dict(zip(terms, rest, strict=False))
            measured = zip(measures, rest[len(terms) :], strict=True)
            defined = {name: value for name, value in measured if not math.isnan(value)}
            return StepMetrics(number, loss, of_terms, rate, norm, defined, *counts)

        self._pending.append((arrived, read))

    def take(self, everything: bool) -> list[StepMetrics]:
        """The steps whose values have arrived, or all; ContrasentError if one is not finite."""
        left = 0 if everything or not self._pending or self._pending[-1][0] is None else 1
        steps = [self._pending.popleft()[1]() for _ in range(len(self._pending) - left)]
        for step in steps:
            if not (math.isfinite(step.loss) and math.isfinite(step.gradient_norm)):
                raise ContrasentError(
                    f"step {step.number}: the loss is {step.loss} and the gradient norm "
                    f"{step.gradient_norm}; {_NOT_KEPT}"
                )
        return steps


@dataclass(slots=True)
class Progress:
    """The progress of a run: updates made, and its best evaluation on the dev task.

    The place in the data and the learning rate follow from ``step``; the schedule ``plateau``
    multiplies the latter with ``rate_factor``. ``without_best`` counts evaluations since the best.
    With ``twin_is_better`` the second of two encoders had the higher score at the last one, with
    ``best_is_start`` nothing beat the start as it comes.
    """

    step: int = 0
    best_step: int | None = None
    best_score: float | None = None
    without_best: int = 0
    ended: bool = False
    twin_is_better: bool = False
    rate_factor: float = 1.0
    best_is_start: bool = False
    seconds: float = 0.0  # of the steps
    examples: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The moving parts of a run."""

    encoder: SentenceEncoder  # embeds the sentences; of a run with two encoders, the first views
    objectives: Mapping[str, Objective]  # with their new weights, by ``origin`` of a batch
    optimizer: Optimizer  # of the parameters of ``modules``
    settings: TrainSettings
    precision: str  # of the matrix products, ``fp32`` or ``bf16``
    steps: int  # updates in all
    twin: SentenceEncoder | None = None  # the second encoder, for all other views
    mlm_view: MlmView | None = None  # makes the view ``mlm`` of a batch
    fixed_dropout: bool = False  # all views of an example have the same dropout masks
    split: Split = WHOLE  # among processes and into chunks, of each step

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The trained modules by the names that they have in a saved state."""
        modules: dict[str, nn.Module] = {"encoder": self.encoder}
        for number, objective in enumerate(dict.fromkeys(self.objectives.values())):
            modules[f"objective{number or ''}"] = objective
        return modules if self.twin is None else {**modules, "twin": self.twin}


def run(
    training: Training, batches: Iterator[Batch], progress: Progress, is_due: Callable[[int], bool]
) -> Iterator[list[StepMetrics]]:
    """Train from ``progress.step`` on, with the ``batches`` from there.

    After updates it gives the steps whose metrics have arrived. ``is_due`` says whether something
    is done with the weights after so many updates, so that the metrics of all steps are waited for.
    ContrasentError if loss or gradient are not finite.
    """
    settings, device, optimizer = training.settings, training.encoder.device, training.optimizer
    parameters, metrics = trainable_parameters(*training.modules.values()), MetricsReader()
    processes, precision = training.split.processes, training.precision
    embed = {it: embedding(training, it) for it in training.objectives.values()}
    keep_freed_memory()
    for module in training.modules.values():
        module.train()
    for loaded in batches:
        objective = training.objectives[loaded.origin]
        step_split = splitting(training.split, settings.seed, progress.step)
        with matrix_precision(precision, device), step_split:
            batch = loaded.to(device)
            if training.mlm_view is not None:
                batch = training.mlm_view(batch)
            batch = replace(objective.prepare(batch), origin=loaded.origin)
            with record_function("encoder"):
                encoded, backward_through_encoder = embed[objective](batch)
            terms = require_terms(objective, objective(encoded, batch))
        loss = torch.stack(list(terms.values())).sum()
        with record_function("backward"):
            torch.autograd.backward(loss if processes == 1 else loss / processes)
            backward_through_encoder()
        if processes > 1:
            with record_function("communication"):
                sum_gradients(parameters)
        norm = gradient_norm(parameters)

        rate = learning_rate(settings, training.steps, progress.step) * progress.rate_factor
        measures = {**_geometry(encoded.pooled.detach(), objective.aligned), **terms.measures}
        metrics.send(progress.step, rate, batch, loss, norm, Terms(terms, measures))
        # Read before the update where that costs nothing, so that none is made with a NaN.
        known = metrics.take(everything=is_due(progress.step + 1))
        with record_function("update"):
            set_rate(optimizer, settings, rate, progress.step)
            update(optimizer, norm, settings.clip)
            for it in embed:
                it.after_step()
        progress.step += 1
        if is_due(progress.step):
            _require_finite(training, batch, progress.step)
        if known:
            yield known


@torch.no_grad()
def _require_finite(training: Training, batch: Batch, step: int) -> None:
    first = batch.select(batch.offsets.new_zeros(1))
    rows = []
    for encoder in filter(None, (training.encoder, training.twin)):
        with evaluating(encoder):
            rows.append(encoder(first).pooled)
    weights = trainable_parameters(*training.modules.values())
    if not torch.stack([tensor.isfinite().all() for tensor in (*rows, *weights)]).all():
        raise ContrasentError(
            f"the update of step {step - 1} gives numbers that are not finite; {_NOT_KEPT}"
        )


def _geometry(pooled: Tensor, aligned: bool) -> dict[str, Tensor]:
    if len(pooled) == 1:
        return {}
    measures = {"alignment": alignment(*pooled[:2])} if aligned else {}
    return {**measures, "uniformity": uniformity(pooled[0])}


_FORMAT = 1
_PREFIX = "step-"


def save_state(folder: Path, progress: Progress, training: Training) -> None:
    """Write ``folder/step-N`` whole, then remove older states."""
    target = folder / f"{_PREFIX}{progress.step:09d}"
    with writing_folder(target) as partial:
        for name, module in training.modules.items():
            _save(module.state_dict(), partial / f"{name}.safetensors")
        moments = training.optimizer.state_dict()["state"]
        named = {f"{n}.{key}": t for n, values in moments.items() for key, t in values.items()}
        _save(named, partial / "optimizer.safetensors")
        _save(random_state(training.encoder.device), partial / "random.safetensors")
        write_json(partial / "progress.json", {"format": _FORMAT, **asdict(progress)})
    for other in folder.iterdir():
        if other != target:
            shutil.rmtree(other)


def load_state(folder: Path, training: Training) -> Progress | None:
    """Restore the newest whole state below ``folder``; None if there is none."""
    newest = max(folder.glob(f"{_PREFIX}*"), default=None)
    if newest is None:
        return None
    try:
        described = read_json(newest / "progress.json")
        if (written := described.pop("format")) != _FORMAT:
            raise ValueError(f"its format is {written!r}, and this version reads {_FORMAT}")
        for name, module in training.modules.items():
            module.load_state_dict(load_file(newest / f"{name}.safetensors"))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in load_file(newest / "optimizer.safetensors").items():
            number, _, key = name.partition(".")
            moments.setdefault(int(number), {})[key] = tensor
        training.optimizer.load_state_dict({**training.optimizer.state_dict(), "state": moments})
        set_random_state(load_file(newest / "random.safetensors"), training.encoder.device)
        return Progress(**described)
    except Exception as error:
        raise CheckpointError(
            f"cannot resume from {newest}: {error}; start the run again with --overwrite"
        ) from error


def _save(tensors: Mapping[str, Tensor], path: Path) -> None:
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # A weight that two parts of a module share is written for each of them.
    owners = {tensor.data_ptr(): name for name, tensor in stored.items()}
    own = {name: owners[tensor.data_ptr()] == name for name, tensor in stored.items()}
    save_file({name: it if own[name] else it.clone() for name, it in stored.items()}, path)
