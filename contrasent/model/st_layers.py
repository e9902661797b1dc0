"""Layers of a sentence-transformers folder: Dense and CNN modules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from contrasent.errors import CheckpointError
from contrasent.model.heads import Convolutions
from contrasent.model.weights import read_exact

TANH, IDENTITY = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"


def head_and_map(paths: list[Path]) -> tuple[Path | None, Path | None]:
    """Of one or two Dense modules, the head and the linear map; None for what is not there."""
    kinds = [_activation(path) for path in paths]
    if kinds not in ([], [TANH], [IDENTITY], [TANH, IDENTITY]):
        raise CheckpointError(
            f"{paths[0].parent} has the Dense modules {' and '.join(path.name for path in paths)}; "
            "of two, the first must have Tanh and the second Identity as activation_function"
        )
    by_activation = dict(zip(kinds, paths, strict=True))
    return by_activation.get(TANH), by_activation.get(IDENTITY)


def write_dense(path: Path, linear: nn.Module, activation: str) -> None:
    """Write what has ``weight`` and ``bias`` as a Dense module."""
    state = {name: tensor.detach().cpu() for name, tensor in linear.state_dict().items()}
    rows, columns = state["weight"].shape
    config = {
        "in_features": columns,
        "out_features": rows,
        "bias": True,
        "activation_function": activation,
    }
    write_json(path / "config.json", config)
    tensors = {f"linear.{name}": tensor for name, tensor in state.items()}
    save_file(tensors, path / "model.safetensors")


def read_json(path: Path) -> Any:
    """What a JSON file holds; CheckpointError if it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file, and the folder it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _activation(path: Path) -> str:
    """The activation of a Dense module that is a Linear map with bias before it."""
    config = read_json(path / "config.json")
    name = "sentence_embedding"
    activation = config.get("activation_function")
    asked = {
        "activation_function": (activation, (TANH, IDENTITY)),
        "bias": (config.get("bias", True), (True,)),
        "use_residual": (config.get("use_residual", False), (False,)),
        "module_input_name": (config.get("module_input_name", name), (name,)),
        "module_output_name": (config.get("module_output_name") or name, (name,)),
    }
    for key, (value, computed) in asked.items():
        if value not in computed:
            raise CheckpointError(
                f"{path} has {key} {value!r}; only a Linear map with bias followed by Tanh or "
                f"Identity ({key} {' or '.join(map(repr, computed))}) is computed"
            )
    return str(activation)


_CONFIG = "cnn_config.json"


def write_cnn(path: Path, convolutions: Convolutions) -> None:
    """Write ``convolutions`` as a CNN module."""
    config = {
        "in_word_embedding_dimension": convolutions.convs[0].in_channels,
        "out_channels": convolutions.channels,
        "kernel_sizes": list(convolutions.widths),
        "stride_sizes": [1] * len(convolutions.widths),
    }
    write_json(path / _CONFIG, config)
    state = {name: tensor.detach().cpu() for name, tensor in convolutions.state_dict().items()}
    save_file(state, path / "model.safetensors")


def read_cnn(path: Path, width: int) -> Convolutions:
    """The convolutions of a CNN module, for token states of ``width`` dimensions."""
    config = read_json(path / _CONFIG)
    try:
        widths, channels = [int(n) for n in config["kernel_sizes"]], int(config["out_channels"])
        strides = config.get("stride_sizes") or [1] * len(widths)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path / _CONFIG} is damaged: {error!r}") from error
    if strides != [1] * len(widths) or not widths or any(n < 1 or n % 2 == 0 for n in widths):
        raise CheckpointError(
            f"{path} has kernel_sizes {widths} and stride_sizes {strides}; only odd sizes, and "
            "strides of 1, are computed"
        )
    convolutions = Convolutions(width, widths, channels)
    reason = f"its configuration with token states of {width} dimensions"
    read_exact(convolutions, path, reason)
    return convolutions
