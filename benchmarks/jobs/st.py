"""sentence-transformers, as its documentation tells to call it.

Its trainer is left out of the training loop: a bare loop around its model, tokenisation and loss
only saves it time.
"""

import atexit
import logging
import platform
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from torch import nn

from benchmarks.jobs import Steps, Values, read_texts, share

LEARNING_RATE = 3e-5
CALIBRATION = 300
"""Sentences that choose the ranges of activations, as many as its documentation takes."""

Backend = Literal["torch", "onnx", "openvino", "onnx-qint8", "openvino-qint8"]

logging.getLogger("sentence_transformers").setLevel(logging.ERROR)


class Train(Steps):
    """Its model and MultipleNegativesRankingLoss under AdamW, dropout on, clipped at 1."""

    def __init__(self, folder: str, tokens: int, pooler: str, precision: str, **steps: Any) -> None:
        super().__init__(**steps)
        self._model = _pooled(folder, pooler, tokens).train()
        self._loss = MultipleNegativesRankingLoss(self._model)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LEARNING_RATE, fused=True)
        self._narrow = precision == "bf16"

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
        backend: Backend = "torch",
        model_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self._narrow = precision != "fp32"
        if backend in ("onnx-qint8", "openvino-qint8"):
            self._model = _quantised(folder, pooler, backend, read_texts(texts))
        elif pooler is None:
            self._model = SentenceTransformer(folder, backend=backend, model_kwargs=model_kwargs)
        else:
            self._model = _pooled(folder, pooler, model_kwargs=model_kwargs)
        if self._narrow:
            self._model.to(torch.bfloat16 if precision == "bf16" else torch.float16)
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


def _pooled(
    folder: str,
    pooler: str,
    tokens: int | None = None,
    model_kwargs: dict[str, Any] | None = None,
) -> SentenceTransformer:
    """A transformer under the pooler that is asked for, whatever the folder says."""
    chosen: dict[str, Any] = {"model_kwargs": model_kwargs} if model_kwargs else {}
    transformer = Transformer(folder, max_seq_length=tokens, **chosen)
    width = transformer.auto_model.config.hidden_size
    return SentenceTransformer(modules=[transformer, Pooling(width, pooling_mode=pooler)])


def _quantised(
    folder: str, pooler: str | None, backend: str, texts: list[str]
) -> SentenceTransformer:
    """Its int8 model, as its page "Speeding up Inference" makes it, calibrated on ``texts``."""
    from sentence_transformers import backend as exports

    kept = Path(tempfile.mkdtemp(prefix="qint8-"))
    atexit.register(shutil.rmtree, kept, ignore_errors=True)
    name, model = backend.removesuffix("-qint8"), kept / "model"
    plain = SentenceTransformer(folder) if pooler is None else _pooled(folder, pooler)
    plain.save_pretrained(str(model))
    loaded = SentenceTransformer(str(model), backend=name)
    if name == "onnx":
        exports.export_dynamic_quantized_onnx_model(loaded, _instructions(), str(model))
    else:
        (kept / "text").mkdir()
        calibration = "\n".join(texts[:CALIBRATION])
        (kept / "text" / "train.txt").write_text(calibration, encoding="utf-8")
        exports.export_static_quantized_openvino_model(
            loaded,
            None,
            str(model),
            dataset_name=str(kept / "text"),
            dataset_config_name="default",
            dataset_split="train",
            column_name="text",
        )
    # qint8 in its name, or quint8 where a processor has AVX2 alone.
    (file,) = model.glob(f"{name}/*int8*.{'onnx' if name == 'onnx' else 'xml'}")
    chosen = {"file_name": str(file.relative_to(model))}
    return SentenceTransformer(str(model), backend=name, model_kwargs=chosen)


def _instructions() -> Literal["arm64", "avx2", "avx512", "avx512_vnni"]:
    """What its export quantises for: the most that this processor has."""
    if platform.machine() in ("arm64", "aarch64"):
        return "arm64"
    described = Path("/proc/cpuinfo")
    flags = described.read_text(encoding="utf-8") if described.is_file() else ""
    if "avx512_vnni" in flags:
        return "avx512_vnni"
    return "avx512" if "avx512f" in flags else "avx2"
