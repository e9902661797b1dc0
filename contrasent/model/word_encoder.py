"""Encoders of word vectors: means, and SIF embeddings.

Shapes: N sentences, W words, D dimensions of a vector, C removed components.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from contrasent.data.word_vectors import MANIFEST, Vectors, WordStore, open_words
from contrasent.errors import CheckpointError
from contrasent.model.checkpoint import write_info, writing_encoder
from contrasent.model.hub import INFO_FILE
from contrasent.model.static_encoder import LookupEncoder

_WEIGHTS, _COMPONENTS = "weights.npy", "components.npy"
_ENDINGS = (".txt", ".vec", ".txt.gz", ".vec.gz")


def are_words(name: str | Path) -> bool:
    """Whether an encoder is named by a file of word vectors, or a folder made of one."""
    path = Path(name).expanduser()
    return path.name.lower().endswith(_ENDINGS) or (path / MANIFEST).is_file()


class WordEncoder(LookupEncoder):
    """Sentences in, means of word vectors out.

    Words are what stands between spaces. One that the vectors do not have is looked for in lower
    case, and left out of the mean if that is not there either. ``weights (W,)`` say what each
    counts; ``components (C, D)`` of length 1 are taken out. A sentence without a known word gets
    a vector of zeros; their number is warned of once in a call.
    """

    pooler = "vectors"
    vectors_named = "the word vectors"
    at_once = 8_192
    normalize = False
    transform_described: str | None = None

    def __init__(
        self,
        store: WordStore,
        name: str = "",
        weights: Vectors | None = None,
        components: Vectors | None = None,
        described: str | None = None,
    ) -> None:
        self.store = store
        self.name = name or store.source
        self.weights = weights
        none = np.zeros((0, store.width), np.float32)
        self.components = none if components is None else components
        self.transform_described = described
        self.known_part = f"word that {Path(self.name).name} knows"

    @classmethod
    def load(cls, name: str | Path) -> Self:
        """Read a file of word vectors, or a saved encoder; CheckpointError if it is damaged."""
        folder = Path(name).expanduser()
        if not (folder / MANIFEST).is_file():
            return cls(open_words(folder), str(name))
        store = WordStore(folder)
        try:
            weights = _array(folder / _WEIGHTS, (store.words,))
            components = _array(folder / _COMPONENTS, (-1, store.width))
            info = json.loads((folder / INFO_FILE).read_text(encoding="utf-8"))
            return cls(store, str(name), weights, components, info["transform"]["described"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise CheckpointError(
                f"{folder} is damaged ({type(error).__name__}: {error}); fit it again"
            ) from error

    def save(self, folder: str | Path, info: dict[str, Any]) -> None:
        """Write vectors, weights and components into one folder, with ``info`` beside them."""
        ones = np.ones(self.store.words, np.float32)
        weights = ones if self.weights is None else self.weights
        with writing_encoder(folder) as partial:
            self.store.save(partial)
            np.save(partial / _WEIGHTS, weights)
            np.save(partial / _COMPONENTS, self.components)
            write_info(partial, {"pooler": self.pooler, "head": self.head_name, **info})

    @property
    def full_width(self) -> int:
        return self.store.width

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"words {self.store.sha256}".encode())
        if self.weights is not None:
            digest.update(np.ascontiguousarray(self.weights).tobytes())
        digest.update(np.ascontiguousarray(self.components).tobytes())
        if kept := self.conventions.identity:
            digest.update(repr(kept).encode())
        return digest.hexdigest()

    def look_up(self, texts: Sequence[str]) -> tuple[np.ndarray, int]:
        rows, known = self.means(texts)
        rows -= (rows @ self.components.T) @ self.components
        return rows, int((known == 0).sum())

    def means(self, texts: Sequence[str]) -> tuple[Vectors, NDArray[np.int64]]:
        """``(N, D)`` weighted means before components are taken out, and ``(N,)`` known words."""
        from scipy.sparse import csr_matrix

        split = [text.split() for text in texts]
        rows = self.store.rows({word for words in split for word in words})
        numbers_of_each = [[rows[word] for word in words if word in rows] for words in split]
        known = np.array([len(numbers) for numbers in numbers_of_each], np.int64)
        flat = np.array([number for numbers in numbers_of_each for number in numbers], np.int64)
        used, columns = np.unique(flat, return_inverse=True)
        weights = np.ones(len(flat)) if self.weights is None else self.weights[flat].astype("f8")
        ends = np.concatenate([[0], np.cumsum(known)])
        counted = csr_matrix((weights, columns, ends), shape=(len(texts), len(used)))
        sums = counted @ self.store.vectors[used].astype(np.float64)
        return (sums / np.maximum(known, 1)[:, None]).astype(np.float32), known


def _array(path: Path, shape: tuple[int, ...]) -> Vectors:
    values: Vectors = np.load(path, allow_pickle=False)
    if values.dtype != np.float32 or values.shape != values.reshape(shape).shape:
        raise ValueError(f"{path.name} holds {values.dtype} of shape {values.shape}")
    return values
