"""SentEval's classifier once more, in C, for accuracies that torch's loops would take days for.

It makes the same batches from the same random streams. Sums are in another order than torch's, so
a sentence in a thousand may fall on the other side.
"""

from __future__ import annotations

import ctypes
import subprocess
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.jobs.senteval import Features, Labels, Part, Preset

_SOURCE = Path(__file__).with_name("senteval.c")


class _Part(ctypes.Structure):
    _fields_ = (
        ("features", ctypes.c_void_p),
        ("labels", ctypes.c_void_p),
        ("rows", ctypes.c_long),
    )


class _Settings(ctypes.Structure):
    _fields_ = (
        ("decay", ctypes.c_double),
        *(
            (name, ctypes.c_long)
            for name in ("width", "classes", "batch", "tenacity", "epoch_size", "max_epochs")
        ),
    )


class Classifier:
    """As :class:`benchmarks.jobs.senteval.Classifier`; Adam only."""

    def __init__(self, width: int, classes: int, decay: float, preset: Preset, seed: int) -> None:
        if preset.optimiser != "adam":
            raise ValueError(f"the classifier in C knows Adam only, not {preset.optimiser}")
        torch.manual_seed(seed)
        layer = torch.nn.Linear(width, classes)
        both = torch.cat([layer.weight, layer.bias.unsqueeze(1)], dim=1)
        self.weights: Features = both.detach().contiguous().numpy()
        self._seed, self._preset = seed, preset
        self._settings = _Settings(
            decay,
            width,
            classes,
            preset.batch,
            preset.tenacity,
            preset.epoch_size,
            preset.max_epochs,
        )

    def fit(self, x: Features, y: Labels, dev: Part | None = None) -> float:
        """Train until the accuracy on ``dev``, or on 5 % held out, is better no more."""
        drawn = 0
        if dev is None:
            drawn, cut = len(x), int(0.05 * len(x))
            order = np.random.RandomState(self._seed).permutation(drawn)
            dev = x[order[:cut]], y[order[:cut]]
            x, y = x[order[cut:]], y[order[cut:]]
        epochs = self._preset.max_epochs + self._preset.epoch_size
        orders = _orders(len(x), drawn, self._seed, epochs)
        kept = [_contiguous(part) for part in ((x, y), dev)]
        parts = [ctypes.byref(_part(part)) for part in kept]
        best: float = _library().fit(
            ctypes.byref(self._settings), *parts, _at(orders), _at(self.weights)
        )
        if best < 0:
            raise MemoryError("no memory for the classifier")
        return best

    def predict(self, x: Features) -> Labels:
        """The class of each row."""
        found = np.zeros(len(x), dtype=np.int64)
        kept = _contiguous((x, found))
        _library().predict(
            ctypes.byref(self._settings),
            _at(self.weights),
            ctypes.byref(_part(kept)),
            _at(found),
        )
        return found

    def score(self, x: Features, y: Labels) -> float:
        """The share of rows that are right."""
        return float(np.mean(self.predict(x) == y))


@lru_cache(maxsize=4)
def _orders(count: int, drawn: int, seed: int, epochs: int) -> NDArray[np.int32]:
    """``(epochs, count)``, the permutations after one of ``drawn`` rows if that is above 0."""
    draw = np.random.RandomState(seed)
    if drawn:
        draw.permutation(drawn)
    return np.stack([draw.permutation(count) for _ in range(epochs)]).astype(np.int32)


def _contiguous(part: Part) -> Part:
    x, y = part
    return np.ascontiguousarray(x, np.float32), np.ascontiguousarray(y, np.int64)


def _part(part: Part) -> _Part:
    return _Part(_at(part[0]), _at(part[1]), len(part[1]))


def _at(values: NDArray[Any]) -> ctypes.c_void_p:
    return values.ctypes.data_as(ctypes.c_void_p)


@cache
def _library() -> ctypes.CDLL:
    """The compiled source; the compiler is the system's ``cc``."""
    flags = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC"]
    with TemporaryDirectory() as place:
        path = Path(place) / "senteval.so"
        subprocess.run(["cc", *flags, str(_SOURCE), "-o", str(path), "-lm"], check=True)
        found = ctypes.CDLL(str(path))
    found.fit.restype = ctypes.c_double
    found.predict.restype = None
    return found
