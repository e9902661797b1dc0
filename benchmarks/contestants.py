"""Who takes part where sentences are encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.options import PRECISION_BITS
from benchmarks.remote import Spec
from contrasent.model.precision import default_device, torch_precisions

PEERS = ("torch", "onnx", "openvino")
"""Backends of sentence-transformers."""

EXACT = "contrasent fp32"
"""The one that the others' embeddings are compared with."""


def ours(job: str, settings: Mapping[str, Any], engines: Sequence[str]) -> list[Spec]:
    """Ours: torch as it comes and in fp32, and each other engine as it comes."""
    where = f"benchmarks.jobs.ours:{job}"
    auto = PRECISION_BITS[torch_precisions(default_device())[0]]
    torch = [("auto", auto), ("fp32", 32)] if "torch" in engines else []
    made = [
        Spec(f"contrasent {precision}", where, {**settings, "precision": precision}, bits=bits)
        for precision, bits in torch
    ]
    return made + [
        Spec(f"contrasent {engine}", where, {**settings, "engine": engine})
        for engine in engines
        if engine != "torch"
    ]


def sentence_transformers(
    job: str, settings: Mapping[str, Any], backends: Sequence[str], other_python: str | None
) -> list[Spec]:
    """Its default, its model cast to bf16, and each other backend as it comes."""
    torch = [("fp32", 32), ("bf16", 16)] if "torch" in backends else []
    made = [
        Spec(
            name=f"sentence-transformers {precision}",
            job=f"benchmarks.jobs.st:{job}",
            settings={**settings, "precision": precision},
            other_python=other_python,
            bits=bits,
        )
        for precision, bits in torch
    ]
    return made + [
        Spec(
            name=f"sentence-transformers {backend}",
            job=f"benchmarks.jobs.st:{job}",
            settings={**settings, "backend": backend},
            other_python=other_python,
        )
        for backend in backends
        if backend != "torch"
    ]
