"""The engines ``onnx`` and ``openvino``, and the ONNX file that they compute.

Shapes: T tokens end to end, S sentences, D width; in a piece s sentences, the longest of L tokens.
"""

from __future__ import annotations

import json
import warnings
from abc import abstractmethod
from collections.abc import Sequence, Set
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from contrasent.data.batch import Batch, pack
from contrasent.errors import ConfigError
from contrasent.files import cached, sha256_of
from contrasent.model.backbones.base import Backbone
from contrasent.model.encoding import evaluating
from contrasent.model.engines.base import Engine, weights_sha256
from contrasent.model.precision import has_bf16, matrix_precision
from contrasent.model.weights import quiet

OPSET = 17
_FORMAT = "contrasent-onnx-2"
_MODEL, _MANIFEST = "model.onnx", "manifest.json"
_NOT_THE_GRAPH = ("_name_or_path", "dtype", "torch_dtype", "transformers_version")


LAST_STATE = "last_hidden_state"
"""The output that other libraries look for; those of other layers are numbered from 0."""


def output_names(depth: int) -> list[str]:
    """The outputs of a graph with ``depth`` layers, from the embedding layer's on."""
    return [*(f"state_{layer}" for layer in range(depth)), LAST_STATE]


def export_onnx(backbone: Backbone, path: Path, *, last_only: bool = False) -> None:
    """Write the transformer of ``backbone`` to ``path``; weights of over 2 GB lie in files beside.

    The inputs are `input_ids` and `attention_mask`, both ``(S, L)`` int64 and padded on the right;
    the outputs, ``(S, L, D)`` float32, are the states of all layers by their :func:`output_names`,
    or of the last only. Raises ConfigError for an architecture that has no such form.
    """
    ids = torch.arange(1, 11).view(2, 5)
    mask = torch.ones_like(ids)
    mask[1, 3:] = 0
    states = [LAST_STATE] if last_only else output_names(backbone.depth)
    names = ["input_ids", "attention_mask"]
    try:
        with evaluating(backbone), quiet(), warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of how tracing will be done in the future
            torch.onnx.export(
                _States(backbone, last_only).eval(),  # the exporter puts this mode back
                (ids, mask),
                str(path),
                input_names=names,
                output_names=states,
                dynamic_axes={name: {0: "sentences", 1: "tokens"} for name in (*names, *states)},
                opset_version=OPSET,
                dynamo=False,  # the other exporter needs onnxscript
            )
    except Exception as error:  # the exporter and the tracer raise anything
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ConfigError(
            f"{backbone.kind} cannot be written as ONNX: {reason}; load it with engine 'torch'"
        ) from error


def export_cached(backbone: Backbone) -> Path:
    """The ONNX file of ``backbone`` in the cache, written unless it is there and whole.

    An entry is named by a hash of the weights, the configuration, and the versions of what writes
    it. Of several processes that want one entry, one writes it and the others wait.
    """

    def read(entry: Path) -> Path:
        files = dict(json.loads((entry / _MANIFEST).read_text(encoding="utf-8"))["sha256"])
        if _MODEL not in files or any(sha256_of(entry / n) != h for n, h in files.items()):
            raise ValueError(f"{entry} is damaged")
        return entry / _MODEL

    def write(folder: Path) -> None:
        export_onnx(backbone, folder / _MODEL)
        files = {file.name: sha256_of(file) for file in sorted(folder.iterdir())}
        text = json.dumps({"format": _FORMAT, "sha256": files}, indent=1)
        (folder / _MANIFEST).write_text(text, encoding="utf-8")

    config = {k: v for k, v in backbone.model.config.to_dict().items() if k not in _NOT_THE_GRAPH}
    versions = [version(package) for package in ("torch", "transformers")]
    parts = [_FORMAT, OPSET, versions, weights_sha256(backbone), config]
    key = json.loads(json.dumps(parts, sort_keys=True, default=str))
    return cached("onnx", "a converted encoder", key, read, write)


