"""SimCSE's own tool (princeton-nlp/SimCSE, ``simcse/tool.py``) by ours; a search is exact."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from contrasent.data.readers import lines
from contrasent.errors import ConfigError, pick, warn
from contrasent.model.checkpoint import is_sentence_encoder
from contrasent.model.encoder import SentenceEncoder
from contrasent.search.nearest import nearest

Text = str | Sequence[str]
Named = str | None
_HEADS = {"cls": "mlp", "cls_before_pooler": "none"}


class SimCseTool:
    """Embeds sentences, compares them, and searches among them."""

    def __init__(
        self, model_name_or_path: str, device: Named = None, *, pooler: Named = None, **_: int
    ) -> None:
        name = model_name_or_path
        if pooler is None and not is_sentence_encoder(name):
            pooler = "cls_before_pooler" if "unsup" in str(name) else "cls"
            warn(f"{name} does not say how it makes an embedding: pooler {pooler!r}")
        head = pooler and _HEADS[pick("pooler", pooler, _HEADS)]
        self.encoder = SentenceEncoder(name, pooler=pooler and "cls", head=head, device=device)
        self.sentences, self.embeddings = list[str](), list[np.ndarray]()

    def encode(
        self,
        sentence: Text,
        device: Named = None,
        return_numpy: bool = False,
        normalize_to_unit: bool = True,
        keepdim: bool = False,
        batch_size: int = 64,
        max_length: int = 128,
    ) -> Any:
        """``(N, D)`` embeddings, or ``(D,)`` of one string unless ``keepdim``, on the CPU."""
        self.encoder.max_tokens = min(max_length, self.encoder.backbone.max_tokens)
        texts = [sentence] if keepdim and isinstance(sentence, str) else sentence
        how: dict[str, Any] = {"precision": "fp32", "on_overflow": "truncate", "device": device}
        how |= {"normalize": normalize_to_unit, "convert_to_tensor": not return_numpy}
        rows = self.encoder.encode(texts, **how)
        return rows if return_numpy else rows.cpu()

    def similarity(self, queries: Text, keys: Text | np.ndarray, device: Named = None) -> Any:
        """Cosines ``(M, N)`` of queries and keys, text or embeddings; a string has no axis."""
        rows = keys if isinstance(keys, np.ndarray) else self.encode(keys, device, True)
        unit = rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)
        cosines = self.encode(queries, device, True) @ unit.T
        return cosines if cosines.ndim else float(cosines)

    def build_index(self, sentences_or_file_path: Text, *, device: Named = None, **_: Any) -> None:
        """Embed sentences, or the lines of a file; they stay in memory."""
        self.sentences, self.embeddings = [], []
        self.add_to_index(sentences_or_file_path, device)

    def add_to_index(self, sentences_or_file_path: Text, device: Named = None, **_: Any) -> None:
        """Embed more of them."""
        more = sentences_or_file_path
        if isinstance(more, str):
            more = [line.rstrip() for _, line in lines(Path(more)) if line.strip()]
        self.embeddings.append(self.encode(more, device, True))
        self.sentences += more

    def search(
        self, queries: Text, device: Named = None, threshold: float = 0.6, top_k: int = 5
    ) -> Any:
        """The nearest sentences of a query with their cosines, best first; a list for each of M."""
        if not self.sentences:
            raise ConfigError("there is nothing to search; call build_index with sentences first")
        ranked = nearest(self.embeddings, self.encode(queries, device, True, keepdim=True), top_k)
        hits = [[(self.sentences[n], s) for n, s in some if s >= threshold] for some in ranked]
        return hits[0] if isinstance(queries, str) else hits


SimCSE = SimCseTool
