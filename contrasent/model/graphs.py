"""A transformer as a graph for ONNX Runtime and OpenVINO, and how these compute it.

Shapes: S sentences, L tokens of the longest, T tokens end to end, D width.
"""

from __future__ import annotations

import warnings
from collections.abc import Set
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from contrasent.data.batch import Batch
from contrasent.errors import ConfigError, first_line, require_extra
from contrasent.files import scratch
from contrasent.model.backbones.base import Backbone, evaluating
from contrasent.model.weights import quiet

OPSET = 17
_PACKAGES = {"onnx": ("onnx", "onnxruntime"), "openvino": ("onnx", "openvino")}


def require_runtime(name: str) -> None:
    """Raise MissingExtraError without the packages of ``onnx`` or ``openvino``."""
    require_extra(f"the format {name!r}", name, *_PACKAGES[name])


def write_graph(backbone: Backbone, path: Path, name: str) -> GraphBackbone:
    """Write the transformer of ``backbone`` to ``path`` for ``onnx`` or ``openvino``.

    Inputs are `input_ids` and `attention_mask`, both ``(S, L)`` int64 and padded on the right; the
    output is `last_hidden_state (S, L, D)`. ConfigError for an architecture without such a form.
    """
    if name == "onnx":
        export_onnx(backbone, path)
    else:
        import openvino

        with scratch("graph") as folder:
            export_onnx(backbone, Path(folder) / "model.onnx")
            graph = openvino.convert_model(Path(folder) / "model.onnx")
            openvino.save_model(graph, path, compress_to_fp16=False)
    return GraphBackbone(backbone, path, name)


class _LastState(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        output = self.model(input_ids=input_ids, attention_mask=attention_mask)
        state: Tensor = output.last_hidden_state
        return state


def export_onnx(backbone: Backbone, path: Path) -> None:
    """Write ONNX; weights of over 2 GB lie in files beside."""
    if backbone.depends_on_padding():
        backbone.refuse("padding, which graphs are given, changes the states of {}", "use torch")
    ids = torch.arange(1, 11).view(2, 5)
    mask = torch.ones_like(ids)
    mask[1, 3:] = 0
    names, states = ["input_ids", "attention_mask"], ["last_hidden_state"]
    try:
        with evaluating(backbone), quiet(), warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of how tracing will be done in the future
            torch.onnx.export(
                _LastState(backbone.model).eval(),  # the exporter puts this mode back
                (ids, mask),
                str(path),
                input_names=names,
                output_names=states,
                dynamic_axes={it: {0: "sentences", 1: "tokens"} for it in (*names, *states)},
                opset_version=OPSET,
                dynamo=False,  # the other exporter needs onnxscript
            )
    except Exception as error:  # the exporter and the tracer raise anything
        problem = f"cannot be written as ONNX: {first_line(error)}"
        raise ConfigError(f"{backbone.kind} {problem}") from error


class GraphBackbone(Backbone):
    """The last states of ``backbone`` by the runtime ``name``, to check its export ``path``."""

    pads = True
    kind = "an exported graph"
    precisions = ("fp32",)
    device = torch.device("cpu")

    def __init__(self, backbone: Backbone, path: Path, name: str) -> None:
        super().__init__()
        self.width, self.depth = backbone.width, backbone.depth
        self.max_tokens, self._padding = backbone.max_tokens, backbone.padding_id
        self._run: Any
        if name == "onnx":
            import onnxruntime

            session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            self._run = lambda **inputs: session.run(None, inputs)[0]
        else:
            import openvino

            exact = {"INFERENCE_PRECISION_HINT": "f32"}
            graph = openvino.Core().compile_model(path, "CPU", exact)
            self._run = lambda **inputs: graph(inputs)[0]

    def states(
        self, batch: Batch, wanted: Set[int], first_only: bool, first_state: Tensor | None
    ) -> dict[int, Tensor]:
        sentences = torch.split(batch.token_ids, batch.lengths.tolist())
        padded = pad_sequence(list(sentences), batch_first=True, padding_value=self._padding)
        mask = torch.arange(padded.shape[1]) < batch.lengths.unsqueeze(1)
        state = self._run(input_ids=padded.numpy(), attention_mask=mask.long().numpy())
        return {self.depth: torch.from_numpy(state)[mask]}
