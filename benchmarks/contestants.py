"""Who takes part where sentences are encoded."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.options import PRECISION_BITS
from benchmarks.remote import Spec
from contrasent.model import torch_precisions, training_device

PEERS = ("torch", "onnx", "openvino", "onnx-qint8", "openvino-qint8")
"""Backends of sentence-transformers; qint8 are its quantised models, the fastest that it documents
for a CPU."""

_FLASH = {"attn_implementation": "flash_attention_2"}

EXACT = "contrasent fp32"
"""The one that the others' embeddings are compared with."""


def ours(job: str, settings: Mapping[str, Any], engines: Sequence[str]) -> list[Spec]:
    """Ours: torch as it comes and in fp32, and each other engine as it comes."""
    where = f"benchmarks.jobs.ours:{job}"
    auto = PRECISION_BITS[torch_precisions(training_device(None))[0]]
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
    """Its default, its model cast to bf16, and each other backend as it comes.

    On a GPU also cast to fp16, and in bf16 with FlashAttention, if that is installed.
    """
    torch = [("fp32", 32), ("bf16", 16)] if "torch" in backends else []
    on_gpu = training_device(None).type == "cuda"
    if torch and on_gpu:
        torch += [("fp16", 16), ("bf16 flash", 16)]
    made = [
        Spec(
            name=f"sentence-transformers {name}",
            job=f"benchmarks.jobs.st:{job}",
            settings={
                **settings,
                "precision": name.split()[0],
                **({"model_kwargs": _FLASH} if "flash" in name else {}),
            },
            other_python=other_python,
            bits=bits,
        )
        for name, bits in torch
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
