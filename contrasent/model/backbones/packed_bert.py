"""The BERT family on packed tokens: our forward over the modules of a ``transformers`` model.

Shapes: T tokens end to end, S sentences, L tokens of the longest, D width, H heads.
Linear maps, LayerNorm, GELU and dropout see ``(T, D)``; only attention sees ``(S, H, L, D / H)``.
Dropout falls in the places, and with the rates, of the ``transformers`` modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from typing_extensions import override

from contrasent.data.batch import Batch
from contrasent.model.backbones.alone import Serving
from contrasent.model.backbones.attention import attention
from contrasent.model.backbones.base import Backbone
from contrasent.model.backbones.blocks import Blocks
from contrasent.model.backbones.layers import LayerModules, LayerWeights, layers_of
from contrasent.model.dropout import add_dropped, dropout

_COUNTING = Lock()


class PackedBert(Backbone):
    """BERT, RoBERTa, XLM-R, CamemBERT, DistilBERT and MiniLM without padding.

    States equal those of ``transformers`` to float tolerance; with dropout they are draws from
    the same distribution.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        config = model.config
        self.model = model
        self.width = config.hidden_size
        self.heads = config.num_attention_heads
        self.depth = config.num_hidden_layers
        self.first_position = _first_position(model)
        self.max_tokens = config.max_position_embeddings - self.first_position
        self._layers = layers_of(model)
        self._kept: dict[torch.dtype, list[LayerWeights]] | None = None
        self._users = 0
        self._serving = Serving(self._layers, self.heads)

    @override
    def forward(
        self, batch: Batch, layers: Sequence[int] = (-1,), *, first_only: bool = False
    ) -> dict[int, Tensor]:
        wanted = {layer: layer % (self.depth + 1) for layer in layers}
        device_type = batch.token_ids.device.type
        narrow = torch.is_autocast_enabled(device_type)
        dtype = torch.get_autocast_dtype(device_type) if narrow else self.model.dtype
        if not self.training and self._serving.takes(batch, dtype):
            return self._alone(batch, wanted, dtype)
        with torch.autocast(device_type, enabled=False):
            blocks = Blocks.of(batch, self.heads, round_rows=narrow and device_type == "cpu")
            tokens = len(batch.token_ids)
            state = self._embed(batch.token_ids, blocks.positions)
            found = {0: state}
            state = F.pad(state, (0, 0, 0, blocks.rows - tokens))
            weights = self._weights(dtype)
            for number in range(1, max(wanted.values()) + 1):
                cut = first_only and number == self.depth
                state = self._layer(number - 1, weights[number - 1], state, blocks, cut)
                if number in wanted.values():
                    found[number] = state if cut else state[:tokens]
        return {layer: found[number] for layer, number in wanted.items()}

    def _alone(
        self, batch: Batch, wanted: dict[int, int], dtype: torch.dtype
    ) -> dict[int, Tensor]:
        """The states of a single sentence, while serving."""
        with torch.autocast(batch.token_ids.device.type, enabled=False):
            state = self._embed(batch.token_ids, torch.arange(len(batch.token_ids)))
            found = self._serving.alone(dtype)(state, list(wanted.values()))
        return {layer: found[number] for layer, number in wanted.items()}

    def _embed(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        part: Any = self.model.embeddings
        state = part.word_embeddings(token_ids)
        state = state + part.position_embeddings(positions + self.first_position)
        if hasattr(part, "token_type_embeddings"):
            state = state + part.token_type_embeddings.weight[0]
        return dropout(part.LayerNorm(state), self._rate(part.dropout))

    def _layer(
        self, number: int, weights: LayerWeights, state: Tensor, blocks: Blocks, cut: bool
    ) -> Tensor:
        """One transformer layer; with ``cut``, only the first row of each sentence comes out."""
        modules = self._layers[number]
        dtype = weights.qkv.dtype
        mixed = self._attend(modules, weights, state.to(dtype), blocks, cut)
        if cut:
            state = state[blocks.first]
        mixed = F.linear(mixed, weights.output, weights.output_bias)
        rate = self._rate(modules.output_dropout)
        state = modules.attention_norm(add_dropped(state, mixed, rate))
        inner = modules.activation(F.linear(state.to(dtype), weights.up, weights.up_bias))
        inner = F.linear(inner, weights.down, weights.down_bias)
        normed: Tensor = modules.norm(add_dropped(state, inner, self._rate(modules.down_dropout)))
        return normed

    def _attend(
        self,
        modules: LayerModules,
        weights: LayerWeights,
        state: Tensor,
        blocks: Blocks,
        cut: bool,
    ) -> Tensor:
        """Self-attention; ``(T, D)``, or ``(S, D)`` of the first tokens with ``cut``."""
        rate = self._rate(modules.attention_dropout)
        bias = blocks.bias(state.dtype)
        if not cut:
            packed = F.linear(state, weights.qkv, weights.qkv_bias)
            query, key, value = blocks.spread(packed, 3)
            return blocks.gather(attention(query, key, value, bias, rate))
        width = self.width
        query = F.linear(state[blocks.first], weights.qkv[:width], weights.qkv_bias[:width])
        rest = F.linear(state, weights.qkv[width:], weights.qkv_bias[width:])
        key, value = blocks.spread(rest, 2)
        alone = query.view(blocks.sentences * self.heads, 1, -1)
        return attention(alone, key, value, bias, rate).view(blocks.sentences, width)

    def _rate(self, module: nn.Dropout | None) -> float:
        return module.p if self.training and module is not None else 0.0

    @override
    @contextmanager
    def unchanging(self) -> Iterator[None]:
        # Threads may embed at once: what is kept goes when the last of them is done.
        with _COUNTING:
            self._users += 1
            self._kept = {} if self._kept is None else self._kept
        try:
            yield
        finally:
            with _COUNTING:
                self._users -= 1
                self._kept = self._kept if self._users else None

    @override
    @contextmanager
    def serving(self) -> Iterator[None]:
        with self.unchanging(), self._serving:
            yield

    def _weights(self, dtype: torch.dtype) -> list[LayerWeights]:
        """The matrices of all layers in ``dtype``."""
        kept = None if torch.is_grad_enabled() else self._kept
        weights = None if kept is None else kept.get(dtype)
        if weights is None:
            weights = [LayerWeights.of(layer, dtype) for layer in self._layers]
        if kept is not None:
            kept[dtype] = weights
        return weights


def _first_position(model: PreTrainedModel) -> int:
    """The number of the first token's position: RoBERTa counts on from its padding id."""
    offset = model.config.model_type in ("roberta", "xlm-roberta", "camembert")
    return int(model.config.pad_token_id) + 1 if offset else 0
