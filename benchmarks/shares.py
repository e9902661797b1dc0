"""Shares of the time of a round: by operator, and by part of a training step."""

import re
import time
from collections.abc import Callable

PARTS = [
    *("encoder", "generator", "vocabulary", "discriminator"),
    *("backward", "communication", "update"),
]
"""Names of the spans that a training step marks in a trace; none lies in another."""

PRODUCTS = re.compile(
    r"products|\b(mm|bmm|addmm|linear|matmul)\b|baddbmm|scaled_dot_product|flash"
    r"|efficient_attention|mkldnn|onednn|gemm|linear_pointwise",
    re.IGNORECASE,
)
"""Names of operators, and of kinds of them, that are matrix products."""
OUTSIDE, _LEAST = "Python and waiting", 0.002
"""The time in which no operator ran; the smallest share that is kept."""


def shares(work: Callable[[], object]) -> dict[str, dict[str, float]]:
    """Shares of the time of ``work`` under torch's profiler: ``kinds``, the largest operators.

    And ``parts`` of a training step of ours, where it has any and no accelerator computes them.
    """
    import torch
    from torch.profiler import profile

    from benchmarks.jobs import wait_for_device

    with profile() as recorded:
        start = time.perf_counter()
        work()
        wait_for_device()
        seconds = time.perf_counter() - start
    averages = {it.key: it for it in recorded.key_averages()}
    on_device = any(it.self_device_time_total for it in averages.values())
    clock = "self_device_time_total" if on_device else "self_cpu_time_total"
    operators = {
        name: getattr(it, clock) / 1e6 / seconds
        for name, it in averages.items()
        if name not in PARTS and not name.startswith(("ProfilerStep", "Torch-Compiled Region"))
    }
    operators[OUTSIDE] = max(0.0, 1 - sum(operators.values()))
    ordered = sorted(operators.items(), key=lambda item: -item[1])
    spans = {name: averages[name].cpu_time_total / 1e6 for name in PARTS if name in averages}
    return {
        "kinds": {name: round(share, 4) for name, share in ordered if share > _LEAST},
        "parts": {
            name: round(spent / seconds, 4)
            for name, spent in spans.items()
            if not torch.cuda.is_available()
        },
    }
