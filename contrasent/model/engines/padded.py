"""Engines that compute padded pieces of a batch: packed tokens in and out, padding inside.

Shapes: T tokens end to end, S sentences, D width; in a piece s sentences, the longest of L tokens.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from contrasent.data.batch import Batch, pack
from contrasent.errors import ConfigError
from contrasent.model.backbones.base import Backbone
from contrasent.model.engines.base import Engine
from contrasent.model.engines.export import exported
from contrasent.model.precision import matrix_precision

_CLOSE = 0.99
"""Least cosine of a token state to torch's; bf16 stays above 0.999."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring sentences of a batch.

    Attributes:
        token_ids: ``(s, L)`` int64.
        mask: ``(s, L)`` int64, 1 where there is a token.
        kept: ``(s, L)`` bool, the tokens whose states are wanted.
    """

    token_ids: NDArray[np.int64]
    mask: NDArray[np.int64]
    kept: NDArray[np.bool_]


class PaddedEngine(Engine):
    """Splits a batch into pieces that fit a processor's cache and that streams can share.

    Attributes:
        piece_tokens: tokens of a piece, at most by one sentence more.
        streams: pieces that are computed at once.
        padding: the token id that fills up short sentences.
    """

    piece_tokens: int
    streams = 1

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone)
        self.padding = backbone.model.config.pad_token_id or 0

    @classmethod
    @override
    def from_backbone(cls, backbone: Backbone) -> Self:
        made = cls(backbone)
        made.open(exported(backbone))
        return made.checked(backbone)

    @abstractmethod
    def open(self, path: Path) -> None:
        """Load the graph from the ONNX file ``path``."""

    @abstractmethod
    def compute(
        self, pieces: Sequence[Piece], layers: Sequence[int]
    ) -> list[list[NDArray[np.float32]]]:
        """The kept rows of each piece for each of ``layers``, numbers from 0."""

    @override
    def forward(
        self,
        batch: Batch,
        layers: Sequence[int] = (-1,),
        *,
        first_only: bool = False,
        first_state: Tensor | None = None,
    ) -> dict[int, Tensor]:
        if first_state is not None:
            self.require_first_state()
        wanted = {layer: layer % (self.depth + 1) for layer in layers}
        numbers = sorted(set(wanted.values()))
        found = self.compute(self._pieces(batch, first_only), numbers)
        states = {
            number: torch.from_numpy(np.concatenate([rows[place] for rows in found]))
            for place, number in enumerate(numbers)
        }
        return {layer: states[number] for layer, number in wanted.items()}

    def _pieces(self, batch: Batch, first_only: bool) -> list[Piece]:
        tokens, offsets = batch.token_ids.numpy(), batch.offsets.numpy()
        count = -(-len(tokens) // (self.piece_tokens * self.streams)) * self.streams
        cuts = np.searchsorted(offsets, np.linspace(0, len(tokens), count + 1))
        pieces = []
        for start, end in pairwise(cuts):
            if start == end:
                continue
            lengths = np.diff(offsets[start : end + 1])
            mask = np.arange(lengths.max()) < lengths[:, None]
            padded = np.full(mask.shape, self.padding, np.int64)
            padded[mask] = tokens[offsets[start] : offsets[end]]
            kept = mask & (np.arange(mask.shape[1]) == 0) if first_only else mask
            pieces.append(Piece(padded, mask.astype(np.int64), kept))
        return pieces

    def checked(self, backbone: Backbone) -> Self:
        """The engine itself, once it has given the states of ``backbone`` for a few tokens.

        Raises:
            ConfigError: it gives others: the graph is not the model.
        """
        embeddings: Any = backbone.model.get_input_embeddings()
        rows = embeddings.weight.shape[0]
        lengths = (1, 3, min(9, self.max_tokens))
        batch = pack([(np.arange(n) * 7 + 5) % rows for n in lengths])
        with torch.inference_mode(), matrix_precision(self.resolve_precision("auto"), self.device):
            ours = self(batch)[-1]
        training = backbone.training
        with torch.inference_mode(), matrix_precision("fp32", self.device):
            theirs = backbone.eval()(batch)[-1]
        backbone.train(training)
        cosine = torch.cosine_similarity(ours, theirs, dim=-1).min().item()
        if not cosine > _CLOSE:
            raise ConfigError(
                f"the engine {self.engine!r} gives other states than torch for this architecture "
                f"(a cosine of {cosine:.4f}); load it with engine 'torch'"
            )
        return self
