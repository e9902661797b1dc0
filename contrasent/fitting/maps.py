"""Fitted maps: whitening and flows, fitted on the embeddings of a text and saved with the encoder.

Shapes: N sentences, D width of an embedding.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from contrasent.errors import ConfigError
from contrasent.files import refuse_existing
from contrasent.fitting.glow import FlowSettings, Likelihood, fit_flow
from contrasent.fitting.text import FittingText, finite_rows
from contrasent.model.checkpoint import INFO_FILE
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.hub import resolve
from contrasent.model.transforms import whitening
from contrasent.model.transforms.base import Transform
from contrasent.model.transforms.whitening import Moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """Options of embedding the sentences that a transform is fitted on.

    Attributes:
        precision: ``fp32``, ``bf16`` or ``auto``.
        max_tokens: longer sentences are cut; None for the encoder's own limit. BERT-whitening and
            BERT-flow took 64.
    """

    precision: str = "fp32"
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class FittedEncoder:
    """An encoder with a fitted map.

    Attributes:
        encoder: the encoder with its transform.
        info: what is kept of the fit in ``contrasent.json``.
    """

    encoder: SentenceEncoder
    info: dict[str, Any]


def fit_whitening(
    encoder: SentenceEncoder,
    text: FittingText,
    dimensions: int | None = None,
    how: Embedding | None = None,
    *,
    show_progress: bool = False,
) -> FittedEncoder:
    """Whiten the embeddings of an encoder; see :mod:`contrasent.model.transforms.whitening`.

    Mean and covariance are summed up in fp64 while sentences are embedded, in bounded memory.

    Args:
        encoder: gets the transform.
        text: N sentences.
        dimensions: how many to keep; by default all in which embeddings differ.
        how: how the sentences are embedded.
        show_progress: a progress bar on standard error.

    Raises:
        ConfigError: the encoder has a transform already, or has not so many dimensions.
        DataError: there are too few sentences, or their covariance is singular.
        CheckpointError: an embedding is not finite.
    """
    how = how or Embedding()
    refuse_second(encoder)
    whitening.require_enough(len(text), dimensions, encoder.width)
    moments = Moments(encoder.width)
    with _cut_at(encoder, how):
        for rows in finite_rows(encoder, text, how.precision, show_progress):
            moments.add(rows)
    whitened = whitening.fit(moments, dimensions)
    kept = whitened.transform.width
    settings = {"dimensions": kept, **asdict(how), "max_tokens": _limit(encoder, how)}
    results = {
        "width": encoder.width,
        "rank": whitened.rank,
        "variance_kept": whitened.variance_kept,
    }
    described = f"whitening to {kept} of {encoder.width} dimensions, fitted on {text.described}"
    return _attach(encoder, text, whitened.transform, described, {**settings, **results})


def fit_glow(
    encoder: SentenceEncoder,
    text: FittingText,
    settings: FlowSettings | None = None,
    how: Embedding | None = None,
    *,
    show_progress: bool = False,
) -> tuple[FittedEncoder, Likelihood]:
    """Fit a flow on the embeddings of an encoder, which stays as it is.

    Args:
        encoder: gets the transform.
        text: N sentences.
        settings: of the flow and of its fitting.
        how: how the sentences are embedded.
        show_progress: a progress bar on standard error.

    Returns:
        What was fitted, and how likely the text was before and after.

    Raises:
        ConfigError: the encoder has a transform already, its width cannot be halved so often, or
            a setting is out of range.
        DataError: there are too few sentences, or the likelihood is not finite.
        CheckpointError: an embedding is not finite.
    """
    how, settings = how or Embedding(), settings or FlowSettings()
    refuse_second(encoder)
    with _cut_at(encoder, how):
        flow, likelihood = fit_flow(encoder, text, settings, how.precision, show_progress)
    kept = {**asdict(settings), **asdict(how), "max_tokens": _limit(encoder, how)}
    described = f"flow of {settings.levels} levels, fitted on {text.described}"
    info = {**kept, "bits_per_dimension": asdict(likelihood)}
    return _attach(encoder, text, flow, described, info), likelihood


def save_fitted(fitted: FittedEncoder, output: Path) -> None:
    """Write the encoder with its transform as one folder, whole or not at all.

    Raises:
        ConfigError: something is there already.
    """
    require_output(output)
    fitted.encoder.save(output, fitted.info)


def require_output(output: Path) -> None:
    """Make sure that ``output`` can be written, before anything expensive happens.

    Raises:
        ConfigError: something is there already.
    """
    refuse_existing(output, "name another folder with --output, or remove it")


def refuse_second(encoder: SentenceEncoder) -> None:
    """Make sure that nothing is fitted on embeddings that are mapped already.

    Raises:
        ConfigError: they are.
    """
    if encoder.transform is not None:
        raise ConfigError(
            f"{encoder.name} has a transform already ({encoder.transform.described}); fit on the "
            "encoder that it was made from"
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
    source = {
        "name": encoder.name,
        "fingerprint": encoder.fingerprint(),
        "pooler": encoder.pooler,
        "head": encoder.head_name,
        "contrasent": _info_of(encoder.name),
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


def _info_of(name: str) -> Any:
    """The ``contrasent.json`` of the encoder that a transform is fitted for; None without one."""
    path = resolve(name) / INFO_FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
