"""Shares of the time of a round: by kind of work, and by part of a training step."""

import re
import time
from collections.abc import Callable, Iterable

PARTS = [
    "encoder",
    "generator",
    "vocabulary",
    "discriminator",
    "backward",
    "communication",
    "update",
]
"""Names of the spans that a training step marks in a trace; none lies in another."""

OUTSIDE = "Python and waiting"
"""The kind of the time in which no operator ran."""

_OTHER = "other"
# In this order: the first pattern found in an operator's name decides.
_KINDS = {
    "attention products": r"\bbmm|baddbmm|scaled_dot_product|flash|efficient_attention",
    "matrix products": r"\b(mm|addmm|linear|matmul)\b|mkldnn|onednn|_addmm|gemm|linear_pointwise",
    "optimiser": r"adam|Optimizer|_foreach_|vector_norm|\bdot\b",
    OUTSIDE: r"^autograd::engine|^_?[A-Z]\w*$",  # what a Function in Python does itself
    "dropout": r"dropout|random_|bernoulli|bitwise|philox",
    "softmax": r"softmax",
    "normalisation": r"layer_norm|batch_norm|\bnorm\b",
    "activation": r"gelu|tanh|relu",
    "compiled": r"compiled|inductor|triton|graph_\d+",
    "lookups and gathers": r"index|gather|embedding|scatter|repeat_interleave|arange",
    "casts and copies": r"copy|_to_copy|\bto\b|\bcat\b|\bstack\b|contiguous|clone|memcpy|\bpad\b",
    "zero fills": r"zero_|zeros|fill_|memset|\bones\b",
    "arithmetic": r"\b_?(add|sub|mul|div|neg|sum|mean|pow|exp|sqrt|where|clamp\w*)_?\b",
}
_PATTERNS = {kind: re.compile(pattern, re.IGNORECASE) for kind, pattern in _KINDS.items()}


def kind_of(operator: str) -> str:
    """The kind of work that an operator of torch does, by its name."""
    kinds = (kind for kind, pattern in _PATTERNS.items() if pattern.search(operator))
    return next(kinds, _OTHER)


def kind_shares(operators: Iterable[tuple[str, float]], seconds: float) -> dict[str, float]:
    """Shares of ``seconds`` by kind of work, the largest first.

    ``operators`` are names, each with the seconds it took itself, what it called left out; what
    they leave is :data:`OUTSIDE`.
    """
    totals: dict[str, float] = {}
    for name, spent in operators:
        totals[kind_of(name)] = totals.get(kind_of(name), 0.0) + spent
    totals[OUTSIDE] = totals.get(OUTSIDE, 0.0) + max(0.0, seconds - sum(totals.values()))
    shares = sorted(totals.items(), key=lambda item: -item[1])
    return {kind: total / seconds for kind, total in shares if total > 0}


def shares(work: Callable[[], object]) -> dict[str, dict[str, float]]:
    """Shares of the time of ``work`` under torch's profiler: ``kinds``, which add up to 1.

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
        name: getattr(it, clock) / 1e6
        for name, it in averages.items()
        if name not in PARTS and not name.startswith(("ProfilerStep", "Torch-Compiled Region"))
    }
    spans = {name: averages[name].cpu_time_total / 1e6 for name in PARTS if name in averages}
    kinds = kind_shares(operators.items(), seconds)
    return {
        "kinds": {kind: round(share, 4) for kind, share in kinds.items()},
        "parts": {
            name: round(spent / seconds, 4)
            for name, spent in spans.items()
            if not torch.cuda.is_available()
        },
    }
