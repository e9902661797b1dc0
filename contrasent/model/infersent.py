"""The published InferSent encoders: torch weights beside a file of word vectors."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from contrasent.data.word_vectors import MARKS, WordTokenizer, open_words
from contrasent.errors import CheckpointError
from contrasent.files import sha256_of
from contrasent.model.backbones.word_lstm import WordLstm
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.st_words import shape_of
from contrasent.model.weights import load_exact

VERSIONS = {1: MARKS[0], 2: MARKS[1]}
"""What each version puts around a sentence: 1 was trained over GloVe, 2 over fastText."""

_PREFIX = "enc_lstm."


def read_infersent(weights: Path, words: Path, version: int) -> SentenceEncoder:
    """The encoder of ``infersent1.pkl`` or ``infersent2.pkl`` (facebookresearch/InferSent).

    The file is read by torch's ``weights_only`` reader, which builds tensors and nothing else.

    Args:
        weights: the file.
        words: the vectors that it was trained over: ``glove.840B.300d.txt`` for version 1,
            ``crawl-300d-2M.vec`` for version 2.
        version: a key of :data:`VERSIONS`.

    Raises:
        CheckpointError: a file is missing or damaged, holds anything but tensors, or they do not
            fit each other.
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
    encoder = SentenceEncoder(backbone, tokenizer, "max")
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
