"""Engines: what computes the backbone. ``torch`` is the backbone itself; the others only encode."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import torch

from contrasent.errors import ConfigError, MissingExtraError, pick
from contrasent.model.backbones.base import Backbone
from contrasent.model.precision import device_named

_CLASSES = {
    "int8": ("int8", "Int8Bert"),
    "onnx": ("runtimes", "OnnxEngine"),
    "openvino": ("runtimes", "OpenVinoEngine"),
}
"""The module and the :class:`~contrasent.model.engines.base.Engine` of each name."""
_PACKAGES = {"int8": (), "onnx": ("onnx", "onnxruntime"), "openvino": ("onnx", "openvino")}

ENGINES = ("torch", *_CLASSES)


def require(name: str, device: str | torch.device | None = None) -> None:
    """Make sure that an engine can be built, before anything is loaded.

    Raises:
        ConfigError: no such engine, or one that does not compute on ``device``; no such device.
        MissingExtraError: its packages are not installed.
    """
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
            f"the engine {name!r} needs {' and '.join(missing)}: pip install 'contrasent[{name}]'"
        )


def build(name: str, backbone: Backbone) -> Backbone:
    """The engine ``name`` with the weights of ``backbone``, which is itself the engine ``torch``.

    Raises:
        ConfigError: no such engine, or one that does not compute this architecture.
        MissingExtraError: its packages are not installed.
    """
    require(name)
    if name == "torch":
        return backbone
    module, kind = _CLASSES[name]
    engine: Backbone = getattr(import_module(f"{__name__}.{module}"), kind).from_backbone(backbone)
    return engine
