"""What the contestants work on: sentences and an encoder's folder, the same for all of them."""

import gzip
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.flops import Model
from contrasent.data import Tokenizer
from contrasent.errors import DataError
from contrasent.model import quiet, resolve

RANDOM_BASE, RANDOM_MINILM = "bert-base-random", "minilm-random"
"""Masked language models with random weights, made on the spot: as fast as trained ones."""

_SHAPES: dict[str, dict[str, Any]] = {
    RANDOM_BASE: {},
    RANDOM_MINILM: {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
    },
}
"""Where their shape is another than BERT-base's."""
_VOCABULARY_OF = "all-MiniLM-L6-v2"  # BERT's, uncased


@dataclass(frozen=True)
class Material:
    """Sentences, an encoder, and a folder for what contestants exchange."""

    texts: Sequence[str]
    encoder: Path
    place: Path  # which goes when the benchmark is done

    def settings(self, **others: Any) -> dict[str, Any]:
        """Settings of a contestant, which reads the sentences from a JSON list."""
        path = self.place / "texts.json"
        path.write_text(json.dumps(list(self.texts)), encoding="utf-8")
        return {"folder": str(self.encoder), "texts": str(path), **others}

    @cached_property
    def model(self) -> Model:
        """The shape of the encoder."""
        return Model.of(self.encoder)

    def lengths(self, tokens: int | None = None) -> list[int]:
        """Tokens of each sentence, cut at ``tokens``, special ones included."""
        found, _ = Tokenizer.load(self.encoder).ids(self.texts, tokens)
        return [len(ids) for ids in found]


@contextmanager
def gathered(encoder: str, source: str | None, count: int) -> Iterator[Material]:
    """Find the encoder, and the first ``count`` sentences of ``source``."""
    with TemporaryDirectory(prefix="contrasent-benchmark-") as place:
        folder = Path(place)
        made = encoder in _SHAPES
        found = random_masked_lm(encoder, folder / encoder) if made else resolve(encoder)
        yield Material(sentences(source, count), found, folder)


def sentences(source: str | None, count: int) -> list[str]:
    """The first ``count`` sentences of a text file, by default of the text of the quickstart.

    Blank lines are left out; a file that has fewer is read again, one without any is a DataError.
    """
    path = Path(source or str(files("contrasent") / "quickstart_data" / "wikipedia.txt"))
    opened = gzip.open if path.suffix == ".gz" else open
    found: list[str] = []
    with opened(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line.strip():
                found.append(line.strip())
            if len(found) == count:
                return found
    if not found:
        raise DataError(f"{path} holds no sentence; name a text file with one per line")
    return (found * (count // len(found) + 1))[:count]


def random_masked_lm(name: str, folder: Path) -> Path:
    """Write the masked language model ``name``, and BERT's tokenizer, to ``folder``."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    tokenizer = Tokenizer.load(resolve(_VOCABULARY_OF))
    torch.manual_seed(0)
    config = BertConfig(vocab_size=tokenizer.vocabulary, **_SHAPES[name])
    with quiet():
        BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save(folder)
    return folder
