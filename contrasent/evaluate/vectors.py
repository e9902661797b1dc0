"""Vectors in place of an encoder: a matrix with a row per sentence, or the vectors of words.

Shapes: P pairs, D numbers in a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from contrasent.data.readers import lines
from contrasent.errors import CheckpointError, ConfigError
from contrasent.evaluate.described import Embeddings
from contrasent.evaluate.read import Task

_WORDS = (".txt", ".vec")
_ALIKE = 1e-3


def holds_vectors(model: str) -> bool:
    """Whether a model is named by a file of vectors: ``.npy``, or ``.txt`` and ``.vec`` of words.

    The files of words may be gzipped.
    """
    name = model.lower().removesuffix(".gz")
    return name.endswith((".npy", *_WORDS))


def open_vectors(path: str, tasks: Sequence[Task]) -> Rows | Words:
    """Read what :func:`holds_vectors` knows.

    Args:
        path: the file.
        tasks: what is to be scored; a matrix belongs to one of them.

    Raises:
        CheckpointError: the file is missing or damaged, or has not two rows for each pair.
        ConfigError: a matrix is to be scored on more or less than one task.
    """
    if not Path(path).is_file():
        raise CheckpointError(f"there is no file {path}; look for a misspelling")
    return Rows(path, tasks) if path.lower().endswith(".npy") else Words(path)


class _Vectors:
    """What files of vectors have in common."""

    pooler = "vectors"

    def __init__(self, path: str) -> None:
        self.name = path

    def resolve_precision(self, name: str) -> str:
        """``fp32``, as nothing is computed here but means of words.

        Raises:
            ConfigError: something else was asked for.
        """
        if name not in ("auto", "fp32"):
            raise ConfigError(f"{self.name} holds vectors, which are scored in fp32, not {name}")
        return "fp32"


class Rows(_Vectors):
    """A matrix ``(2 * P, D)``: the first sentences of all pairs of one task, then the second.

    ``(P, 2, D)``, both sentences of a pair together, is understood too.
    """

    def __init__(self, path: str, tasks: Sequence[Task]) -> None:
        super().__init__(path)
        if len(tasks) != 1:
            raise ConfigError(
                f"{path} holds the vectors of one task's pairs; name that one with --tasks, not "
                f"{len(tasks)}"
            )
        sentences = [
            sentence
            for side in ("first", "second")
            for subset in tasks[0].subsets
            for sentence in getattr(subset, side)
        ]
        self._matrix = _matrix(path, len(sentences) // 2, tasks[0].name.heading)
        self._places: dict[str, int] = {}
        for row, sentence in enumerate(sentences):
            known = self._places.setdefault(sentence, row)
            if not _alike(self._matrix[known], self._matrix[row]):
                raise CheckpointError(
                    f"{path}: rows {known} and {row} differ, but belong to the same sentence "
                    f"{sentence!r}; the rows are to be the first sentences of all pairs in the "
                    "order of the file, then the second"
                )

    def encode(self, sentences: list[str], *, precision: str, show_progress: bool) -> Embeddings:
        """The rows of N of the task's sentences, ``(N, D)``; the other arguments say nothing.

        Raises:
            CheckpointError: a sentence is none of the task's.
        """
        del precision, show_progress
        unknown = next((s for s in sentences if s not in self._places), None)
        if unknown is not None:
            raise CheckpointError(f"{self.name} has no row for the sentence {unknown!r}")
        return self._matrix[[self._places[sentence] for sentence in sentences]]


class Words(_Vectors):
    """A text file of a word and D numbers per line, as GloVe's; a sentence is their mean.

    As in SentEval's bag of words: words are what stands between spaces, those that the file does
    not have are left out, and none is weighted. A word that is not there is looked for in lower
    case. A first line of two numbers, as fastText's, is no word.
    """

    def encode(self, sentences: list[str], *, precision: str, show_progress: bool) -> Embeddings:
        """The mean vector of N sentences, ``(N, D)``, zeros for one without a known word.

        Raises:
            CheckpointError: a line is not a word and D numbers.
        """
        del precision, show_progress
        words = {word for sentence in sentences for word in sentence.split()}
        known = self._read(words | {word.lower() for word in words})
        if not known:
            raise CheckpointError(f"{self.name} has none of the words that are to be scored")
        nothing = np.zeros(len(next(iter(known.values()))), np.float32)
        rows = []
        for sentence in sentences:
            found = [known.get(word, known.get(word.lower())) for word in sentence.split()]
            vectors = [vector for vector in found if vector is not None]
            rows.append(np.mean(vectors, axis=0) if vectors else nothing)
        return np.stack(rows).astype(np.float32)

    def _read(self, wanted: set[str]) -> dict[str, Embeddings]:
        found: dict[str, Embeddings] = {}
        width = 0
        for number, line in lines(Path(self.name)):
            cells = line.rstrip().split(" ")
            if number == 1 and len(cells) == 2:
                continue
            width = width or len(cells) - 1
            if len(cells) - 1 != width or not width:
                raise CheckpointError(
                    f"{self.name}:{number}: {len(cells) - 1} numbers after the word instead of "
                    f"{width or 'one or more'}; a line is a word and its vector, between spaces"
                )
            if cells[0] in wanted:
                found.setdefault(cells[0], self._vector(cells[1:], number))
        return found

    def _vector(self, cells: list[str], number: int) -> Embeddings:
        try:
            return np.array(cells, dtype=np.float32)
        except ValueError as error:
            raise CheckpointError(f"{self.name}:{number}: no vector: {error}") from error


def _matrix(path: str, pairs: int, heading: str) -> Embeddings:
    try:
        matrix = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise CheckpointError(f"{path}: not a readable .npy file: {error}") from error
    if matrix.ndim == 3 and matrix.shape[1] == 2:
        matrix = np.concatenate([matrix[:, 0], matrix[:, 1]])
    if matrix.ndim != 2 or not np.issubdtype(matrix.dtype, np.floating):
        raise CheckpointError(
            f"{path} holds {matrix.dtype} numbers of shape {matrix.shape}; a row of floating-point "
            "numbers is needed for each sentence"
        )
    if len(matrix) != 2 * pairs:
        raise CheckpointError(
            f"{path} has {len(matrix)} rows, but {heading} has {pairs} scored pairs, so it needs "
            f"{2 * pairs}: the first sentences of all pairs, then the second"
        )
    rows: Embeddings = matrix.astype(np.float32)
    return rows


def _alike(one: Embeddings, other: Embeddings) -> bool:
    """Whether two rows are equal but for rounding; NaN is told of elsewhere."""
    largest = np.abs(one).max(where=np.isfinite(one), initial=0)
    return bool(np.allclose(one, other, rtol=0, atol=_ALIKE * largest, equal_nan=True))
