"""Operations per second that the machine's matrix products reach alone, on a model's shapes."""

from collections.abc import Sequence

import torch
from torch.utils.benchmark import Timer

from benchmarks.jobs import Values


class Peak:
    """Products of random matrices, in bf16 and fp32."""

    def __init__(self, shapes: Sequence[Sequence[int]]) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._factors = [
            (torch.randn(m, k, device=device), torch.randn(n, k, device=device))
            for m, k, n in shapes
        ]

    def round(self, _number: int) -> Values:
        """The best that any shape reaches."""
        values, threads = Values(), torch.get_num_threads()
        for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
            values[name] = 0.0
            for factors in self._factors:
                a, b = (factor.to(dtype) for factor in factors)
                names = {"linear": torch.nn.functional.linear, "a": a, "b": b}
                timer = Timer("linear(a, b)", globals=names, num_threads=threads)
                seconds = min(timer.blocked_autorange(min_run_time=0.05).times)
                values[name] = max(values[name], 2.0 * a.numel() * len(b) / seconds)
        return values
