"""Distillation: a student whose embeddings follow those of a teacher (Reimers and Gurevych 2020).

The teacher embeds every sentence once, before the first step. If it has more dimensions than the
student, its principal components are followed, as in sentence-transformers' model distillation; if
it has fewer, the student's others are to be 0, which leaves cosines as they are.

Shapes: B examples, N sentences, D dimensions of the student, E of the teacher.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from torch.nn import functional as F

from contrasent.data.batch import Batch, Need
from contrasent.data.examples import Examples
from contrasent.files import cached
from contrasent.model.loading import LoadedEncoder, load_encoder
from contrasent.model.protocol import Encoded
from contrasent.objectives.base import Objective, Start, Terms
from contrasent.settings import settings

_FORMAT, _TARGETS = 1, "targets.npy"
_SAMPLE = 20_000
"""Sentences whose embeddings the principal components are of."""


@settings
class Config:
    """Settings of distillation."""

    teacher: str | None = None
    """The encoder to follow, which must be named: a folder, a training run, a Hugging Face id, or
    word vectors."""

    loss: Literal["cosine", "mse"] = "cosine"
    """1 minus the cosine, or the mean squared difference of all numbers of the embeddings."""


class Distil(Objective):
    """The distance of an embedding from that of a teacher."""

    config_class = Config
    views = 1
    needs = frozenset({Need.TARGETS})
    aligned = False

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__()
        self.config, self._width = config, start.width
        self._device = str(start.encoder.device) if start.encoder else None

    def columns(self, examples: Examples, show_progress: bool = False) -> Mapping[Need, np.ndarray]:
        teacher = load_encoder(self.config.teacher or "", device=self._device)
        key = [_FORMAT, examples.sha256, examples.views, self._width]
        key += [teacher.fingerprint(), teacher.resolve_precision("auto")]

        def write(folder: Path) -> None:
            _write_targets(folder, teacher, examples, self._width, show_progress=show_progress)

        what = "the embeddings of the teacher"
        return {Need.TARGETS: cached("targets", what, key, partial(open_rows, _TARGETS), write)}

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


def new_rows(path: Path, examples: Examples, width: int) -> np.ndarray:
    """A file ``path`` for ``(N, width)`` float32 numbers of ``examples``, in memory as needed."""
    shape = (sum(1 for _ in examples), width)
    return np.lib.format.open_memmap(path, "w+", np.float32, shape)


def open_rows(name: str, entry: Path) -> np.ndarray:
    """The rows of the file ``name`` of an entry of the cache, mapped from disk."""
    rows: np.ndarray = np.asarray(np.load(entry / name, mmap_mode="r"))
    return rows


def write_rows(
    rows: np.ndarray,
    teacher: LoadedEncoder,
    examples: Examples,
    *,
    normalize: bool | None = None,
    show_progress: bool = False,
) -> None:
    """Write the embeddings of the first sentence of each example into ``rows (N, E)``."""
    texts, start = (text for text, *_ in examples), 0
    for block in teacher.encode_stream(texts, normalize=normalize, show_progress=show_progress):
        rows[start : start + len(block)] = block
        start += len(block)


def _write_targets(
    folder: Path, teacher: LoadedEncoder, examples: Examples, width: int, *, show_progress: bool
) -> None:
    """Write ``(N, D)`` embeddings, of what may be more text than memory holds."""
    wider = teacher.width > width
    path = folder / ("teacher.npy" if wider else _TARGETS)
    embeddings = new_rows(path, examples, max(width, teacher.width))
    write_rows(embeddings[:, : teacher.width], teacher, examples, show_progress=show_progress)
    if wider:
        axes = principal_axes(embeddings[:: -(-len(embeddings) // _SAMPLE)], width)
        targets = new_rows(folder / _TARGETS, examples, width)
        for start in range(0, len(embeddings), _SAMPLE):
            targets[start : start + _SAMPLE] = embeddings[start : start + _SAMPLE] @ axes.T
        (folder / "teacher.npy").unlink()
