"""A backbone as an ONNX file, made once and kept in the cache.

Shapes: S sentences, L tokens of the longest, D width.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn
from typing_extensions import override

from contrasent.data.cache import default_cache
from contrasent.errors import ConfigError
from contrasent.files import sha256_of, writing_folder
from contrasent.model.backbones.base import Backbone
from contrasent.model.engines.base import weights_sha256
from contrasent.model.weights import quiet

OPSET = 17
_FORMAT = "contrasent-onnx-1"
_MODEL, _MANIFEST = "model.onnx", "manifest.json"
_NOT_THE_GRAPH = ("_name_or_path", "dtype", "torch_dtype", "transformers_version")


def output_name(layer: int) -> str:
    """The name of the output with the state of ``layer``, counted from 0."""
    return f"state_{layer}"


def export_onnx(backbone: Backbone, path: Path) -> None:
    """Write the transformer of ``backbone`` to ``path``; weights of over 2 GB lie in files beside.

    The inputs are `input_ids` and `attention_mask`, both ``(S, L)`` int64 and padded on the right;
    the outputs `state_0` to `state_K`, ``(S, L, D)`` float32, are the states of all layers.

    Raises:
        ConfigError: the architecture has no such form.
    """
    ids = torch.arange(1, 11).view(2, 5)
    mask = torch.ones_like(ids)
    mask[1, 3:] = 0
    states = [output_name(layer) for layer in range(backbone.depth + 1)]
    names = ["input_ids", "attention_mask"]
    try:
        with _tracing(backbone):
            torch.onnx.export(
                _AllStates(backbone),
                (ids, mask),
                str(path),
                input_names=names,
                output_names=states,
                dynamic_axes={name: {0: "sentences", 1: "tokens"} for name in (*names, *states)},
                opset_version=OPSET,
                dynamo=False,  # the other exporter needs onnxscript
            )
    except Exception as error:  # the exporter and the tracer raise anything
        told = " ".join(str(error).split())[:300] or type(error).__name__
        raise ConfigError(
            f"the architecture {_architecture(backbone)!r} cannot be written as ONNX: {told}; "
            "load it with engine 'torch'"
        ) from error


def exported(backbone: Backbone) -> Path:
    """The ONNX file of ``backbone`` in the cache, written unless it is there and whole.

    An entry is named by a hash of the weights, the configuration, and the versions of what writes
    it. Of several processes that want one entry, one writes it and the others wait.

    Raises:
        ConfigError: the architecture has no such form, or the cache cannot be written to.
    """
    from filelock import FileLock

    root = default_cache()
    entry = root / "onnx" / _key(backbone)
    if _is_whole(entry):
        return entry / _MODEL
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{entry}.lock"):
            if not _is_whole(entry):
                _write(entry, backbone)
    except (OSError, NotImplementedError) as error:
        raise ConfigError(
            f"cannot keep a converted encoder in {root}: {error}; name a folder with room in the "
            "environment variable CONTRASENT_CACHE"
        ) from error
    return entry / _MODEL


class _AllStates(nn.Module):
    """The transformer with positions counted as the backbone counts them."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.model = backbone.model
        self.first_position = getattr(backbone, "first_position", 0)

    @override
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        inputs: dict[str, Tensor] = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.first_position:
            # RoBERTa's own count skips a padding token that a text spells out.
            positions = torch.arange(input_ids.shape[1]) + self.first_position
            inputs["position_ids"] = positions.unsqueeze(0).expand(input_ids.shape)
        output = self.model(**inputs, output_hidden_states=True)
        return (*output.hidden_states[:-1], output.last_hidden_state)


@contextmanager
def _tracing(backbone: Backbone) -> Iterator[None]:
    """No dropout, no gradients, and no word about how tracing will be done in the future."""
    training = backbone.training
    backbone.eval()
    try:
        with quiet(), warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        backbone.train(training)


def _key(backbone: Backbone) -> str:
    config = {k: v for k, v in backbone.model.config.to_dict().items() if k not in _NOT_THE_GRAPH}
    versions = [version(package) for package in ("torch", "transformers")]
    parts = [_FORMAT, OPSET, versions, weights_sha256(backbone), config]
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _write(entry: Path, backbone: Backbone) -> None:
    with writing_folder(entry) as folder:
        export_onnx(backbone, folder / _MODEL)
        files = {file.name: sha256_of(file) for file in sorted(folder.iterdir())}
        text = json.dumps({"format": _FORMAT, "sha256": files}, indent=1)
        (folder / _MANIFEST).write_text(text, encoding="utf-8")


def _is_whole(entry: Path) -> bool:
    """Whether every file of ``entry`` holds what was written."""
    try:
        files = json.loads((entry / _MANIFEST).read_text(encoding="utf-8"))["sha256"]
        return _MODEL in files and all(sha256_of(entry / n) == h for n, h in files.items())
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False


def _architecture(backbone: Backbone) -> str:
    return str(backbone.model.config.model_type)
