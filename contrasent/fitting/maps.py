"""Fitting a map on the embeddings of text: whitening, and a flow as BERT-flow trains it.

Shapes: N sentences, n of a batch, D width of an embedding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
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
from contrasent.model.lookup_encoders import WordEncoder
from contrasent.model.transforms import Flow, Moments, Transform, fit_whitening, require_enough
from contrasent.options import FlowSettings, WhiteningSettings
from contrasent.progress import progress_bar
from contrasent.recipe import validate

_LONGEST_GRADIENT = 1.0
_MEASURED = 2048  # sentences that the likelihood is measured on


def fit_flow(
    encoder: SentenceEncoder,
    text: FittingText,
    settings: FlowSettings,
    precision: str = "fp32",
    show_progress: bool = False,
) -> tuple[Flow, dict[str, float]]:
    """Maximise the likelihood of the embeddings of ``text`` under a standard normal distribution.

    Without dropout every sentence is embedded once, and the embeddings lie in a temporary file.
    Returned with the flow are the negative log-likelihoods in bits for each component, without
    dropout, of a number of ``sentences``: ``before``, with scales set from the first batch and
    nothing learned, and ``after``.
    """
    count = len(text)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        flow = Flow(encoder.width, settings.levels, settings.depth, settings.coupling_width)
        flow.to(encoder.device)
        rows = (
            DrawnRows(encoder, text, precision)
            if settings.dropout
            else StoredRows(encoder, text, precision, show_progress)
        )

        def bits(numbers: np.ndarray, where: str, dropout: bool = False) -> Tensor:
            value = flow.bits_per_dimension(rows.batch(numbers, dropout=dropout))
            if not torch.isfinite(value):
                raise DataError(
                    f"the likelihood of {where} is not finite, so the fit cannot go on; lower the "
                    "learning rate, or look for components of the embedding that are all but "
                    "constant"
                )
            return value

        measured = np.linspace(0, count - 1, min(count, _MEASURED)).astype(np.int64)
        parameters = list(flow.parameters())
        optimizer = PlainAdamW(parameters, settings.learning_rate, settings.weight_decay)
        batches = _batches(count, settings)
        flow.start(rows.batch(batches[0], dropout=settings.dropout))
        with torch.no_grad():
            before = bits(measured, "a measurement").item()
        columns = ("fitting: {task.fields[bits]:.4f} bits per dimension", "bar", "count")
        bar = progress_bar(*columns, total=len(batches), shown=show_progress, bits=float("nan"))
        with bar as advance:
            for step, numbers in enumerate(batches, start=1):
                loss = bits(numbers, f"step {step} of {len(batches)}", settings.dropout)
                gradients = torch.autograd.grad(loss, parameters)
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient
                clip_grad_norm_(parameters, _LONGEST_GRADIENT)
                optimizer.step()
                advance(1, bits=loss.item())
        with torch.no_grad():
            after = bits(measured, "a measurement").item()
    likelihood = {"before": before, "after": after, "sentences": len(measured)}
    return flow.requires_grad_(False).eval(), likelihood


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


Fit = tuple[Transform, str, dict[str, Any]]
"""A map, what it is in words, and what is kept of the fit."""


def _whitening(
    encoder: SentenceEncoder, text: FittingText, settings: WhiteningSettings, how: Embedding
) -> Fit:
    """Sum up mean and covariance in fp64 while sentences are embedded, in bounded memory."""
    require_enough(len(text), settings.dimensions, encoder.width)
    moments = Moments(encoder.width)
    for rows in finite_rows(encoder, text, how.precision, how.show_progress):
        moments.add(rows)
    transform, rank, variance_kept = fit_whitening(moments, settings.dimensions)
    kept = transform.width
    facts = {
        "dimensions": kept,
        "precision": how.precision,
        "max_tokens": encoder.max_tokens,
        "width": encoder.width,
        "rank": rank,
        "variance_kept": variance_kept,
    }
    return transform, f"whitening to {kept} of {encoder.width} dimensions", facts


def _flow(
    encoder: SentenceEncoder, text: FittingText, settings: FlowSettings, how: Embedding
) -> Fit:
    flow, likelihood = fit_flow(encoder, text, settings, how.precision, how.show_progress)
    facts = {
        **asdict(settings),
        "precision": how.precision,
        "max_tokens": encoder.max_tokens,
        "bits_per_dimension": likelihood,
    }
    return flow, f"flow of {settings.levels} levels", facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """Options of embedding the sentences that a map is fitted on."""

    precision: str = "fp32"  # ``fp32``, ``bf16`` or ``auto``
    # longer sentences are cut; None for the encoder's own limit. BERT-whitening and BERT-flow took
    # 64.
    max_tokens: int | None = None
    show_progress: bool = False


@dataclass(frozen=True, slots=True)
class Fitter:
    """A way of fitting a map to the embeddings of text."""

    settings: type[Any]  # its settings, a class made by `settings`
    make: Callable[[SentenceEncoder, FittingText, Any, Embedding], Fit]

    def read(self, given: Mapping[str, Any]) -> Any:
        """Its settings; ConfigError if one is unknown, or cannot have its value."""
        return validate(self.settings, given, "map")

    def fit(
        self,
        encoder: SentenceEncoder,
        text: FittingText,
        settings: Any = None,
        how: Embedding | None = None,
    ) -> dict[str, Any]:
        """Give an encoder a map; returns what is kept of the fit in ``contrasent.json``.

        ConfigError if the encoder has a map already, or its embeddings do not suit the settings;
        DataError if there is too little text; CheckpointError if an embedding is not finite.
        """
        settings, how = settings or self.settings(), how or Embedding()
        refuse_second(encoder)
        usual = encoder.max_tokens
        encoder.max_tokens = min(usual, how.max_tokens or usual)
        try:
            transform, described, facts = self.make(encoder, text, settings, how)
        finally:
            encoder.max_tokens = usual
        path = resolve(encoder.name) / INFO_FILE
        transform.described = f"{described}, fitted on {text.described}"
        info = {
            "name": transform.name,
            "described": transform.described,
            **facts,
            "sentences": len(text),
            "text": text.provenance,
            "target": text.is_target,
            "encoder": {
                "name": encoder.name,
                "fingerprint": encoder.fingerprint(),
                "pooler": encoder.pooler,
                "head": encoder.head_name,
                "contrasent": json.loads(path.read_text("utf-8")) if path.is_file() else None,
            },
        }
        encoder.transform = transform.to(encoder.device)
        return {"transform": info}


FITTERS = {
    "whitening": Fitter(WhiteningSettings, _whitening),
    "flow": Fitter(FlowSettings, _flow),
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
