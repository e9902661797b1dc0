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
from contrasent.files import write_json
from contrasent.model.backbones.word_lstm import WordLstm
from contrasent.model.st_modules import LstmConfig, WordsConfig, read_settings
from contrasent.model.weights import SAFE, read_exact


def write_words(path: Path, tokenizer: Tokenizer, max_tokens: int | None) -> None:
    """Write the vectors, which words stand around every sentence, and where long ones are cut."""
    if not isinstance(tokenizer, WordTokenizer):
        raise TypeError(f"an LSTM over word vectors reads words, not what {tokenizer.source} makes")
    config = {"marks": list(tokenizer.marks), "max_seq_length": max_tokens}
    write_json(path / "config.json", config)
    tokenizer.save(path)


def read_words(path: Path) -> tuple[WordTokenizer, int | None]:
    """The vectors and marks, and where long sentences are cut."""
    config: WordsConfig = read_settings("WordVectors", path)
    return WordTokenizer(WordStore(path), config.marks), config.max_seq_length


def write_lstm(path: Path, backbone: WordLstm) -> None:
    """Write the LSTM as sentence-transformers' module."""
    config = {
        "word_embedding_dimension": backbone.store.width,
        "hidden_dim": backbone.width // 2,
        "num_layers": 1,
        "dropout": 0,
        "bidirectional": True,
    }
    write_json(path / "lstm_config.json", config)
    state = backbone.lstm.state_dict().items()
    save_file({f"encoder.{n}": t.detach().cpu() for n, t in state}, path / SAFE)


def read_lstm(path: Path, store: WordStore) -> WordLstm:
    """The LSTM of a module, over the vectors of ``store``."""
    config: LstmConfig = read_settings("LSTM", path)
    if config.embedding_dimension not in (None, store.width):
        raise CheckpointError(
            f"{path} is an LSTM over vectors of {config.embedding_dimension} numbers, but these "
            f"have {store.width}"
        )
    backbone = WordLstm(store, config.hidden_dim)
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
