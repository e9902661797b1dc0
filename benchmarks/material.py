"""What the contestants work on: sentences and an encoder's folder, the same for all of them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from contrasent.data import Tokenizer
from contrasent.encode import open_sentences
from contrasent.model import quiet, resolve

_SHAPES: dict[str, dict[str, int]] = {
    "bert-base-random": {},
    "minilm-random": {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
}
"""Masked language models with random weights, made on the spot: as fast as trained ones. Where
their shape is another than BERT-base's; the heads are 12."""
_VOCABULARY_OF = "all-MiniLM-L6-v2"  # BERT's, uncased


@dataclass(frozen=True)
class Material:
    """A source of sentences, an encoder, and a folder for what contestants exchange."""

    encoder: Path
    source: str  # the quickstart's text if empty
    place: Path  # which goes when the benchmark is done

    def texts(self, count: int) -> list[str]:
        """The first ``count`` sentences; a file that has fewer is read again."""
        source = self.source or str(files("contrasent") / "quickstart_data" / "wikipedia.txt")
        with open_sentences(source) as sentences:
            return list(islice(cycle(sentences), count))

    def settings(self, count: int, **others: Any) -> dict[str, Any]:
        """Settings of a contestant, which reads the sentences from a JSON list."""
        path = self.place / f"texts-{count}.json"
        path.write_text(json.dumps(self.texts(count)), encoding="utf-8")
        return {"folder": str(self.encoder), "texts": str(path), **others}

    def lengths(self, count: int, tokens: int | None = None) -> list[int]:
        """Tokens of each sentence, cut at ``tokens``, special ones included."""
        rows, _ = Tokenizer.load(self.encoder).ids(self.texts(count), tokens)
        return [len(ids) for ids in rows]


@contextmanager
def gathered(encoder: str, source: str) -> Iterator[Material]:
    """Find the encoder, and a place."""
    with TemporaryDirectory(prefix="contrasent-benchmark-") as place:
        made = Path(place) / encoder
        folder = random_masked_lm(encoder, made) if encoder in _SHAPES else resolve(encoder)
        yield Material(folder, source, Path(place))


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
