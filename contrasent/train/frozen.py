"""Embeddings of an encoder that stays as it is, for what is fitted on them.

Shapes: N sentences of a text, n of a batch, D width.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from contrasent.data.batch import pack
from contrasent.errors import CheckpointError
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.encoding import token_ids
from contrasent.model.precision import matrix_precision

_AT_ONCE = 8192
"""Sentences that are embedded at a time."""


class Text(Protocol):
    """Sentences that can be read more than once."""

    def __iter__(self) -> Iterator[str]:
        """Yield the sentences."""

    def __len__(self) -> int:
        """N."""


def finite_rows(
    encoder: SentenceEncoder, text: Iterable[str], precision: str, show_progress: bool = False
) -> Iterator[NDArray[np.float32]]:
    """Embeddings before normalisation, block by block in the order of the text.

    Raises:
        CheckpointError: one is not finite.
    """
    blocks = encoder.encode_stream(
        text, chunk=_AT_ONCE, normalize=False, precision=precision, show_progress=show_progress
    )
    done = 0
    for rows in blocks:
        damaged = ~np.isfinite(rows).all(axis=1)
        if damaged.any():
            raise CheckpointError(
                f"the embedding of sentence {done + int(damaged.argmax())} has a NaN or an "
                f"infinite number, so nothing can be fitted; is {encoder.name} damaged?"
            )
        done += len(rows)
        yield rows


class StoredRows(AbstractContextManager["StoredRows"]):
    """All embeddings, made once and kept in a temporary file."""

    def __init__(
        self, encoder: SentenceEncoder, text: Text, precision: str, show_progress: bool
    ) -> None:
        self._device = encoder.device
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            shape = (len(text), encoder.width)
            self._rows = np.memmap(Path(folder) / "rows", np.float32, "w+", shape=shape)
            done = 0
            for rows in finite_rows(encoder, text, precision, show_progress):
                self._rows[done : done + len(rows)] = rows
                done += len(rows)
            self._kept = stack.pop_all()

    @override
    def __exit__(self, *_: object) -> None:
        del self._rows
        self._kept.close()

    def batch(self, numbers: NDArray[np.int64], *, dropout: bool) -> Tensor:
        """``(n, D)`` embeddings of the sentences with these numbers; none has dropout."""
        del dropout
        return torch.from_numpy(self._rows[numbers]).to(self._device)


class DrawnRows(AbstractContextManager["DrawnRows"]):
    """Embeddings made anew whenever they are asked for, under new dropout masks."""

    def __init__(self, encoder: SentenceEncoder, text: Text, precision: str) -> None:
        self._encoder = encoder
        self._precision = encoder.resolve_precision(precision)
        self._ids: Sequence[NDArray[np.int64]] = token_ids(encoder, list(text), 0, "truncate")[0]

    @override
    def __enter__(self) -> Self:
        self._was_training = self._encoder.training
        return self

    @override
    def __exit__(self, *_: object) -> None:
        self._encoder.train(self._was_training)

    def batch(self, numbers: NDArray[np.int64], *, dropout: bool) -> Tensor:
        """``(n, D)`` embeddings of the sentences with these numbers."""
        device = self._encoder.device
        self._encoder.train(dropout)
        batch = pack([self._ids[number] for number in numbers]).to(device)
        with torch.no_grad(), matrix_precision(self._precision, device):
            rows: Tensor = self._encoder(batch).pooled[0]
        return rows
