"""sentence-transformers, as its documentation tells to call it.

Its trainer is left out of the training loop: a bare loop around its model, tokenisation and loss
only saves it time.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Literal

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from torch import nn

from benchmarks.jobs import Values, read_texts, share, wait_for_device

LEARNING_RATE = 3e-5

logging.getLogger("sentence_transformers").setLevel(logging.ERROR)


class Train:
    """Its model and MultipleNegativesRankingLoss under AdamW, dropout on, clipped at 1."""

    def __init__(
        self,
        folder: str,
        texts: str,
        batch_size: int,
        steps: int,
        tokens: int,
        pooler: str,
        precision: str,
    ) -> None:
        self._model = _pooled(folder, pooler, tokens)
        self._loss = MultipleNegativesRankingLoss(self._model)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LEARNING_RATE, fused=True)
        self._texts = read_texts(texts)
        self._batch_size, self._steps = batch_size, steps
        self._narrow = precision == "bf16"

    def round(self, number: int) -> Values:
        """Make the steps of a round."""
        self._model.train()
        texts = share(self._texts, number, self._batch_size * self._steps)
        for start in range(0, len(texts), self._batch_size):
            self._step(texts[start : start + self._batch_size])
        wait_for_device()
        return {"sentences": len(texts)}

    def _step(self, batch: list[str]) -> None:
        device = self._model.device
        features = []
        for _ in range(2):
            view = self._model.tokenize(batch)
            features.append(
                {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in view.items()}
            )
        with torch.autocast(device.type, torch.bfloat16, enabled=self._narrow):
            value = self._loss(features, None)
        value.backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


class Encode:
    """``SentenceTransformer.encode``, from strings to a matrix."""

    def __init__(
        self,
        folder: str,
        texts: str,
        precision: str = "fp32",
        pooler: str | None = None,
        backend: Literal["torch", "onnx", "openvino"] = "torch",
        model_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self._narrow = precision == "bf16"
        if pooler is None:
            self._model = SentenceTransformer(folder, backend=backend, model_kwargs=model_kwargs)
        else:
            self._model = _pooled(folder, pooler)
        if self._narrow:
            self._model.bfloat16()
        self._texts = read_texts(texts)

    def round(self, _number: int) -> Values:
        """Embed all sentences."""
        return {"sentences": len(self.rows())}

    def rows(self) -> np.ndarray:
        """``(N, D)``, an embedding for each sentence."""
        return self._embed(self._texts)

    def _embed(self, texts: list[str]) -> np.ndarray:
        # numpy has no bf16, so its own conversion is asked for a tensor.
        found: Any = self._model.encode(
            texts, convert_to_tensor=self._narrow, show_progress_bar=False
        )
        rows: np.ndarray = found.float().cpu().numpy() if self._narrow else found
        return rows


class One(Encode):
    """``SentenceTransformer.encode`` of one sentence at a time."""

    def __init__(self, calls: int, **settings: Any) -> None:
        super().__init__(**settings)
        self._calls = calls

    def round(self, number: int) -> Values:
        """Time single calls, each of another sentence."""
        seconds = []
        for text in share(self._texts, number, self._calls):
            start = time.perf_counter()
            self._embed([text])
            seconds.append(time.perf_counter() - start)
        return {"sentences": len(seconds), "calls": seconds}


def _pooled(folder: str, pooler: str, tokens: int | None = None) -> SentenceTransformer:
    """A transformer under the pooler that is asked for, whatever the folder says."""
    transformer = Transformer(folder, max_seq_length=tokens)
    width = transformer.auto_model.config.hidden_size
    return SentenceTransformer(modules=[transformer, Pooling(width, pooling_mode=pooler)])
