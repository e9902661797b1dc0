"""What the machine's matrix products reach alone, on the shapes of a model's products."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.jobs import Values, wait_for_device

_LEAST_SECONDS, _MOST_REPEATS = 0.05, 64


class Peak:
    """Products of random matrices, in bf16 and fp32.

    A round gives, in operations per second, ``bf16`` and ``fp32``, the best that any shape
    reaches, and ``bf16_mix`` and ``fp32_mix``, all shapes after each other.
    """

    def __init__(self, shapes: Sequence[Sequence[int]]) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        made = torch.Generator().manual_seed(0)
        self._factors = [
            (torch.randn(m, k, generator=made), torch.randn(n, k, generator=made))
            for m, k, n in shapes
        ]
        self._factors = [(a.to(device), b.to(device)) for a, b in self._factors]

    def round(self, _number: int) -> Values:
        """Measure each shape at its best."""
        values: Values = {}
        with torch.inference_mode():
            for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
                timed = [_timed(a.to(dtype), b.to(dtype)) for a, b in self._factors]
                values[name] = max(flops / seconds for flops, seconds in timed)
                values[f"{name}_mix"] = sum(f for f, _ in timed) / sum(s for _, s in timed)
        return values


def _timed(a: Tensor, b: Tensor) -> tuple[float, float]:
    """The operations of one product, and the seconds of the fastest of several."""
    F.linear(a, b)
    wait_for_device()
    best, spent, repeats = float("inf"), 0.0, 0
    while spent < _LEAST_SECONDS and repeats < _MOST_REPEATS:
        start = time.perf_counter()
        F.linear(a, b)
        wait_for_device()
        seconds = time.perf_counter() - start
        best, spent, repeats = min(best, seconds), spent + seconds, repeats + 1
    return 2.0 * a.numel() * len(b), best
