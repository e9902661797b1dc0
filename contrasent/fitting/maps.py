"""Fitting a map on the embeddings of text: whitening, and a flow as BERT-flow trains it.

Shapes: N sentences, n of a batch, D width of an embedding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from contrasent.errors import ConfigError, DataError
from contrasent.files import exclusive, refuse_existing
from contrasent.fitting.text import DrawnRows, FittingText, StoredRows, finite_rows
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.hub import INFO_FILE, resolve
from contrasent.model.transforms import whitening
from contrasent.model.transforms.base import Transform
from contrasent.model.transforms.flow import Flow
from contrasent.model.transforms.whitening import Moments
from contrasent.model.word_encoder import WordEncoder
from contrasent.options import FlowSettings, WhiteningSettings
from contrasent.progress import progress_bar
from contrasent.recipe import validate

_LONGEST_GRADIENT = 1.0
_MEASURED = 2048  # sentences that the likelihood is measured on


@dataclass(frozen=True, slots=True)
class Likelihood:
    """Negative log-likelihood, in bits for each component, of so many sentences without dropout.

    ``before`` is with scales set from the first batch, and nothing learned.
    """

    before: float
    after: float
    sentences: int


def fit_flow(
    encoder: SentenceEncoder,
    text: FittingText,
    settings: FlowSettings,
    precision: str = "fp32",
    show_progress: bool = False,
) -> tuple[Flow, Likelihood]:
    """Maximise the likelihood of the embeddings of ``text`` under a standard normal distribution.

    Without dropout every sentence is embedded once, and the embeddings lie in a temporary file.
    Refused are fewer than 2 sentences, embeddings that cannot be halved so often or are not
    finite, and a likelihood that is not.
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
        self, parameters: Sequence[Tensor], learning_rate: float, weight_decay: float
    ) -> None:
        self._parameters = parameters
        self._learning_rate, self._weight_decay = learning_rate, weight_decay
        self._moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in parameters]

    @torch.no_grad()
    def step(self) -> None:
        """Move every weight against its gradient."""
        for parameter, (first, second) in zip(self._parameters, self._moments, strict=True):
            if parameter.grad is None:
                continue
            first.lerp_(parameter.grad, 1 - 0.9)
            second.lerp_(parameter.grad.square(), 1 - 0.999)
            update = first / (second.sqrt() + 1e-6) + self._weight_decay * parameter
            parameter.sub_(update, alpha=self._learning_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """Options of embedding the sentences that a transform is fitted on."""

    precision: str = "fp32"  # ``fp32``, ``bf16`` or ``auto``
    # longer sentences are cut; None for the encoder's own limit. BERT-whitening and BERT-flow took
    # 64.
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class FittedEncoder:
    """An encoder with a fitted map, and what is kept of the fit in ``contrasent.json``."""

    encoder: SentenceEncoder
    info: dict[str, Any]


def fit_whitening(
    encoder: SentenceEncoder,
    text: FittingText,
    settings: WhiteningSettings | None = None,
    how: Embedding | None = None,
    *,
    show_progress: bool = False,
) -> FittedEncoder:
    """Whiten the embeddings of an encoder; see :mod:`contrasent.model.transforms.whitening`.

    Mean and covariance are summed up in fp64 while sentences are embedded, in bounded memory.
    ConfigError if the encoder has a transform already, or has not so many dimensions; DataError if
    there are too few sentences, or their covariance is singular; CheckpointError if an embedding is
    not finite.
    """
    how = how or Embedding()
    dimensions = None if settings is None else settings.dimensions
    refuse_second(encoder)
    whitening.require_enough(len(text), dimensions, encoder.width)
    moments = Moments(encoder.width)
    with _cut_at(encoder, how):
        for rows in finite_rows(encoder, text, how.precision, show_progress):
            moments.add(rows)
    whitened = whitening.fit(moments, dimensions)
    kept = whitened.transform.width
    results = {
        "dimensions": kept,
        **asdict(how),
        "max_tokens": _limit(encoder, how),
        "width": encoder.width,
        "rank": whitened.rank,
        "variance_kept": whitened.variance_kept,
    }
    described = f"whitening to {kept} of {encoder.width} dimensions, fitted on {text.described}"
    return _attach(encoder, text, whitened.transform, described, results)


def fit_glow(
    encoder: SentenceEncoder,
    text: FittingText,
    settings: FlowSettings | None = None,
    how: Embedding | None = None,
    *,
    show_progress: bool = False,
) -> FittedEncoder:
    """Fit a flow on the embeddings of an encoder, which stays as it is.

    Errors are those of :func:`fit_whitening` and of :func:`fit_flow`.
    """
    how, settings = how or Embedding(), settings or FlowSettings()
    refuse_second(encoder)
    with _cut_at(encoder, how):
        flow, likelihood = fit_flow(encoder, text, settings, how.precision, show_progress)
    kept = {**asdict(settings), **asdict(how), "max_tokens": _limit(encoder, how)}
    described = f"flow of {settings.levels} levels, fitted on {text.described}"
    info = {**kept, "bits_per_dimension": asdict(likelihood)}
    return _attach(encoder, text, flow, described, info)


@dataclass(frozen=True, slots=True)
class Fitter:
    """A way of fitting a map to the embeddings of text."""

    settings: type[Any]  # its settings, a class made by `settings`
    fit: Callable[..., FittedEncoder]  # of encoder, text, settings and `Embedding`

    def read(self, given: Mapping[str, Any]) -> Any:
        """Its settings; ConfigError if one is unknown, or cannot have its value."""
        return validate(self.settings, given, "map")


FITTERS = {
    "whitening": Fitter(WhiteningSettings, fit_whitening),
    "flow": Fitter(FlowSettings, fit_glow),
}
"""By the name of the map."""


def save_fitted(encoder: SentenceEncoder | WordEncoder, info: dict[str, Any], output: Path) -> None:
    """Write an encoder with what is fitted to it as one folder, whole or not at all."""
    with exclusive(output):
        require_output(output)
        encoder.save(output, info)


def require_output(output: Path) -> None:
    """Make sure that ``output`` can be written, before anything expensive happens."""
    refuse_existing(output, "name another folder with --output, or remove it")


def refuse_second(encoder: SentenceEncoder) -> None:
    """Make sure that nothing is fitted on embeddings that are mapped already."""
    if encoder.transform is not None:
        raise ConfigError(
            f"{encoder.name} has a transform already ({encoder.transform.described}); fit on the "
            "encoder that it was made from"
        )
    if encoder.truncate_dim is not None:
        raise ConfigError(
            f"{encoder.name} keeps {encoder.truncate_dim} of {encoder.full_width} dimensions, and "
            "a map is fitted on all of them; set its truncate_dim to None"
        )


@contextmanager
def _cut_at(encoder: SentenceEncoder, how: Embedding) -> Iterator[None]:
    usual = encoder.max_tokens
    encoder.max_tokens = _limit(encoder, how)
    try:
        yield
    finally:
        encoder.max_tokens = usual


def _limit(encoder: SentenceEncoder, how: Embedding) -> int:
    return min(encoder.max_tokens, how.max_tokens or encoder.max_tokens)


def _attach(
    encoder: SentenceEncoder,
    text: FittingText,
    transform: Transform,
    described: str,
    settings: dict[str, Any],
) -> FittedEncoder:
    """The encoder with its transform, and the settings and sources of the fit."""
    path = resolve(encoder.name) / INFO_FILE
    source = {
        "name": encoder.name,
        "fingerprint": encoder.fingerprint(),
        "pooler": encoder.pooler,
        "head": encoder.head_name,
        "contrasent": json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None,
    }
    info = {
        "name": transform.name,
        "described": described,
        **settings,
        "sentences": len(text),
        "text": text.provenance,
        "target": text.is_target,
        "encoder": source,
    }
    transform.described = described
    encoder.transform = transform.to(encoder.device)
    return FittedEncoder(encoder, {"transform": info})
