"""SimCSE's own tool (princeton-nlp/SimCSE, ``simcse/tool.py``) over `SentenceEncoder`.

``from contrasent.compat import SimCSE`` keeps arguments and return values. On purpose, the pooler
is what a folder says, or what is known of the published checkpoints, and else is taken from "unsup"
in the name with a warning; a head is never drawn at random; a search is exact, returns no text that
was not found, and what only speed depends on (faiss, cells, batch sizes) changes nothing.

Shapes: N sentences, M queries, D dimensions of an embedding. Precision is fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contrasent.data.readers import lines
from contrasent.data.tokenizer import sentences_of
from contrasent.errors import ConfigError, pick, warn

if TYPE_CHECKING:
    from torch import Tensor

Text = str | Sequence[str]
_HEADS = {"cls": "mlp", "cls_before_pooler": "none"}


class SimCseTool:
    """Embeds sentences, compares them, and searches among them."""

    def __init__(
        self,
        model_name_or_path: str | Path,
        device: str | None = None,
        num_cells: int = 100,
        num_cells_in_search: int = 10,
        pooler: str | None = None,
    ) -> None:
        from contrasent.model.checkpoint import is_sentence_encoder
        from contrasent.model.encoder import SentenceEncoder

        if pooler is None and not is_sentence_encoder(model_name_or_path):
            pooler = "cls_before_pooler" if "unsup" in str(model_name_or_path) else "cls"
            warn(f"{model_name_or_path} does not say how it makes an embedding: pooler {pooler!r}")
        head = None if pooler is None else _HEADS[pick("pooler", pooler, _HEADS)]
        self.encoder = SentenceEncoder.load(
            model_name_or_path, pooler=pooler and "cls", head=head, device=device
        )
        self.sentences: list[str] = []
        self.embeddings = np.empty((0, self.encoder.width), np.float32)

    def encode(
        self,
        sentence: Text,
        device: str | None = None,
        return_numpy: bool = False,
        normalize_to_unit: bool = True,
        keepdim: bool = False,
        batch_size: int = 64,
        max_length: int = 128,
    ) -> Tensor | np.ndarray:
        """``(N, D)`` embeddings, or ``(D,)`` of one string unless ``keepdim``, on the CPU."""
        import torch

        if device is not None:
            self.encoder.to(device)
        self.encoder.max_tokens = min(max_length, self.encoder.backbone.max_tokens)
        texts = [sentence] if isinstance(sentence, str) else list(sentences_of(sentence))
        rows: np.ndarray = self.encoder.encode(
            texts, normalize=normalize_to_unit, precision="fp32", on_overflow="truncate"
        )
        rows = rows[0] if isinstance(sentence, str) and not keepdim else rows
        return rows if return_numpy else torch.from_numpy(rows)

    def similarity(
        self, queries: Text, keys: Text | np.ndarray, device: str | None = None
    ) -> float | np.ndarray:
        """Cosines ``(M, N)`` of queries and keys, text or embeddings; a string has no axis."""
        rows = keys if isinstance(keys, np.ndarray) else np.asarray(self.encode(keys, device))
        unit = rows.astype(np.float64)
        unit /= np.maximum(np.linalg.norm(unit, axis=-1, keepdims=True), np.finfo(np.float64).tiny)
        cosines = (np.asarray(self.encode(queries, device)) @ unit.T).astype(np.float32)
        return cosines if cosines.ndim else float(cosines)

    def build_index(
        self,
        sentences_or_file_path: Text,
        use_faiss: bool | None = None,
        faiss_fast: bool = False,
        device: str | None = None,
        batch_size: int = 64,
    ) -> None:
        """Embed sentences, or the lines of a file; they stay in memory."""
        self.sentences, self.embeddings = [], self.embeddings[:0]
        self.add_to_index(sentences_or_file_path, device)

    def add_to_index(
        self, sentences_or_file_path: Text, device: str | None = None, batch_size: int = 64
    ) -> None:
        """Embed more sentences, or the lines of a file, and append them."""
        source = sentences_or_file_path
        if isinstance(source, str):
            more = [line.rstrip() for _, line in lines(Path(source)) if line.strip()]
        else:
            more = list(sentences_of(source))
        rows = np.asarray(self.encode(more, device))
        self.sentences = self.sentences + more
        self.embeddings = np.concatenate([self.embeddings, rows])

    def search(
        self, queries: Text, device: str | None = None, threshold: float = 0.6, top_k: int = 5
    ) -> Any:
        """The nearest sentences of a query with their cosines, best first; a list for each of M."""
        from contrasent.search.nearest import nearest

        if not self.sentences:
            raise ConfigError("there is no index yet; call build_index first")
        rows = np.asarray(self.encode(queries, device, keepdim=True))
        hits = [
            [(self.sentences[number], score) for number, score in found if score >= threshold]
            for found in nearest([self.embeddings], rows, top_k)
        ]
        return hits[0] if isinstance(queries, str) else hits


SimCSE = SimCseTool
"""Its name in the tool."""
