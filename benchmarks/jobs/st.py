"""sentence-transformers, as its documentation tells to call it.

Its trainer is left out of the training loop: a bare loop around its model, tokenisation and loss
only saves it time.
"""

import json
import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from sentence_transformers.util import batch_to_device
from torch import Tensor

from benchmarks.jobs import Encoding, Steps, Values

CALIBRATION = 300
"""Sentences that choose the ranges of activations, as many as its documentation takes."""
_BATCH, _FLAT = 32, 50_000
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

logging.getLogger("sentence_transformers").setLevel(logging.ERROR)


class Train(Steps):
    """Its model and MultipleNegativesRankingLoss."""

    def __init__(self, folder: str, tokens: int, pooler: str, precision: str, **steps: Any) -> None:
        self._model = _loaded(folder, pooler, max_seq_length=tokens)
        self._loss, self._narrow = MultipleNegativesRankingLoss(self._model), precision == "bf16"
        super().__init__(self._model, **steps)

    def loss(self, batch: list[str]) -> Tensor:
        """Its loss of both views."""
        device = self._model.device
        features = [batch_to_device(self._model.tokenize(batch), device) for _ in range(2)]
        with torch.autocast(device.type, torch.bfloat16, enabled=self._narrow):
            return self._loss(features, None)


@dataclass(kw_only=True)
class Encode(Encoding):
    """``SentenceTransformer.encode``, from strings to a matrix."""

    precision: str = "fp32"
    backend: str = "torch"
    model_kwargs: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        named, kind = (self.folder, self.pooler), self.backend.removesuffix("-qint8")
        if kind == self.backend:
            self._model = _loaded(*named, backend=kind, model_kwargs=self.model_kwargs)
        else:
            self._model = _quantised(*named, kind, self.texts)
        self._narrow = self.precision in _TYPES
        if self._narrow:
            self._model.to(_TYPES[self.precision])

    def tokenise(self) -> None:
        """Make the tokens of all sentences, in batches as it does."""
        for start in range(0, len(self.texts), _BATCH):
            self._model.tokenize(self.texts[start : start + _BATCH])

    def embed(self, texts: list[str]) -> np.ndarray:
        """``(N, D)``, an embedding for each text."""
        # numpy has no bf16, so its own conversion is asked for a tensor.
        options = {"convert_to_tensor": self._narrow, "show_progress_bar": False}
        rows: Any = self._model.encode(texts, **options)
        return rows.float().cpu().numpy() if self._narrow else rows


class File:
    """From a file of sentences to a matrix, or to their texts and an index of faiss."""

    def __init__(self, folder: str, source: str, written: str) -> None:
        self._model, self._source = SentenceTransformer(folder), Path(source)
        self._written = written

    def round(self, _number: int) -> Values:
        """Read, embed and write the whole file."""
        import faiss

        texts = self._source.read_text(encoding="utf-8").splitlines()
        rows = self._model.encode(texts, show_progress_bar=False)
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "rows"
            if self._written == "index":
                kind = "Flat" if len(rows) < _FLAT else "HNSW32"
                index = faiss.index_factory(rows.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
                index.add(rows)
                faiss.write_index(index, str(path))
                path.with_suffix(".json").write_text(json.dumps(texts), encoding="utf-8")
            else:
                np.save(path, rows)
        return {"sentences": len(texts)}


def _loaded(folder: str, pooler: str | None, **options: Any) -> SentenceTransformer:
    """A model, under the pooler that is asked for, whatever the folder says."""
    if pooler is None:
        return SentenceTransformer(folder, **options)
    transformer = Transformer(folder, **options)
    width = transformer.auto_model.config.hidden_size
    return SentenceTransformer(modules=[transformer, Pooling(width, pooling_mode=pooler)])


def _quantised(folder: str, pooler: str | None, name: str, texts: list[str]) -> SentenceTransformer:
    """Its int8 model, as its page "Speeding up Inference" makes it, calibrated on ``texts``."""
    from sentence_transformers import backend

    with tempfile.TemporaryDirectory(prefix="qint8-") as place:
        model = Path(place) / "model"
        _loaded(folder, pooler).save_pretrained(str(model))
        loaded = SentenceTransformer(str(model), backend=name)
        if name == "onnx":  # for the most that this processor has, of what its export knows
            info = Path("/proc/cpuinfo")
            flags = info.read_text(encoding="utf-8") if info.is_file() else ""
            kinds = {"avx512_vnni": "avx512_vnni", "avx512f": "avx512", "avx2": "avx2"}
            kind: Any = next((kind for flag, kind in kinds.items() if flag in flags), "arm64")
            backend.export_dynamic_quantized_onnx_model(loaded, kind, str(model))
        else:
            text = Path(place) / "text" / "train.txt"
            text.parent.mkdir()
            text.write_text("\n".join(texts[:CALIBRATION]), encoding="utf-8")
            named = {"dataset_config_name": "default", "dataset_split": "train"}
            named |= {"dataset_name": str(text.parent), "column_name": "text"}
            backend.export_static_quantized_openvino_model(loaded, None, str(model), **named)
        # qint8 in its name, or quint8 where a processor has AVX2 alone.
        (file,) = model.glob(f"{name}/*int8*.{'onnx' if name == 'onnx' else 'xml'}")
        chosen = {"file_name": str(file.relative_to(model))}
        return SentenceTransformer(str(model), backend=name, model_kwargs=chosen)


def serve(model: str, port: int = 8000, bf16: bool = False) -> None:
    """Serve a model by FastAPI and uvicorn on the OpenAI route, computing a request at a time."""
    import uvicorn
    from fastapi import FastAPI

    encoder, lock, app = SentenceTransformer(model), Lock(), FastAPI()
    if bf16:
        encoder.bfloat16()

    @app.post("/v1/embeddings")
    def embeddings(request: dict[str, Any]) -> dict[str, Any]:
        with lock:  # threads that compute together are slower than one after the other
            row = encoder.encode(request["input"], convert_to_tensor=True, show_progress_bar=False)
        data = [{"object": "embedding", "embedding": row.float().tolist(), "index": 0}]
        return {"object": "list", "model": request["model"], "data": data}

    uvicorn.run(app, port=port, log_level="error")


if __name__ == "__main__":
    import typer

    typer.run(serve)
