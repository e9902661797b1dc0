"""The engine ``onnx``: ONNX Runtime in fp32."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from contrasent.model.engines.export import output_name
from contrasent.model.engines.padded import PaddedEngine, Piece


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
        found = []
        for piece in pieces:
            inputs = {"input_ids": piece.token_ids, "attention_mask": piece.mask}
            states = self._session.run(names, inputs)
            found.append([state[piece.kept] for state in states])
        return found
