"""Encoding: sentences to rows without training, sorted by length, batched by tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import count, islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from contrasent.data.batch import pack
from contrasent.data.loader import prefetch
from contrasent.data.tokenizer import require_text
from contrasent.errors import DataError, warn
from contrasent.model.precision import matrix_precision
from contrasent.profiling import give_back_freed_memory, keep_freed_memory
from contrasent.progress import sentence_progress

if TYPE_CHECKING:
    from contrasent.model.encoder import SentenceEncoder
    from contrasent.model.protocol import EncodingOptions


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Dropout off inside; afterwards every part is in the mode it was in."""
    # Only what changes is written: a module takes microseconds to set an attribute.
    changed = [part for part in module.modules() if part.training]
    for part in changed:
        part.training = False
    try:
        yield
    finally:
        for part in changed:
            part.training = True


_BATCH_TOKENS = {False: 4096, True: 65_536}
"""Padded tokens computed at once on a CPU, and on a device beside it."""
_PADDED_TOKENS = 1024
"""On a CPU, where a batch is computed with its padding, of which a small one has less."""
_BATCHES_ON_A_CPU = 1
_BATCHES_ON_A_DEVICE = 16
"""After how many batches their rows are copied: a device stands still while it is asked."""
_BATCHES_BETWEEN_TRIMS = 25


def encode_blocks(
    encoder: SentenceEncoder, sentences: Iterable[str], options: EncodingOptions
) -> Iterator[np.ndarray]:
    """Embed ``options.chunk`` sentences at a time; see `SentenceEncoder.encode_stream`."""

    def tokens(numbered: tuple[int, list[str]]) -> tuple[list[np.ndarray], int]:
        before, texts = numbered
        return token_ids(encoder, texts, before, options.on_overflow, options.prompt, options.task)

    total = len(sentences) if isinstance(sentences, Sequence) else None
    is_fast = overlaps(encoder)
    usual = _PADDED_TOKENS if encoder.backbone.pads and not is_fast else _BATCH_TOKENS[is_fast]
    budget = options.batch_tokens or usual
    rest = iter(sentences)
    texts_of_chunks = iter(lambda: list(islice(rest, options.chunk)), [])
    chunks = zip(count(0, options.chunk), texts_of_chunks, strict=False)
    ahead = is_fast and (total is None or total > options.chunk)
    truncated = wordless = done = 0
    with sentence_progress(total, options.show_progress) as advance:
        for ids, cut in prefetch(chunks, tokens) if ahead else map(tokens, chunks):
            truncated, done = truncated + cut, done + len(ids)
            wordless += encoder.tokenizer.wordless(ids)
            rows = embed(encoder, ids, budget, options.precision, advance, options.batch_size)
            yield options.finish(rows)
    if truncated and options.on_overflow == "warn":
        limit = encoder.limit_of(options.task)
        warn(f"{truncated} of {done} sentences were cut at {limit} tokens")
    if wordless:
        warn(
            f"{wordless} of {done} sentences have no word that {encoder.tokenizer.source} knows, "
            "and all get the same vector"
        )


def overlaps(encoder: SentenceEncoder) -> bool:
    """Whether tokenizing leaves the device of ``encoder`` free to compute."""
    return encoder.device.type != "cpu"


def token_ids(
    encoder: SentenceEncoder,
    texts: Sequence[str],
    before: int,
    on_overflow: str,
    prompt: str = "",
    task: str | None = None,
) -> tuple[list[np.ndarray], int]:
    """Token ids of ``texts``, and how many were cut at the encoder's length for the ``task``.

    Each has ``prompt`` before it. Raises DataError, counting from ``before``, if an item is no
    valid string, has no token, or is too long and ``on_overflow`` is ``error``.
    """
    require_text(texts, "sentence", before)
    if prompt:
        texts = [prompt + text for text in texts]
    limit = encoder.limit_of(task)
    ids, cut = encoder.tokenizer.ids(texts, limit)
    empty = next((n for n, row in enumerate(ids) if not len(row)), None)
    if empty is not None:
        raise DataError(f"text {before + empty} has no token: {texts[empty][:80]!r}; leave it out")
    if cut and on_overflow == "error":
        raise DataError(
            f"{cut} of the sentences {before} to {before + len(texts) - 1} are longer than "
            f"{limit} tokens; shorten them or pass on_overflow='truncate'"
        )
    expansion = encoder.conventions.expansion_of(task)
    if expansion is not None and expansion.attend:
        token = encoder.tokenizer.filler(expansion.token)
        ids = [
            np.pad(row, (0, max(0, expansion.length - len(row))), constant_values=token)
            for row in ids
        ]
    return ids, cut


def embed(
    encoder: SentenceEncoder,
    ids: Sequence[np.ndarray],
    batch_tokens: int,
    precision: str,
    advance: Callable[[int], None],
    batch_size: int | None = None,
) -> np.ndarray:
    """Embed sentences given as token ids, ``(N, D)`` float32 in their order.

    ``batch_tokens`` padded tokens, of at most ``batch_size`` sentences, are computed at once, and
    no embedding is cut to the encoder's ``truncate_dim``; ``advance`` is called after each batch
    with its number of sentences.
    """
    rows = np.empty((len(ids), encoder.full_width), np.float32)
    device = encoder.device
    keep_freed_memory()
    together = _BATCHES_ON_A_CPU if device.type == "cpu" else _BATCHES_ON_A_DEVICE
    waiting: list[np.ndarray] = []
    pooled: list[torch.Tensor] = []
    with (
        nullcontext() if encoder.is_serving else evaluating(encoder),
        torch.inference_mode(),
        matrix_precision(precision, device),
        encoder.backbone.unchanging(),
    ):
        batches = list(by_length([len(i) for i in ids], batch_tokens, batch_size))
        for number, numbers in enumerate(batches, start=1):
            batch = pack([ids[n] for n in numbers]).to(device)
            pooled.append(encoder(batch).pooled[0].float())
            waiting.append(numbers)
            if len(waiting) == together or number == len(batches):
                rows[np.concatenate(waiting)] = torch.cat(pooled).cpu().numpy()
                waiting.clear()
                pooled.clear()
            if number % _BATCHES_BETWEEN_TRIMS == 0:
                give_back_freed_memory()
            advance(len(numbers))
    return rows


def by_length(
    lengths: Sequence[int], batch_tokens: int, batch_size: int | None = None
) -> Iterator[np.ndarray]:
    """Cut sentences, longest first, into batches of at most ``batch_tokens`` padded tokens.

    And of at most ``batch_size`` sentences. Yields the numbers of a batch's sentences. What the
    first batches free suffices for the others. A sentence that is longer is a batch of its own.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable")
    start = 0
    while start < len(order):
        count = max(batch_tokens // max(lengths[order[start]], 1), 1)
        end = start + min(count, batch_size or count)
        yield order[start:end]
        start = end
