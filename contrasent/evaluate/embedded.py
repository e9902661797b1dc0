"""Texts embedded for a score: each once, and no embedding from which a score cannot be computed.

Shapes: M texts, N distinct ones, D embedding width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from contrasent.errors import CheckpointError
from contrasent.evaluate.described import Embeddings, Encoder

Places = NDArray[np.int64]


def distinct(texts: Iterable[str]) -> tuple[list[str], Places]:
    """Each of M texts once, in the order in which they first come, and where each stands there.

    Returns:
        N texts, and places ``(M,)`` among them.
    """
    places: dict[str, int] = {}
    found = [places.setdefault(text, len(places)) for text in texts]
    return list(places), np.array(found, dtype=np.int64)


def encoded(
    encoder: Encoder, texts: Sequence[str], *, precision: str, show_progress: bool
) -> Embeddings:
    """One row per text, ``(N, D)``, whatever is in it.

    Raises:
        CheckpointError: the encoder gives another number of rows.
    """
    found = encoder.encode(list(texts), precision=precision, show_progress=show_progress)
    if found.ndim != 2 or len(found) != len(texts):
        raise CheckpointError(f"{encoder.name} gave a matrix {found.shape} for {len(texts)} texts")
    return found


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
