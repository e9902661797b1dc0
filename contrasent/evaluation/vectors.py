"""Files of vectors in place of an encoder: a matrix with a row per sentence, or words.

Shapes: N sentences, D numbers in a vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from contrasent.errors import CheckpointError, ConfigError
from contrasent.evaluation.embed import Embeddings
from contrasent.evaluation.task_names import joined_sources
from contrasent.model.word_encoder import WordEncoder
from contrasent.options import Loading, shared

if TYPE_CHECKING:
    from contrasent.model.loading import LoadedEncoder

_WORDS = (".txt", ".vec")
_ALIKE = 1e-3


@dataclass(frozen=True, slots=True)
class RowLayout:
    """What a matrix has to have rows for to stand in for an encoder on a task."""

    heading: str  # of the task
    # sentences in the order of the task's file, repeated ones each time, by what they are, such as
    # ``first sentences``. The rows stand side after side.
    sides: Mapping[str, Sequence[str]]
    # the same sentence may have another vector on the other side, as with encoders that tell
    # queries from documents
    apart: bool = False


def holds_vectors(model: str) -> bool:
    """Whether a model is named by files of vectors: ``.npy``, or ``.txt`` and ``.vec`` of words.

    The files of words may be gzipped; several ``.npy`` are joined by ``+``.
    """
    name = model.lower().removesuffix(".gz")
    return name.endswith((".npy", *_WORDS))


def open_vectors(path: str, tasks: Sequence[RowLayout]) -> MatrixEncoder | WordEncoder:
    """Read a file, or matrices joined by ``+`` whose rows follow one another, to score ``tasks``.

    CheckpointError if a file is missing or damaged, or has not a row for each sentence; ConfigError
    if a matrix is to be scored on more or less than one task.
    """
    missing = next((file for file in joined_sources(path) if not Path(file).is_file()), None)
    if missing is not None:
        raise CheckpointError(f"there is no file {missing}; look for a misspelling")
    return MatrixEncoder(path, tasks) if path.lower().endswith(".npy") else WordEncoder.load(path)


class MatrixEncoder:
    """A matrix ``(N, D)``, or ``(P, 2, D)`` of pairs, with a row for every sentence of one task."""

    pooler = "vectors"

    def __init__(self, path: str, tasks: Sequence[RowLayout]) -> None:
        self.name = path
        if len(tasks) != 1:
            raise ConfigError(
                f"{path} holds the vectors of one task; name that one with --tasks, not "
                f"{len(tasks)}"
            )
        (self._task,) = tasks
        self._matrix = _matrix(path, self._task)
        self._places: list[dict[str, int]] = []
        row = 0
        for sentences in self._task.sides.values():
            if not self._places or self._task.apart:
                self._places.append({})
            for sentence in sentences:
                self._require_alike(self._places[-1].setdefault(sentence, row), row, sentence)
                row += 1

    def resolve_precision(self, name: str) -> str:
        """``fp32``, as nothing is computed here; something else is a ConfigError."""
        if name not in ("auto", "fp32"):
            raise ConfigError(f"{self.name} holds vectors, which are scored in fp32, not {name}")
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

    @property
    def apart(self) -> bool:
        """Whether a sentence has to be looked for on its side."""
        return self._task.apart

    def _require_alike(self, known: int, row: int, sentence: str) -> None:
        one, other = self._matrix[known], self._matrix[row]
        largest = np.abs(one).max(where=np.isfinite(one), initial=0)
        # Equal but for rounding; NaN is told of elsewhere.
        if not np.allclose(one, other, rtol=0, atol=_ALIKE * largest, equal_nan=True):
            raise CheckpointError(
                f"{self.name}: rows {known} and {row} differ, but belong to the same sentence "
                f"{sentence!r}; the rows are to be {_sides(self._task)}, in the order of the file"
            )


def _matrix(path: str, task: RowLayout) -> Embeddings:
    matrices = [_load(file) for file in joined_sources(path)]
    widths = [matrix.shape[-1] for matrix in matrices]
    if len(set(widths)) > 1:
        raise CheckpointError(f"{path}: rows of {' and '.join(map(str, widths))} numbers")
    if len({matrix.ndim for matrix in matrices}) > 1:
        raise CheckpointError(f"{path}: some files hold rows and some pairs; give one of these")
    rows: Embeddings = np.concatenate(matrices).astype(np.float32)
    if rows.ndim == 3:  # all firsts, then all seconds
        rows = np.concatenate([rows[:, 0], rows[:, 1]])
    needed = sum(map(len, task.sides.values()))
    if len(rows) != needed:
        raise CheckpointError(
            f"{path} has {len(rows)} rows, but {task.heading} needs {needed}: {_sides(task)}"
        )
    return rows


def _load(path: str) -> Embeddings:
    try:
        matrix = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise CheckpointError(f"{path}: not a readable .npy file: {error}") from error
    has_rows = matrix.ndim == 2 or (matrix.ndim == 3 and matrix.shape[1] == 2)
    if not has_rows or not np.issubdtype(matrix.dtype, np.floating):
        raise CheckpointError(
            f"{path} holds {matrix.dtype} numbers of shape {matrix.shape}; a row of floating-point "
            "numbers is needed for each sentence"
        )
    rows: Embeddings = matrix
    return rows


def _sides(task: RowLayout) -> str:
    return ", then ".join(f"{len(sentences)} {name}" for name, sentences in task.sides.items())


def load_or_open(
    options: Loading, model: str, layouts: Sequence[RowLayout] = ()
) -> LoadedEncoder | MatrixEncoder:
    """The encoder, or the vectors of words or of the sentences of a task."""
    from contrasent.model.loading import load_encoder

    if holds_vectors(model):
        return open_vectors(model, layouts)
    return load_encoder(model, **shared(options, Loading))
