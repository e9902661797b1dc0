"""Encoders of word vectors: means, SIF embeddings, and InferSent's published weights.

Shapes: N sentences, W words, D dimensions of a vector, C removed components.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from contrasent.data.word_vectors import (
    MANIFEST,
    MARKS,
    Vectors,
    WordStore,
    WordTokenizer,
    open_words,
)
from contrasent.errors import CheckpointError, ConfigError, DataError, warn
from contrasent.files import sha256_of, writing_folder
from contrasent.model.backbones.word_lstm import WordLstm
from contrasent.model.checkpoint import write_info
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.hub import INFO_FILE
from contrasent.model.precision import resolve_precision
from contrasent.model.protocol import Encoder, EncoderParts, EncodingOptions
from contrasent.model.st_words import shape_of
from contrasent.model.weights import load_exact
from contrasent.progress import sentence_progress

_WEIGHTS, _COMPONENTS = "weights.npy", "components.npy"
_ENDINGS = (".txt", ".vec", ".txt.gz", ".vec.gz")
_CHUNK = 8192


def are_words(name: str | Path) -> bool:
    """Whether an encoder is named by a file of word vectors, or a folder made of one."""
    path = Path(name).expanduser()
    return path.name.lower().endswith(_ENDINGS) or (path / MANIFEST).is_file()


class WordEncoder(Encoder):
    """Sentences in, means of word vectors out; on the CPU, in fp32, without a transformer.

    Words are what stands between spaces. One that the vectors do not have is looked for in lower
    case, and left out of the mean if that is not there either. ``weights (W,)`` say what each
    counts; ``components (C, D)`` of length 1 are taken out. A sentence without a known word gets
    a vector of zeros; their number is warned of once in a call.
    """

    pooler, head_name = "vectors", "none"
    max_tokens = 0
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
        weights = self.weights
        if weights is None:
            weights = np.ones(self.store.words, np.float32)
        with writing_folder(folder) as partial:
            self.store.save(partial)
            np.save(partial / _WEIGHTS, weights)
            np.save(partial / _COMPONENTS, self.components)
            write_info(partial, {"pooler": self.pooler, "head": self.head_name, **info})

    @property
    @override
    def full_width(self) -> int:
        return self.store.width

    @override
    def to(self, device: str | torch.device) -> Self:
        if torch.device(device).type != "cpu":
            raise ConfigError(f"word vectors are averaged on the CPU, not on {str(device)!r}")
        return self

    @override
    def resolve_precision(self, name: str) -> str:
        return resolve_precision(name, ("fp32",), f"the mean of the word vectors in {self.name}")

    @override
    def count_truncated(self, texts: Sequence[str]) -> int:
        return 0

    @override
    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"words {self.store.sha256}".encode())
        if self.weights is not None:
            digest.update(np.ascontiguousarray(self.weights).tobytes())
        digest.update(np.ascontiguousarray(self.components).tobytes())
        return digest.hexdigest()

    @override
    def blocks(self, sentences: Iterable[str], options: EncodingOptions) -> Iterator[np.ndarray]:
        rest = iter(sentences)
        done = unknown = 0
        total = len(sentences) if isinstance(sentences, Sequence) else None
        with sentence_progress(total, options.show_progress) as advance:
            while texts := list(islice(rest, min(options.chunk, _CHUNK))):
                for number, text in enumerate(texts, start=done):
                    if not isinstance(text, str):
                        raise DataError(f"sentence {number} is {type(text).__name__}, no string")
                rows, known = self.means([options.prompt + text for text in texts])
                rows -= (rows @ self.components.T) @ self.components
                done, unknown = done + len(texts), unknown + int((known == 0).sum())
                yield options.finish(rows)
                advance(len(texts))
        if unknown:
            warn(
                f"{unknown} of {done} sentences have no word that {Path(self.name).name} knows, "
                "and get a vector of zeros"
            )

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


VERSIONS = {1: MARKS[0], 2: MARKS[1]}
"""What each version puts around a sentence: 1 was trained over GloVe, 2 over fastText."""

_PREFIX = "enc_lstm."


def read_infersent(weights: Path, words: Path, version: int) -> SentenceEncoder:
    """The encoder of ``infersent1.pkl`` or ``infersent2.pkl`` (facebookresearch/InferSent).

    ``words`` are the vectors it was trained over: ``glove.840B.300d.txt`` for version 1,
    ``crawl-300d-2M.vec`` for version 2. CheckpointError if they do not fit, or one is damaged.
    """
    tensors = _tensors(weights)
    recurrent = tensors.get("weight_hh_l0")
    if recurrent is None or recurrent.dim() != 2:
        raise CheckpointError(
            f"{weights} holds no {_PREFIX}weight_hh_l0, so it is no InferSent encoder; give "
            "infersent1.pkl or infersent2.pkl"
        )
    store = open_words(words)
    tokenizer = WordTokenizer(store, VERSIONS[version])
    backbone = WordLstm(store, recurrent.shape[1])
    load_exact(backbone.lstm, tensors, weights, shape_of(backbone))
    encoder = SentenceEncoder(EncoderParts(backbone=backbone, tokenizer=tokenizer, pooler="max"))
    encoder.name = str(weights)
    return encoder.eval()


def origin_of(weights: Path, words: Path, version: int) -> dict[str, object]:
    """What is kept of where an encoder was read from."""
    return {
        "weights": weights.name,
        "sha256": sha256_of(weights),
        "words": words.name,
        "version": version,
    }


def _tensors(path: Path) -> dict[str, Tensor]:
    """The LSTM's weights, by torch's names."""
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}; look for a misspelling")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        named = {str(name): value for name, value in state.items() if isinstance(value, Tensor)}
    except Exception as error:  # the reader raises what the damage leads to
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(
            f"{path} cannot be read as torch tensors and nothing else ({reason}); nothing in it "
            "was run"
        ) from error
    return {n.removeprefix(_PREFIX): t for n, t in named.items() if n.startswith(_PREFIX)}
