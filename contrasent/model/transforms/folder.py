"""A transform as a module of a sentence-transformers folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from safetensors.torch import save_file
from torch import Tensor, nn

from contrasent.errors import CheckpointError, ContrasentError
from contrasent.files import read_json, write_json
from contrasent.model.transforms.base import Transform, empty
from contrasent.model.weights import read_exact

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_KIND = "transform"


def write_transform(folder: Path, transform: Transform) -> None:
    """Write a transform's settings and weights into ``folder``."""
    write_json(folder / CONFIG, {_KIND: transform.name, **transform.settings()})
    state = {name: tensor.detach().cpu() for name, tensor in transform.state_dict().items()}
    save_file(state, folder / WEIGHTS)


def read_transform(folder: Path) -> Transform:
    """Read what :func:`write_transform` wrote; CheckpointError if it is damaged or unknown."""
    try:
        config: dict[str, Any] = read_json(folder / CONFIG)
        transform = empty(config.pop(_KIND), config)
        read_exact(transform, folder, f"a {transform.name} of these settings")
    except (LookupError, TypeError, AttributeError, ContrasentError) as error:
        reason = f"{type(error).__name__}: " if not isinstance(error, ContrasentError) else ""
        raise CheckpointError(f"cannot read the transform in {folder}: {reason}{error}") from error
    return transform.requires_grad_(False).eval()


class FittedTransform(nn.Module):
    """How sentence-transformers loads a transform, where this package is installed and trusted."""

    def __init__(self, transform: Transform) -> None:
        super().__init__()
        self.transform = transform

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Map ``features["sentence_embedding"]``."""
        features["sentence_embedding"] = self.transform(features["sentence_embedding"])
        return features

    def get_sentence_embedding_dimension(self) -> int:
        """K, dimensions of an embedding."""
        return self.transform.width

    def save(self, output_path: str, *_: object, **__: object) -> None:
        """Write it into a folder."""
        write_transform(Path(output_path), self.transform)

    @classmethod
    def load(cls, input_path: str) -> Self:
        """Read it from a folder."""
        return cls(read_transform(Path(input_path)))
