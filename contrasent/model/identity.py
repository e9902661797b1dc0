"""Naming an encoder by what decides its embeddings."""

from __future__ import annotations

import hashlib

from torch import nn


def digest_of(described: tuple[object, ...], module: nn.Module) -> str:
    """Hexadecimal SHA-256 of a description and of the names and values of all weights, in fp32."""
    digest = hashlib.sha256(repr(described).encode())
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
