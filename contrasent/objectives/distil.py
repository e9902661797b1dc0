"""Distillation: a student whose embeddings follow those of a teacher (Reimers and Gurevych 2020).

The teacher embeds every sentence once, before the first step. If it has more dimensions than the
student, its principal components are followed, as in sentence-transformers' model distillation; if
it has fewer, the student's others are to be 0, which leaves cosines as they are.

Shapes: B examples, N sentences, D dimensions of the student, E of the teacher.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch.nn import functional as F

from contrasent.data.batch import Batch, Need
from contrasent.data.examples import Examples
from contrasent.files import cached
from contrasent.model.loading import LoadedEncoder, load_encoder
from contrasent.model.protocol import Encoded
from contrasent.objectives import Objective, Start, Terms
from contrasent.settings import settings

_FORMAT, _TARGETS = 1, "targets.npy"
_SAMPLE = 20_000
"""Sentences whose embeddings the principal components are of."""


@settings
class Config:
    """Settings of distillation."""

    teacher: str | None = None
    """The encoder to follow: a folder, a training run, a Hugging Face id, or word vectors."""

    loss: Literal["cosine", "mse"] = "cosine"
    """1 minus the cosine, or the mean squared difference of all numbers."""


class Distil(Objective):
    """The distance of an embedding from that of a teacher."""

    config_class = Config
    views = 1
    needs = frozenset({Need.TARGETS})
    aligned = False

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__(config, start)
        self._width = start.width
        self._device = str(start.encoder.device) if start.encoder else None

    def columns(self, examples: Examples, show_progress: bool = False) -> Mapping[Need, np.ndarray]:
        teacher, width = load_encoder(self.config.teacher or "", device=self._device), self._width
        key = [_FORMAT, examples.sha256, examples.views, width]
        key += [teacher.fingerprint(), teacher.resolve_precision("auto")]

        def write(folder: Path) -> None:
            wider = teacher.width > width
            path = folder / ("teacher.npy" if wider else _TARGETS)
            rows = write_rows(path, examples, [teacher], width, show_progress=show_progress)
            if wider:  # what may be more than memory holds
                axes = principal_axes(rows[:: -(-len(rows) // _SAMPLE)], width)
                shape = len(rows), width
                targets = np.lib.format.open_memmap(folder / _TARGETS, "w+", np.float32, shape)
                for start in range(0, len(rows), _SAMPLE):
                    targets[start : start + _SAMPLE] = rows[start : start + _SAMPLE] @ axes.T
                path.unlink()

        return {Need.TARGETS: cached_rows("targets", _TARGETS, key, write)}

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        student, wanted = encoded.pooled[0].float(), batch.column(Need.TARGETS)
        cosine = F.cosine_similarity(student, wanted).mean()
        loss = 1 - cosine if self.config.loss == "cosine" else F.mse_loss(student, wanted)
        return Terms({"distillation": loss}, {"teacher_cosine": cosine.detach()})


def principal_axes(rows: np.ndarray, count: int) -> np.ndarray:
    """``(count, E)`` float32, the directions in which ``(N, E)`` rows vary most."""
    wide = rows.astype(np.float64)
    wide -= wide.mean(axis=0)
    axes = np.linalg.eigh(wide.T @ wide).eigenvectors.T[::-1][:count]
    largest = np.abs(axes).argmax(axis=1, keepdims=True)
    signed: np.ndarray = axes * np.sign(np.take_along_axis(axes, largest, axis=1))
    return signed.astype(np.float32)


def cached_rows(
    kind: str, name: str, key: Sequence[Any], write: Callable[[Path], None]
) -> np.ndarray:
    """The rows of the file ``name`` of an entry of the cache, mapped from disk."""

    def read(entry: Path) -> np.ndarray:
        return np.asarray(np.load(entry / name, mmap_mode="r"))

    return cached(kind, "the embeddings of the teacher", [*key], read, write)


def write_rows(
    path: Path,
    examples: Examples,
    teachers: Sequence[LoadedEncoder],
    width: int = 0,
    *,
    normalize: bool | None = None,
    show_progress: bool = False,
) -> np.ndarray:
    """Write the embeddings of the first sentence of each example, all teachers' side by side.

    ``(N, E)`` float32, mapped from the file; further columns are 0 where ``width`` is larger.
    """
    shape = (sum(1 for _ in examples), max(width, sum(it.width for it in teachers)))
    rows: np.ndarray = np.lib.format.open_memmap(path, "w+", np.float32, shape)
    first = 0
    for teacher in teachers:
        texts, start, end = (text for text, *_ in examples), 0, first + teacher.width
        for block in teacher.encode_stream(texts, normalize=normalize, show_progress=show_progress):
            rows[start : start + len(block), first:end] = block
            start += len(block)
        first = end
    return rows
