"""The interface of the engines that only encode."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from typing import Self

import torch
from torch import nn
from typing_extensions import override

from contrasent.errors import ConfigError
from contrasent.model.backbones.base import Backbone


class Engine(Backbone):
    """A backbone that something else than torch's modules computes: no gradients, CPU only.

    Attributes:
        precisions: what the matrix products may run in, the usual one first.
        weights_sha256: hash of the weights it was made from.
    """

    precisions: tuple[str, ...] = ()

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.width, self.depth = backbone.width, backbone.depth
        self.max_tokens = backbone.max_tokens
        self.weights_sha256 = weights_sha256(backbone)
        self.training = False

    @classmethod
    @abstractmethod
    def from_backbone(cls, backbone: Backbone) -> Self:
        """Make the engine of a backbone that torch computes.

        Raises:
            ConfigError: it does not compute this architecture.
        """

    @property
    @override
    def identity(self) -> tuple[str, ...]:
        return (self.engine, self.weights_sha256)

    @property
    @override
    def device(self) -> torch.device:
        return torch.device("cpu")

    @override
    def train(self, mode: bool = True) -> Self:
        if mode:
            raise self._only_encodes()
        return super().train(mode)

    @override
    def set_dropout(self, rate: float) -> None:
        raise self._only_encodes()

    @override
    def require_first_state(self) -> None:
        raise self._only_encodes()

    def _only_encodes(self) -> ConfigError:
        return ConfigError(
            f"the engine {self.engine!r} only encodes; to train, load with engine 'torch'"
        )


def weights_sha256(module: nn.Module) -> str:
    """Hexadecimal SHA-256 of names, shapes and values of all weights, in fp32."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().float().cpu().contiguous().numpy())
    return digest.hexdigest()
