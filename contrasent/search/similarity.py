"""How near two texts are."""

from __future__ import annotations

import numpy as np

from contrasent.errors import CheckpointError, DataError
from contrasent.search.encoder import TextEncoder


def similarity(encoder: TextEncoder, a: str, b: str, *, precision: str = "auto") -> float:
    """Cosine of the embeddings of two texts, in [-1, 1].

    Raises:
        DataError: a text is empty.
        CheckpointError: the encoder gives a vector without a direction.
    """
    for text in (a, b):
        if not text.strip():
            raise DataError(f"{text!r} is empty; a similarity needs two texts")
    rows = np.concatenate([*encoder.encode_stream([a, b], precision=precision)]).astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1)
    if not (np.isfinite(lengths).all() and lengths.all()):
        raise CheckpointError(f"{encoder.name} gives a vector without a direction; check it")
    return float(np.clip(rows[0] @ rows[1] / (lengths[0] * lengths[1]), -1.0, 1.0))
