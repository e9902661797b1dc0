"""sentence-transformers' CNN module: convolutions over token states."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file

from contrasent.errors import CheckpointError
from contrasent.model.convolutions import Convolutions
from contrasent.model.st_dense import read_json, write_json
from contrasent.model.weights import read_tensors

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
    """The convolutions of a CNN module, for token states of ``width`` numbers.

    Raises:
        CheckpointError: it is damaged, or one that is not computed here.
    """
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
    made = Convolutions(width, widths, channels)
    state = made.state_dict()
    stored = read_tensors(path, list(state))
    for name, tensor in state.items():
        found = stored.get(name)
        if found is None or found.shape != tensor.shape:
            there = "nothing" if found is None else list(found.shape)
            raise CheckpointError(
                f"{path} has {there} for {name}, where its configuration and token states of "
                f"{width} numbers need {list(tensor.shape)}"
            )
    made.load_state_dict(stored)
    return made