class _States(nn.Module):
    def __init__(self, backbone: Backbone, last_only: bool) -> None:
        super().__init__()
        self.model, self.last_only = backbone.model, last_only

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        output = self.model(**inputs, output_hidden_states=not self.last_only)
        return (*(output.hidden_states or ())[:-1], output.last_hidden_state)


_CLOSE = 0.99
"""Least cosine of a token state to torch's; bf16 stays above 0.999."""


class Piece(NamedTuple):
    """Neighbouring sentences of a batch, ``(s, L)``; ``kept`` are the tokens that are wanted."""

    token_ids: NDArray[np.int64]
    mask: NDArray[np.int64]
    kept: NDArray[np.bool_]


Rows = list[NDArray[np.float32]]
"""The kept rows of a piece, for each layer that is asked for."""


class PaddedEngine(Engine):
    """Splits a batch into pieces of about ``piece_tokens`` tokens that fit a processor's cache.

    ``streams`` of them are computed at once.
    """

    piece_tokens: int
    streams = 1

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone)
        if backbone.depends_on_padding():
            raise ConfigError(
                f"padding changes the states of {backbone.kind}, and a graph is given padded "
                "sentences; only the engine 'torch' computes them right"
            )
        self.padding = backbone.padding_id
        self.outputs = output_names(backbone.depth)

    @classmethod
    def from_backbone(cls, backbone: Backbone) -> Self:
        engine = cls(backbone)
        engine.open(export_cached(backbone))
        return engine.verify(backbone)

    @abstractmethod
    def open(self, path: Path) -> None:
        """Load the graph from the file ``path``, ONNX or what the runtime writes itself."""

    @abstractmethod
    def reopen(self) -> None:
        """Let the runtime compute with as many threads as torch has now, here: after a fork too."""

    @abstractmethod
    def compute(self, pieces: Sequence[Piece], layers: Sequence[int]) -> list[Rows]:
        """The kept rows of each piece for each of ``layers``, numbers from 0."""

    def states(
        self, batch: Batch, wanted: Set[int], first_only: bool, first_state: Tensor | None
    ) -> dict[int, Tensor]:
        numbers = sorted(wanted)
        pieces = self.compute(self._pieces(batch, first_only), numbers)
        return {
            number: torch.from_numpy(np.concatenate([rows[place] for rows in pieces]))
            for place, number in enumerate(numbers)
        }

    def _pieces(self, batch: Batch, first_only: bool) -> list[Piece]:
        tokens, offsets = batch.token_ids.numpy(), batch.offsets.numpy()
        count = -(-len(tokens) // (self.piece_tokens * self.streams)) * self.streams
        cuts = np.searchsorted(offsets, np.linspace(0, len(tokens), count + 1))
        pieces = []
        for start, end in pairwise(cuts):
            lengths = np.diff(offsets[start : end + 1])
            if not len(lengths):
                continue
            mask = np.arange(lengths.max()) < lengths[:, None]
            padded = np.full(mask.shape, self.padding, np.int64)
            padded[mask] = tokens[offsets[start] : offsets[end]]
            kept = mask & (np.arange(mask.shape[1]) == 0) if first_only else mask
            pieces.append(Piece(padded, mask.astype(np.int64), kept))
        return pieces

    def verify(self, backbone: Backbone) -> Self:
        """The engine, if it gives the states of ``backbone`` for a few tokens; else ConfigError."""
        embeddings: Any = backbone.model.get_input_embeddings()
        rows = embeddings.weight.shape[0]
        lengths = (1, 3, min(9, self.max_tokens))
        batch = pack([(np.arange(n) * 7 + 5) % rows for n in lengths])
        with torch.inference_mode(), matrix_precision(self.resolve_precision("auto"), self.device):
            ours = self(batch)[-1]
        with evaluating(backbone), torch.inference_mode(), matrix_precision("fp32", self.device):
            theirs = backbone(batch)[-1]
        cosine = torch.cosine_similarity(ours, theirs, dim=-1).min().item()
        if not cosine > _CLOSE:
            raise ConfigError(
                f"the engine {self.engine!r} gives other states than torch for this architecture "
                f"(a cosine of {cosine:.4f}); load it with engine 'torch'"
            )
        return self


class OnnxEngine(PaddedEngine):
    """A backbone as ONNX Runtime computes it, with as many threads as torch had when it was opened.

    States equal torch's in fp32 to 1e-4.
    """

    engine = "onnx"
    precisions = ("fp32",)
    piece_tokens = 512

    def open(self, path: Path) -> None:
        self._path = path
        self.reopen()

    def reopen(self) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        self._session = onnxruntime.InferenceSession(
            str(self._path), options, providers=["CPUExecutionProvider"]
        )

    def compute(self, pieces: Sequence[Piece], layers: Sequence[int]) -> list[Rows]:
        names = [self.outputs[layer] for layer in layers]
        states_of_each = []
        for piece in pieces:
            inputs = {"input_ids": piece.token_ids, "attention_mask": piece.mask}
            states = self._session.run(names, inputs)
            states_of_each.append([state[piece.kept] for state in states])
        return states_of_each


_DEVICE = "CPU"


@cache
def _core() -> Any:
    """OpenVINO in this process: of several, one that is gone leaves a stack for signals behind.

    A signal that comes then, such as Ctrl-C, ends the process.
    """
    import openvino

    return openvino.Core()


class OpenVinoEngine(PaddedEngine):
    """A backbone as OpenVINO computes it, with as many threads as torch has at first.

    It computes in no process that was forked from one where it did. Each stream computes a piece on
    threads of its own, which is faster than all threads on one.
    """

    engine = "openvino"
    piece_tokens = 1024

    def open(self, path: Path) -> None:
        self._model = _core().read_model(path)
        # OpenVINO's own oneDNN takes no notice of ONEDNN_MAX_CPU_ISA.
        narrow = "BF16" in _core().get_property(_DEVICE, "OPTIMIZATION_CAPABILITIES")
        self.precisions = ("bf16", "fp32") if narrow and has_bf16(self.device) else ("fp32",)
        self._turn = Lock()
        self.reopen()

    def reopen(self) -> None:
        self._queues: dict[tuple[str, tuple[int, ...]], Any] = {}

    def compute(self, pieces: Sequence[Piece], layers: Sequence[int]) -> list[Rows]:
        states_of_each: list[Rows] = [[] for _ in pieces]

        def keep(request: Any, number: int) -> None:
            kept = pieces[number].kept
            states_of_each[number] = [output.data[kept] for output in request.output_tensors]

        with self._turn:
            queue = self._queue(tuple(layers))
            queue.set_callback(keep)
            for number, piece in enumerate(pieces):
                queue.start_async([piece.token_ids, piece.mask], number, share_inputs=True)
            queue.wait_all()
        return states_of_each

    def _queue(self, layers: tuple[int, ...]) -> Any:
        """The requests of the graph that ends in ``layers``, in torch's precision of the moment."""
        import openvino

        precision = "bf16" if torch.is_autocast_enabled("cpu") else "f32"
        key = (precision, layers)
        if key not in self._queues:
            outputs = [self._model.output(self.outputs[layer]) for layer in layers]
            graph = openvino.Model(outputs, self._model.get_parameters())
            settings = {
                "INFERENCE_NUM_THREADS": torch.get_num_threads(),
                "INFERENCE_PRECISION_HINT": precision,
                "PERFORMANCE_HINT": "THROUGHPUT",
            }
            compiled = _core().compile_model(graph, _DEVICE, settings)
            self.streams = compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
            self._queues[key] = openvino.AsyncInferQueue(compiled, self.streams)
        return self._queues[key]
