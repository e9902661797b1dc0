"""Word vectors and LSTM of a sentence-transformers folder, its first two modules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from contrasent.data.tokenizer import Tokenizer
from contrasent.data.word_vectors import WordStore, WordTokenizer
from contrasent.errors import CheckpointError
from contrasent.model.backbones.word_lstm import WordLstm
from contrasent.model.st_layers import read_json, write_json
from contrasent.model.weights import read_exact

_WORDS_CONFIG, _LSTM_CONFIG, _WEIGHTS = "config.json", "lstm_config.json", "model.safetensors"
_LIMIT = "max_seq_length"
_KEYS = ("word_embedding_dimension", "embedding_dimension")
"""Of the LSTM module: as every version reads it, and as the newest writes it."""


def write_words(path: Path, tokenizer: Tokenizer, max_tokens: int | None) -> None:
    """Write the vectors, which words stand around every sentence, and where long ones are cut."""
    if not isinstance(tokenizer, WordTokenizer):
        raise TypeError(f"an LSTM over word vectors reads words, not what {tokenizer.source} makes")
    config = {"marks": list(tokenizer.marks), _LIMIT: max_tokens}
    write_json(path / _WORDS_CONFIG, config)
    tokenizer.save(path)


def read_words(path: Path) -> tuple[WordTokenizer, int | None]:
    """The vectors and marks, and where long sentences are cut."""
    store, config = WordStore(path), read_json(path / _WORDS_CONFIG)
    try:
        limit = config[_LIMIT]
        return WordTokenizer(store, config["marks"]), None if limit is None else int(limit)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path / _WORDS_CONFIG} is damaged: {error!r}") from error


def write_lstm(path: Path, backbone: WordLstm) -> None:
    """Write the LSTM as sentence-transformers' module."""
    config = {
        _KEYS[0]: backbone.store.width,
        "hidden_dim": backbone.width // 2,
        "num_layers": 1,
        "dropout": 0,
        "bidirectional": True,
    }
    write_json(path / _LSTM_CONFIG, config)
    state = backbone.lstm.state_dict().items()
    save_file({f"encoder.{n}": t.detach().cpu() for n, t in state}, path / _WEIGHTS)


def read_lstm(path: Path, store: WordStore) -> WordLstm:
    """The LSTM of a module, over the vectors of ``store``."""
    config = read_json(path / _LSTM_CONFIG)
    try:
        size, layers, both = (config[n] for n in ("hidden_dim", "num_layers", "bidirectional"))
        width = next(config[key] for key in _KEYS if key in config)
        backbone = WordLstm(store, int(size))
    except (AttributeError, LookupError, RuntimeError, StopIteration, TypeError, ValueError) as e:
        raise CheckpointError(f"{path / _LSTM_CONFIG} is damaged: {e!r}") from e
    if (width, layers, both) != (store.width, 1, True):
        raise CheckpointError(
            f"{path} is an LSTM of {layers} layers over {width} numbers, bidirectional {both}; "
            f"over these vectors of {store.width} numbers, one bidirectional layer is computed"
        )
    read_exact(backbone.lstm, path, shape_of(backbone), "encoder.")
    return backbone


def shape_of(backbone: WordLstm) -> str:
    """What decides the shapes of its weights, in words."""
    return (
        f"an LSTM of {backbone.width // 2} dimensions for each direction over vectors of "
        f"{backbone.store.width}"
    )


class WordVectors(nn.Module):
    """How sentence-transformers loads the words, where this package is installed and trusted."""

    def __init__(self, tokenizer: WordTokenizer, max_tokens: int | None) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.max_seq_length = max_tokens

    def preprocess(self, texts: Sequence[str], *_: object, **__: object) -> dict[str, Tensor]:
        """Rows of the words of each text, padded on the right."""
        ids, _cut = self.tokenizer.ids(list(texts), self.max_seq_length)
        rows = [torch.from_numpy(row).long() for row in ids]
        lengths = torch.tensor([len(row) for row in rows])
        padded = pad_sequence(rows, batch_first=True)
        mask = torch.arange(padded.shape[1]) < lengths.unsqueeze(1)
        return {"input_ids": padded, "attention_mask": mask.long(), "sentence_lengths": lengths}

    tokenize = preprocess

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Put the vectors beside their rows."""
        rows = features["input_ids"]
        vectors = torch.from_numpy(self.tokenizer.store.select(rows.cpu().numpy()))
        features["token_embeddings"] = vectors.to(rows.device)
        return features

    def get_word_embedding_dimension(self) -> int:
        """D, dimensions of a vector."""
        return self.tokenizer.store.width

    def save(self, output_path: str, *_: object, **__: object) -> None:
        """Write it into a folder."""
        Path(output_path).mkdir(parents=True, exist_ok=True)
        write_words(Path(output_path), self.tokenizer, self.max_seq_length)

    @classmethod
    def load(cls, input_path: str) -> Self:
        """Read it from a folder."""
        return cls(*read_words(Path(input_path)))
