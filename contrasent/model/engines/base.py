"""The registry and the interface of engines, what computes a backbone."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from importlib import import_module
from importlib.util import find_spec
from typing import Self

import torch
from torch import nn

from contrasent.errors import ConfigError, MissingExtraError, install_command, pick
from contrasent.model.backbones.base import Backbone
from contrasent.model.precision import device_named


class Engine(Backbone):
    """A backbone that something else than torch's modules computes: no gradients, CPU only.

    ``precisions`` are those of the matrix products, the usual one first.
    """

    precisions: tuple[str, ...] = ()
    kind = ""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.kind = backbone.kind
        self.width, self.depth = backbone.width, backbone.depth
        self.max_tokens = backbone.max_tokens
        self.weights_sha256 = weights_sha256(backbone)
        self._of_backbone = backbone.identity
        self.training = False

    @classmethod
    @abstractmethod
    def from_backbone(cls, backbone: Backbone) -> Self:
        """The engine of a backbone that torch computes; ConfigError for other architectures."""

    @property
    def identity(self) -> tuple[str, ...]:
        return (self.engine, self.weights_sha256, *self._of_backbone)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def train(self, mode: bool = True) -> Self:
        if mode:
            raise self._only_encodes()
        return super().train(mode)

    def set_dropout(self, rate: float) -> None:
        raise self._only_encodes()

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


_CLASSES = {
    "int8": ("int8", "Int8Bert"),
    "onnx": ("runtimes", "OnnxEngine"),
    "openvino": ("runtimes", "OpenVinoEngine"),
}
"""The module and the :class:`~contrasent.model.engines.base.Engine` of each name."""
_PACKAGES = {"int8": (), "onnx": ("onnx", "onnxruntime"), "openvino": ("onnx", "openvino")}

ENGINES = ("torch", *_CLASSES)


def require(name: str, device: str | torch.device | None = None) -> None:
    """Raise ConfigError or MissingExtraError if an engine cannot be had on ``device``."""
    pick("engine", name, ENGINES)
    if name == "torch":
        if device is not None:
            device_named(device)
        return
    if device is not None and not str(device).startswith("cpu"):
        raise ConfigError(
            f"the engine {name!r} computes on the CPU, not on {str(device)!r}; leave the device "
            "out, or load with engine 'torch'"
        )
    missing = [package for package in _PACKAGES[name] if find_spec(package) is None]
    if missing:
        raise MissingExtraError(
            f"the engine {name!r} needs {' and '.join(missing)}: {install_command(name)}"
        )


def build(name: str, backbone: Backbone) -> Backbone:
    """The engine ``name`` with the weights of ``backbone``, which is itself the engine ``torch``.

    Raises ConfigError for an architecture that it does not compute, and as :func:`require`.
    """
    require(name)
    if name == "torch":
        return backbone
    module, class_name = _CLASSES[name]
    kind: type[Engine] = getattr(import_module(f"{__package__}.{module}"), class_name)
    return kind.from_backbone(backbone)
