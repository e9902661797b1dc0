"""Training of a Glow flow, as in the published code of BERT-flow.

Shapes: N sentences, n of a batch, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from contrasent.errors import ConfigError, DataError
from contrasent.fitting.text import DrawnRows, FittingSentences, StoredRows
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.transforms.flow import Flow
from contrasent.progress import progress_bar

_LONGEST_GRADIENT = 1.0
_MEASURED = 2048
"""Sentences that the likelihood is measured on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings:
    """Settings of a flow and of its training; the defaults are those of the code of Li et al. 2020.

    Attributes:
        levels: after each but the last, half of the components is done.
        depth: steps of a level.
        coupling_width: width of the hidden layers.
        learning_rate: constant.
        weight_decay: of all weights.
        batch_size: sentences of an update: 64 are the 32 pairs of the published code.
        epochs: how often the text is read.
        dropout: leave the encoder's dropout on while fitting, as the published code does by
            accident.
        seed: decides the first weights, the order of the sentences, and dropout.
    """

    levels: int = 3
    depth: int = 3
    coupling_width: int = 32
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    batch_size: int = 64
    epochs: int = 1
    dropout: bool = False
    seed: int = 1234

    def __post_init__(self) -> None:
        """Refuse what cannot be fitted with.

        Raises:
            ConfigError: a number is out of range.
        """
        least = {"batch_size": 2, "epochs": 1, "seed": 0}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise ConfigError(f"{name} {getattr(self, name)} must be at least {smallest}")
        if not self.learning_rate > 0 or not self.weight_decay >= 0:
            raise ConfigError(
                f"learning_rate {self.learning_rate} must be above 0, and weight_decay "
                f"{self.weight_decay} not below"
            )


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Negative log-likelihood, in bits for each component.

    Attributes:
        before: with scales set from the first batch, and nothing learned.
        after: when the fit is done.
        sentences: how many of the text it was measured on, without dropout.
    """

    before: float
    after: float
    sentences: int


def fit_flow(
    encoder: SentenceEncoder,
    text: FittingSentences,
    settings: FlowSettings,
    precision: str = "fp32",
    show_progress: bool = False,
) -> tuple[Flow, Likelihood]:
    """Maximise the likelihood of the embeddings of ``text`` under a standard normal distribution.

    Without dropout every sentence is embedded once, and the embeddings lie in a temporary file.

    Raises:
        ConfigError: the embeddings cannot be halved so often.
        DataError: there are fewer than 2 sentences, or the likelihood is not finite.
        CheckpointError: an embedding is not finite.
    """
    if len(text) < 2:
        raise DataError("one sentence has no distribution to fit a flow to; give 2 or more")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        flow = Flow(encoder.width, settings.levels, settings.depth, settings.coupling_width)
        flow.to(encoder.device)
        rows = (
            DrawnRows(encoder, text, precision)
            if settings.dropout
            else StoredRows(encoder, text, precision, show_progress)
        )
        with rows:
            likelihood = _fit(flow, rows, len(text), settings, show_progress)
    return flow.requires_grad_(False).eval(), likelihood


def _fit(
    flow: Flow, rows: StoredRows | DrawnRows, count: int, settings: FlowSettings, shown: bool
) -> Likelihood:
    measured = np.linspace(0, count - 1, min(count, _MEASURED)).astype(np.int64)
    parameters = list(flow.parameters())
    optimizer = PlainAdamW(parameters, settings.learning_rate, settings.weight_decay)
    batches = _batches(count, settings)
    flow.start(rows.batch(batches[0], dropout=settings.dropout))
    before = _bits(flow, rows, measured)
    columns = ("fitting: {task.fields[bits]:.4f} bits per dimension", "bar", "count")
    bits = float("nan")
    with progress_bar(*columns, total=len(batches), shown=shown, bits=bits) as advance:
        for step, numbers in enumerate(batches, start=1):
            loss = flow.bits_per_dimension(rows.batch(numbers, dropout=settings.dropout))
            if not torch.isfinite(loss):
                raise _not_finite(f"step {step} of {len(batches)}")
            gradients = torch.autograd.grad(loss, parameters)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            clip_grad_norm_(parameters, _LONGEST_GRADIENT)
            optimizer.step()
            advance(1, bits=loss.item())
    return Likelihood(before, _bits(flow, rows, measured), len(measured))


def _batches(count: int, settings: FlowSettings) -> list[np.ndarray]:
    """Numbers of the sentences of every update, anew in each epoch; none is alone."""
    batches = []
    for epoch in range(settings.epochs):
        order = np.random.default_rng((settings.seed, epoch)).permutation(count)
        parts = np.array_split(order, range(settings.batch_size, count, settings.batch_size))
        if len(parts) > 1 and len(parts[-1]) == 1:
            parts[-2:] = [np.concatenate(parts[-2:])]
        batches += parts
    return batches


@torch.no_grad()
def _bits(flow: Flow, rows: StoredRows | DrawnRows, numbers: np.ndarray) -> float:
    value = flow.bits_per_dimension(rows.batch(numbers, dropout=False)).item()
    if not np.isfinite(value):
        raise _not_finite("a measurement")
    return value


def _not_finite(where: str) -> DataError:
    return DataError(
        f"the likelihood of {where} is not finite, so the fit cannot go on; lower the learning "
        "rate, or look for components of the embedding that are all but constant"
    )


class PlainAdamW:
    """AdamW as BERT's own code has it: without the correction of the first steps' moments.

    ``m / (sqrt(v) + eps) + decay * w``, times the learning rate, taken from every weight ``w``.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        learning_rate: float,
        weight_decay: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
    ) -> None:
        self._parameters = parameters
        self._learning_rate, self._weight_decay = learning_rate, weight_decay
        self._betas, self._eps = betas, eps
        self._moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in parameters]

    @torch.no_grad()
    def step(self) -> None:
        """Move every weight against its gradient."""
        for parameter, (first, second) in zip(self._parameters, self._moments, strict=True):
            if parameter.grad is None:
                continue
            first.lerp_(parameter.grad, 1 - self._betas[0])
            second.lerp_(parameter.grad.square(), 1 - self._betas[1])
            update = first / (second.sqrt() + self._eps) + self._weight_decay * parameter
            parameter.sub_(update, alpha=self._learning_rate)
