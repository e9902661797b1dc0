"""The engines ``onnx`` and ``openvino``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from contrasent.model.engines.export import PaddedEngine, Piece, output_name
from contrasent.model.precision import has_bf16


class OnnxEngine(PaddedEngine):
    """A backbone as ONNX Runtime computes it, with as many threads as torch had when it was made.

    States equal torch's in fp32 to 1e-4.
    """

    engine = "onnx"
    precisions = ("fp32",)
    piece_tokens = 512

    @override
    def open(self, path: Path) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

    @override
    def compute(
        self, pieces: Sequence[Piece], layers: Sequence[int]
    ) -> list[list[NDArray[np.float32]]]:
        names = [output_name(layer) for layer in layers]
        states_of_each = []
        for piece in pieces:
            inputs = {"input_ids": piece.token_ids, "attention_mask": piece.mask}
            states = self._session.run(names, inputs)
            states_of_each.append([state[piece.kept] for state in states])
        return states_of_each


_DEVICE = "CPU"


class OpenVinoEngine(PaddedEngine):
    """A backbone as OpenVINO computes it, with as many threads as torch has.

    Each stream computes a piece on threads of its own, which is faster than all threads on one:
    products of a thousand tokens are too small to share.
    """

    engine = "openvino"
    piece_tokens = 1024

    @override
    def open(self, path: Path) -> None:
        import openvino

        self._core = openvino.Core()
        self._model = self._core.read_model(path)
        # OpenVINO's own oneDNN takes no notice of ONEDNN_MAX_CPU_ISA.
        narrow = "BF16" in self._core.get_property(_DEVICE, "OPTIMIZATION_CAPABILITIES")
        self.precisions = ("bf16", "fp32") if narrow and has_bf16(self.device) else ("fp32",)
        self._queues: dict[tuple[str, tuple[int, ...]], Any] = {}
        self._turn = Lock()

    @override
    def compute(
        self, pieces: Sequence[Piece], layers: Sequence[int]
    ) -> list[list[NDArray[np.float32]]]:
        states_of_each: list[list[NDArray[np.float32]]] = [[] for _ in pieces]

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
            outputs = [self._model.output(output_name(layer)) for layer in layers]
            graph = openvino.Model(outputs, self._model.get_parameters())
            settings = {
                "INFERENCE_NUM_THREADS": torch.get_num_threads(),
                "INFERENCE_PRECISION_HINT": precision,
                "PERFORMANCE_HINT": "THROUGHPUT",
            }
            compiled = self._core.compile_model(graph, _DEVICE, settings)
            self.streams = compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
            self._queues[key] = openvino.AsyncInferQueue(compiled, self.streams)
        return self._queues[key]
