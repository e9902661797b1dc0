"""Files of vectors in place of an encoder: a matrix with a row per sentence, or words.

Shapes: N sentences, D numbers in a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contrasent.errors import CheckpointError, ConfigError
from contrasent.evaluation.embed import Embeddings
from contrasent.evaluation.task_names import RowLayout, joined_sources
from contrasent.model.lookup_encoders import WordEncoder
from contrasent.options import Loading, shared

if TYPE_CHECKING:
    from contrasent.model.loading import LoadedEncoder

_ALIKE = 1e-3


def load_or_open(
    options: Loading, model: str, layouts: Sequence[RowLayout] = ()
) -> LoadedEncoder | MatrixEncoder:
    """The encoder, or the vectors of words or of the sentences of a task.

    Words are in a ``.txt`` or ``.vec``, perhaps gzipped; rows for sentences in a ``.npy``, or in
    several joined by ``+`` that follow one another.
    """
    from contrasent.model.loading import load_encoder

    name = model.lower().removesuffix(".gz")
    if not name.endswith((".npy", ".txt", ".vec")):
        return load_encoder(model, **shared(options, Loading))
    missing = next((file for file in joined_sources(model) if not Path(file).is_file()), None)
    if missing is not None:
        raise CheckpointError(f"there is no file {missing}; look for a misspelling")
    return MatrixEncoder(model, layouts) if name.endswith(".npy") else WordEncoder.load(model)


class MatrixEncoder:
    """A matrix ``(N, D)``, or ``(P, 2, D)`` of pairs, with a row for every sentence of one task."""

    pooler = "vectors"

    def __init__(self, path: str, tasks: Sequence[RowLayout]) -> None:
        if len(tasks) != 1:
            raise ConfigError(
                f"{path} holds the vectors of one task; name that one with --tasks, not "
                f"{len(tasks)}"
            )
        (task,) = tasks
        # A sentence has to be looked for on its side.
        self.name, self.apart = path, task.apart
        needed = ", then ".join(f"{len(texts)} {name}" for name, texts in task.sides.items())
        self._matrix = _matrix(path)
        rows, total = len(self._matrix), sum(map(len, task.sides.values()))
        if rows != total:
            raise CheckpointError(
                f"{path} has {rows} rows, but {task.heading} needs {total}: {needed}"
            )
        self._places: list[dict[str, int]] = []
        row = 0
        for sentences in task.sides.values():
            if not self._places or task.apart:
                self._places.append({})
            for sentence in sentences:
                known = self._places[-1].setdefault(sentence, row)
                one, other = self._matrix[known], self._matrix[row]
                largest = np.abs(one).max(where=np.isfinite(one), initial=0)
                # Equal but for rounding; NaN is told of elsewhere.
                if not np.allclose(one, other, rtol=0, atol=_ALIKE * largest, equal_nan=True):
                    raise CheckpointError(
                        f"{path}: rows {known} and {row} differ, but belong to the same sentence "
                        f"{sentence!r}; the rows are to be {needed}, in the order of the file"
                    )
                row += 1

    def resolve_precision(self, name: str) -> str:
        """``fp32``, as nothing is computed here, whatever its name."""
        del name
        return "fp32"

    def encode(self, sentences: list[str], *, precision: str, show_progress: bool) -> Embeddings:
        """As :meth:`encode_side`; precision and progress change nothing."""
        del precision, show_progress
        return self.encode_side(0, sentences)

    def encode_side(self, side: int, sentences: Sequence[str]) -> Embeddings:
        """The rows of N sentences of a side, ``(N, D)``; of all where these are not apart."""
        places = self._places[side]
        unknown = next((sentence for sentence in sentences if sentence not in places), None)
        if unknown is not None:
            raise CheckpointError(f"{self.name} has no row for the sentence {unknown!r}")
        return self._matrix[[places[sentence] for sentence in sentences]]


def _matrix(path: str) -> Embeddings:
    matrices = []
    for file in joined_sources(path):
        try:
            matrix = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise CheckpointError(f"{file}: not a readable .npy file: {error}") from error
        has_rows = matrix.ndim == 2 or (matrix.ndim == 3 and matrix.shape[1] == 2)
        if not has_rows or not np.issubdtype(matrix.dtype, np.floating):
            raise CheckpointError(
                f"{file} holds {matrix.dtype} numbers of shape {matrix.shape}; a row of "
                "floating-point numbers is needed for each sentence"
            )
        matrices.append(matrix)
    if len({matrix.shape[1:] for matrix in matrices}) > 1:
        shapes = " and ".join(str(matrix.shape) for matrix in matrices)
        raise CheckpointError(f"{path}: matrices of {shapes} cannot be joined")
    rows: Embeddings = np.concatenate(matrices).astype(np.float32)
    # Of pairs all firsts, then all seconds.
    return rows if rows.ndim == 2 else np.concatenate([rows[:, 0], rows[:, 1]])
