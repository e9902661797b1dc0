"""Encoders of a table's rows, which compute each sentence once however many tasks have it."""

from __future__ import annotations

from typing import Any

import numpy as np

from contrasent.evaluate.described import Embeddings, Encoder
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.transforms.base import Transform
from contrasent.reproduce.make import Workshop

_ROWS_AT_ONCE = 4096


class _OfRow:
    """An encoder under the name of its row; all else that tables tell of it stays visible."""

    def __init__(self, encoder: Encoder, name: str) -> None:
        self.name = name
        self._encoder = encoder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    @property
    def pooler(self) -> str:
        """How token states became the embedding."""
        return self._encoder.pooler


class Remembering(_OfRow):
    """An encoder that computes each sentence once."""

    def __init__(self, encoder: Encoder, name: str) -> None:
        """Wrap ``encoder`` under the ``name`` of its row."""
        super().__init__(encoder, name)
        self._rows: dict[str, int] = {}
        self._embeddings: list[Embeddings] = []

    def encode(
        self, sentences: list[str], *, precision: str = "fp32", show_progress: bool = False
    ) -> np.ndarray:
        """Embed N sentences, ``(N, D)``."""
        new = list(dict.fromkeys(it for it in sentences if it not in self._rows))
        if new:
            found = self._encoder.encode(new, precision=precision, show_progress=show_progress)
            self._rows.update({it: len(self._rows) + k for k, it in enumerate(new)})
            self._embeddings = [np.concatenate([*self._embeddings, found])]
        whole = self._embeddings[0]
        return np.ascontiguousarray(whole[[self._rows[it] for it in sentences]])


class Mapped(_OfRow):
    """An encoder with a transform, which maps the embeddings that are known without it."""

    def __init__(
        self, encoder: SentenceEncoder, transform: Transform, plain: Remembering, name: str
    ) -> None:
        """Wrap ``encoder``, which ends in ``transform``; ``plain`` is it without that."""
        super().__init__(encoder, name)
        self._transform = transform
        self._device = encoder.device
        self._plain = plain

    def encode(
        self, sentences: list[str], *, precision: str = "fp32", show_progress: bool = False
    ) -> np.ndarray:
        """Embed N sentences, ``(N, K)``."""
        rows = self._plain.encode(sentences, precision=precision, show_progress=show_progress)
        blocks = np.split(rows, range(_ROWS_AT_ONCE, len(rows), _ROWS_AT_ONCE))
        return np.concatenate([self._mapped(block) for block in blocks])

    def _mapped(self, rows: Embeddings) -> Embeddings:
        import torch

        with torch.no_grad():
            found = self._transform(torch.from_numpy(rows).to(self._device))
        mapped: Embeddings = found.cpu().numpy()
        return mapped


class Family:
    """Rows that are made from one another, whose maps share the embeddings they are maps of."""

    def __init__(self, workshop: Workshop) -> None:
        """Know nothing yet."""
        self._workshop = workshop
        self._plain: dict[tuple[str, str], Remembering] = {}

    def remembering(self, name: str) -> Remembering | Mapped:
        """The encoder of a row, made now if it is not there.

        Raises:
            ContrasentError: it cannot be made.
        """
        encoder, row = self._workshop.make(name), self._workshop.plan.rows[name]
        key = str(self._workshop.source(name)), encoder.pooler
        if not isinstance(encoder, SentenceEncoder) or encoder.normalize:
            return Remembering(encoder, name)
        if encoder.transform is not None:
            if key not in self._plain:
                self._plain[key] = Remembering(self._workshop.plain(name), name)
            return Mapped(encoder, encoder.transform, self._plain[key], name)
        once = Remembering(encoder, name)
        if row.make == "start":
            self._plain[key] = once
        return once
