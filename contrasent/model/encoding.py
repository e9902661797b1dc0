"""Sentences to rows without training: checked, sorted by length, batched by tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from contrasent.data.batch import pack
from contrasent.errors import DataError, warn
from contrasent.model.precision import matrix_precision
from contrasent.model.progress import sentence_progress

if TYPE_CHECKING:
    from contrasent.model.encoder import SentenceEncoder


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """Checked settings of one call of `SentenceEncoder.encode_stream`, where they are explained."""

    chunk: int
    batch_tokens: int
    normalize: bool
    precision: str
    show_progress: bool
    on_overflow: str


def stream(encoder: SentenceEncoder, sentences: Iterable[str], how: How) -> Iterator[np.ndarray]:
    """Embed ``how.chunk`` sentences at a time; see `SentenceEncoder.encode_stream`."""
    total = len(sentences) if isinstance(sentences, Sequence) else None
    truncated = done = 0
    with sentence_progress(total, how.show_progress) as advance:
        rest = iter(sentences)
        while texts := list(islice(rest, how.chunk)):
            ids, cut = token_ids(encoder, texts, done, how.on_overflow)
            truncated, done = truncated + cut, done + len(texts)
            rows = embed(encoder, ids, how.batch_tokens, how.precision, advance)
            yield unit_rows(rows) if how.normalize else rows
    if truncated and how.on_overflow == "warn":
        warn(f"{truncated} of {done} sentences were cut at {encoder.max_tokens} tokens")


def token_ids(
    encoder: SentenceEncoder, texts: Sequence[str], before: int, on_overflow: str
) -> tuple[list[np.ndarray], int]:
    """Token ids of ``texts``, and how many of them were cut at ``encoder.max_tokens``.

    Args:
        encoder: gives the tokenizer and the limit.
        texts: the sentences.
        before: how many sentences of the same call came before, for the messages.
        on_overflow: ``warn``, ``error`` or ``truncate``; only ``error`` matters here.

    Raises:
        DataError: an item is not a string, or is no valid text, or one is too long under
            ``on_overflow="error"``.
    """
    for number, text in enumerate(texts, start=before):
        if not isinstance(text, str):
            raise DataError(f"sentence {number} is {type(text).__name__}, not a string: {text!r}")
        if not text.isascii():
            _require_utf8(number, text)
    ids, cut = encoder.tokenizer.ids(texts, encoder.max_tokens)
    if cut and on_overflow == "error":
        raise DataError(
            f"{cut} of the sentences {before} to {before + len(texts) - 1} are longer than "
            f"{encoder.max_tokens} tokens; shorten them or pass on_overflow='truncate'"
        )
    return ids, cut


def _require_utf8(number: int, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"sentence {number} cannot be written as UTF-8: character {error.start} is half of a "
            "surrogate pair; decode the text again, or drop it"
        ) from error


def embed(
    encoder: SentenceEncoder,
    ids: Sequence[np.ndarray],
    batch_tokens: int,
    precision: str,
    advance: Callable[[int], None],
) -> np.ndarray:
    """Embed sentences given as token ids, ``(N, D)`` float32 in their order.

    Args:
        encoder: put into evaluation mode meanwhile.
        ids: the token ids of N sentences.
        batch_tokens: padded tokens computed at once.
        precision: ``fp32`` or ``bf16``.
        advance: told how many more sentences are done, batch by batch.
    """
    rows = np.empty((len(ids), encoder.width), np.float32)
    fast = matrix_precision(precision, encoder.device)
    with inference(encoder), fast, encoder.backbone.unchanging():
        for numbers in by_length([len(i) for i in ids], batch_tokens):
            batch = pack([ids[n] for n in numbers]).to(encoder.device)
            rows[numbers] = encoder(batch).pooled[0].float().cpu().numpy()
            advance(len(numbers))
    return rows


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Scale each row of ``(N, D)`` to length 1; a row of zeros stays."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled: np.ndarray = rows / np.maximum(length, np.finfo(np.float32).tiny)
    return scaled


@contextmanager
def inference(module: nn.Module) -> Iterator[None]:
    """Dropout off and no gradients inside; afterwards every part is in the mode it was in."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for part, training in modes:
            part.training = training


def by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[np.ndarray]:
    """Cut sentences, shortest first, into batches of at most ``batch_tokens`` padded tokens.

    A sentence longer than that is a batch of its own.

    Yields:
        The numbers of a batch's sentences.
    """
    order = np.argsort(lengths, kind="stable")
    start = 0
    for end in range(1, len(order) + 1):
        last = end == len(order)
        if last or (end + 1 - start) * lengths[order[end]] > batch_tokens:
            yield order[start:end]
            start = end
