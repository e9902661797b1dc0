"""SimCSE's own tool (princeton-nlp/SimCSE, ``simcse/tool.py``) over this package.

``from contrasent.compat import SimCSE`` in place of ``from simcse import SimCSE`` keeps arguments
and return values. What differs, on purpose:

* The pooler is what a sentence-transformers folder says, or what is known of the published
  checkpoints. Only for other folders it is taken from "unsup" in the name, with a warning. A folder
  that stores no head is refused with ``pooler="cls"``, where the tool drew a random one.
* ``add_to_index`` leaves the caller's list as it is; empty lines of files are left out.
* A search never returns a text that was not found (a missing faiss result was the last sentence),
  and equal scores come in the order of the texts. Scores are floats, with faiss and without.
* ``faiss_fast`` keeps its cells (``num_cells``, ``num_cells_in_search``) and scores what it finds
  exactly. No index is copied to a GPU, where the tool asked for 20 GB of scratch memory.
* Sentences are batched by length and tokens: ``batch_size`` changes nothing. In fp32.

Shapes: N sentences, M queries, D dimensions of an embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from contrasent.data.readers import lines
from contrasent.data.tokenizer import sentences_of
from contrasent.errors import ConfigError, DataError, pick, warn

if TYPE_CHECKING:
    from torch import Tensor

_HEADS = {"cls": "mlp", "cls_before_pooler": "none"}


class SimCseTool:
    """Embeds sentences, compares them, and searches among them.

    Args:
        model_name_or_path: a folder, a training run or a Hugging Face id.
        device: ``cpu``, ``cuda`` and the like; else the accelerator if there is one.
        num_cells: cells of the inverted file that ``faiss_fast`` makes.
        num_cells_in_search: cells that a search reads.
        pooler: ``cls`` (with the stored Linear and Tanh) or ``cls_before_pooler``; else what the
            folder says, or, if it says nothing, what its name says, as the tool had it.

    Raises:
        CheckpointError: no such encoder, or it stores no head for ``cls``.
        ConfigError: no such pooler.
    """

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
            warn(
                f"{model_name_or_path} does not say how it makes an embedding: taking pooler "
                f"{pooler!r} after its name, as SimCSE's tool does; pass pooler to choose"
            )
        head = None if pooler is None else _HEADS[pick("pooler", pooler, _HEADS)]
        self.encoder = SentenceEncoder.load(
            model_name_or_path, pooler=pooler and "cls", head=head, device=device
        )
        self.num_cells, self.num_cells_in_search = num_cells, num_cells_in_search
        self.sentences: list[str] = []
        self.embeddings = np.empty((0, self.encoder.width), np.float32)
        self._cells: Any = None

    def encode(
        self,
        sentence: str | Sequence[str],
        device: str | None = None,
        return_numpy: bool = False,
        normalize_to_unit: bool = True,
        keepdim: bool = False,
        batch_size: int = 64,
        max_length: int = 128,
    ) -> Tensor | np.ndarray:
        """``(N, D)`` embeddings, or ``(D,)`` of one string unless ``keepdim``.

        A torch tensor on the CPU, or an array if ``return_numpy``. Sentences are cut at
        ``max_length`` tokens. ``batch_size`` has no effect.
        """
        import torch

        del batch_size
        single = isinstance(sentence, str)
        rows = self._rows(sentence, device, max_length, normalize=normalize_to_unit)
        rows = rows[0] if single and not keepdim else rows
        return rows if return_numpy else torch.from_numpy(rows)

    def similarity(
        self,
        queries: str | Sequence[str],
        keys: str | Sequence[str] | np.ndarray,
        device: str | None = None,
    ) -> float | np.ndarray:
        """Cosines of queries and keys: ``(M, N)``, or ``(N,)`` of one string, or one of two.

        ``keys`` may be ``(N, D)`` or ``(D,)`` embeddings.
        """
        rows = keys if isinstance(keys, np.ndarray) else self._rows(keys, device)
        rows = np.atleast_2d(rows).astype(np.float64)
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float64).tiny)
        cosines: np.ndarray = (self._rows(queries, device) @ rows.T).astype(np.float32)
        if not isinstance(queries, str):
            return cosines
        single = isinstance(keys, str) or (isinstance(keys, np.ndarray) and keys.ndim == 1)
        return float(cosines[0, 0]) if single else cosines[0]

    def build_index(
        self,
        sentences_or_file_path: str | Sequence[str],
        use_faiss: bool | None = None,
        faiss_fast: bool = False,
        device: str | None = None,
        batch_size: int = 64,
    ) -> None:
        """Embed sentences, or the lines of a file, to be searched.

        Search is exact, unless ``faiss_fast``, which reads only the nearest cells of an inverted
        file, and needs ``use_faiss`` not to be False. For an index on disk see
        :class:`contrasent.Index`.

        Raises:
            DataError: the file cannot be read, or there is no sentence.
        """
        import faiss

        del batch_size
        self.sentences = _read(sentences_or_file_path)
        if not self.sentences:
            raise DataError(f"{sentences_or_file_path!r} holds no sentence to index")
        self.embeddings, self._cells = self._rows(self.sentences, device), None
        if faiss_fast and use_faiss in (None, True):
            width = self.encoder.width
            cells = min(self.num_cells, len(self.sentences))
            self._cells = faiss.index_factory(width, f"IVF{cells},Flat", faiss.METRIC_INNER_PRODUCT)
            self._cells.nprobe = min(self.num_cells_in_search, cells)
            self._cells.train(self.embeddings)
            self._cells.add(self.embeddings)

    def add_to_index(
        self,
        sentences_or_file_path: str | Sequence[str],
        device: str | None = None,
        batch_size: int = 64,
    ) -> None:
        """Embed more sentences, or the lines of a file, and append them.

        Raises:
            ConfigError: nothing was indexed yet.
            DataError: the file cannot be read.
        """
        del batch_size
        self._require_index()
        more = _read(sentences_or_file_path)
        rows = self._rows(more, device)
        if self._cells is not None:
            self._cells.add(rows)
        self.sentences = self.sentences + more
        self.embeddings = np.concatenate([self.embeddings, rows])

    def search(
        self,
        queries: str | Sequence[str],
        device: str | None = None,
        threshold: float = 0.6,
        top_k: int = 5,
    ) -> list[tuple[str, float]] | list[list[tuple[str, float]]]:
        """The nearest sentences with their cosines, best first; a list of these for a list.

        At most ``top_k``, with a cosine of ``threshold`` or more.

        Raises:
            ConfigError: nothing was indexed yet, or ``top_k`` is below 1.
        """
        from contrasent.search.nearest import nearest
        from contrasent.search.snapshot import require_search

        self._require_index()
        require_search(top_k, None)
        rows = self._rows(queries, device)
        if self._cells is None:
            nearby = nearest([self.embeddings], rows, top_k)
        else:
            scores, numbers = self._cells.search(rows, top_k)
            nearby = [
                [(int(n), float(s)) for n, s in zip(*pair, strict=True) if n >= 0]
                for pair in zip(numbers, scores, strict=True)
            ]
        hits = [
            [(self.sentences[number], score) for number, score in some if score >= threshold]
            for some in nearby
        ]
        return hits[0] if isinstance(queries, str) else hits

    def _rows(
        self,
        sentences: str | Sequence[str],
        device: str | None,
        max_length: int = 128,
        *,
        normalize: bool = True,
    ) -> np.ndarray:
        """``(N, D)`` embeddings."""
        if device is not None:
            self.encoder.to(device)
        self.encoder.max_tokens = min(max_length, self.encoder.backbone.max_tokens)
        texts = [sentences] if isinstance(sentences, str) else list(sentences_of(sentences))
        rows: np.ndarray = self.encoder.encode(
            texts, normalize=normalize, precision="fp32", on_overflow="truncate"
        )
        return rows

    def _require_index(self) -> None:
        if not self.sentences:
            raise ConfigError("there is no index yet; call build_index first")


def _read(sentences_or_file_path: str | Sequence[str]) -> list[str]:
    """A new list of the sentences, or of the lines of a file that are not empty."""
    if not isinstance(sentences_or_file_path, str):
        return list(sentences_of(sentences_or_file_path))
    try:
        numbered = lines(Path(sentences_or_file_path))
        return [line.rstrip() for _, line in numbered if line.strip()]
    except DataError as error:
        raise DataError(f"{error}; a string names a file of sentences, one in a line") from error


SimCSE = SimCseTool
"""Its name in the tool."""
