"""Operations per second that the machine's matrix products reach alone, on a model's shapes."""

from collections.abc import Sequence
from functools import partial
from itertools import product

import torch
from torch.utils.benchmark import Timer

from benchmarks.jobs import Values


class Peak:
    """Products of random matrices, in bf16 and fp32."""

    def __init__(self, shapes: Sequence[Sequence[int]]) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        random = partial(torch.randn, device=device)
        self._factors = [(random(m, k), random(n, k)) for m, k, n in shapes]

    def round(self, _number: int) -> Values:
        """The best that any shape reaches."""
        values, threads = Values(bf16=0.0, fp32=0.0), torch.get_num_threads()
        types = {"bf16": torch.bfloat16, "fp32": torch.float32}
        for (name, dtype), factors in product(types.items(), self._factors):
            a, b = (factor.to(dtype) for factor in factors)
            names = {"linear": torch.nn.functional.linear, "a": a, "b": b}
            timer = Timer("linear(a, b)", globals=names, num_threads=threads)
            seconds = min(timer.blocked_autorange(min_run_time=0.05).times)
            values[name] = max(values[name], 2.0 * a.numel() * len(b) / seconds)
        return values
