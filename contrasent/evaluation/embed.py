"""Embeddings for a score: an encoder and how it is used, each text embedded once.

Shapes: M texts, N distinct ones, D embedding width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from contrasent.errors import CheckpointError, pick
from contrasent.model.backbones.base import UNBOUNDED
from contrasent.records import installed_versions

PRECISIONS = ("bf16", "fp32", "int8")
"""``int8`` is what the engine of that name computes in."""

Embeddings = NDArray[np.float32]
Places = NDArray[np.int64]


class DescribedEncoder(Protocol):
    """What a score needs of an encoder; every :class:`contrasent.model.protocol.Encoder` has it.

    ``head_name``, ``transform_described``, ``max_tokens`` and ``engine`` go into the records too
    where an encoder has them.
    """

    @property
    def name(self) -> str:
        """The name or folder it was loaded from."""

    @property
    def pooler(self) -> str:
        """How token states become the embedding."""

    def encode(self, sentences: list[str], *, precision: str, show_progress: bool) -> np.ndarray:
        """Embed N sentences, ``(N, D)``."""


@dataclass(frozen=True, slots=True)
class EncoderUse:
    """An encoder and how it is used.

    Attributes:
        encoder: what is measured; the mode it is in (training or not) stays as it is.
        precision: ``fp32``, ``bf16``, or what the encoder's engine computes in.
        seed: the seed of the training run that made the encoder, for the records.
        show_progress: a progress bar while encoding.

    Raises:
        ConfigError: no such precision.
    """

    encoder: DescribedEncoder
    precision: str = "fp32"
    seed: int | None = None
    show_progress: bool = False

    def __post_init__(self) -> None:
        pick("precision", self.precision, PRECISIONS)

    def embed(self, texts: Sequence[str]) -> Embeddings:
        """One row per text, ``(N, D)``, whatever is in it.

        Raises:
            CheckpointError: the encoder gives another number of rows.
        """
        rows = self.encoder.encode(
            list(texts), precision=self.precision, show_progress=self.show_progress
        )
        if rows.ndim != 2 or len(rows) != len(texts):
            raise CheckpointError(
                f"{self.encoder.name} gave a matrix {rows.shape} for {len(texts)} texts"
            )
        return rows

    def record_fields(self) -> dict[str, Any]:
        """What every record says of the encoder, by the record's fields."""
        name = getattr(self.encoder, "engine", None)
        engine = None if name == "torch" else name
        limit = getattr(self.encoder, "max_tokens", None) or UNBOUNDED
        return {
            "encoder": self.encoder.name,
            "pooler": self.encoder.pooler,
            "head": getattr(self.encoder, "head_name", None),
            "transform": getattr(self.encoder, "transform_described", None),
            "max_tokens": limit if limit < UNBOUNDED else None,
            "engine": engine,
            "precision": self.precision,
            "seed": self.seed,
            "versions": installed_versions(engine),
        }


def distinct(texts: Iterable[str]) -> tuple[list[str], Places]:
    """Each of M texts once, in the order in which they first come, and where each stands there.

    Returns:
        N texts, and places ``(M,)`` among them.
    """
    places: dict[str, int] = {}
    numbers = [places.setdefault(text, len(places)) for text in texts]
    return list(places), np.array(numbers, dtype=np.int64)


def require_usable(
    name: str, texts: Sequence[str], rows: np.ndarray, *, of: str = "", zeros: bool = False
) -> None:
    """Make sure that every text has an embedding that a score can be computed from.

    Args:
        name: the encoder's.
        texts: N texts.
        rows: their embeddings ``(N, D)``.
        of: the task they are of; empty where the caller's caller puts it before the message.
        zeros: whether an embedding of zeros is of use, as that of a sentence without known words
            is to a classifier.

    Raises:
        CheckpointError: an embedding has a NaN or infinite number, or is zero; the message counts
            them and has the first text.
    """
    finite = np.isfinite(rows).all(axis=1)
    directed = np.logical_or(rows.any(axis=1), zeros)
    usable = finite & directed
    if usable.all():
        return
    flaws = [
        *([] if directed.all() else ["of zeros"]),
        *([] if finite.all() else ["with NaN or infinite numbers"]),
    ]
    raise CheckpointError(
        f"{of and f'{of}: '}{name} gives {int((~usable).sum())} of {len(usable)} texts an "
        f"embedding {' or '.join(flaws)}, so there is no score; the first is "
        f"{texts[int(np.argmin(usable))]!r}"
    )
