"""The BERT family on packed tokens: our forward over the modules of a ``transformers`` model.

Shapes: T tokens end to end, S sentences, L tokens of the longest, D width, H heads.
Linear maps, LayerNorm, GELU and dropout see ``(T, D)``; only attention sees ``(S, H, L, D / H)``.
Dropout falls in the places, and with the rates, of the ``transformers`` modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel
from typing_extensions import override

from contrasent.data.batch import Batch
from contrasent.model.backbones.base import Backbone
from contrasent.model.backbones.layers import LayerModules, LayerWeights, layers_of


@dataclass(frozen=True, slots=True)
class _Blocks:
    """How packed tokens lie in the padded ``(S, L)`` blocks that attention works on."""

    sentences: int
    longest: int
    first: Tensor  # (S,) the packed number of each sentence's first token
    positions: Tensor  # (T,) the place of each token in its sentence
    slots: Tensor | None  # (T,) the place of each token in the (S * L) block; None: no padding
    mask: Tensor | None  # (S, 1, 1, L) True where there is a token; None: no padding

    @classmethod
    def of(cls, batch: Batch) -> _Blocks:
        lengths, first, tokens = batch.lengths, batch.offsets[:-1], len(batch.token_ids)
        longest = int(lengths.max())
        sentence = torch.repeat_interleave(lengths, output_size=tokens)
        positions = torch.arange(tokens, device=first.device) - first[sentence]
        if tokens == batch.sentences * longest:
            return cls(batch.sentences, longest, first, positions, None, None)
        mask = torch.arange(longest, device=first.device) < lengths.unsqueeze(1)
        slots = sentence * longest + positions
        return cls(batch.sentences, longest, first, positions, slots, mask[:, None, None])

    def pad(self, packed: Tensor) -> Tensor:
        """``(T, X)`` to ``(S, L, X)``, zero where there is no token."""
        if self.slots is not None:
            block = packed.new_zeros(self.sentences * self.longest, packed.shape[1])
            packed = block.index_copy(0, self.slots, packed)
        return packed.view(self.sentences, self.longest, -1)

    def unpad(self, block: Tensor) -> Tensor:
        """``(S, L, X)`` to ``(T, X)``."""
        flat = block.reshape(self.sentences * self.longest, -1)
        return flat if self.slots is None else flat[self.slots]


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
        self._kept: tuple[object, list[LayerWeights]] | None = None

    @override
    def forward(
        self, batch: Batch, layers: Sequence[int] = (-1,), *, first_only: bool = False
    ) -> dict[int, Tensor]:
        wanted = {layer: layer % (self.depth + 1) for layer in layers}
        device_type = batch.token_ids.device.type
        narrow = torch.is_autocast_enabled(device_type)
        dtype = torch.get_autocast_dtype(device_type) if narrow else self.model.dtype
        with torch.autocast(device_type, enabled=False):
            blocks = _Blocks.of(batch)
            state = self._embed(batch, blocks)
            found = {0: state}
            weights = self._weights(dtype)
            for number in range(1, max(wanted.values()) + 1):
                cut = first_only and number == self.depth
                state = self._layer(number - 1, weights[number - 1], state, blocks, cut)
                if number in wanted.values():
                    found[number] = state
        return {layer: found[number] for layer, number in wanted.items()}

    def _embed(self, batch: Batch, blocks: _Blocks) -> Tensor:
        part = self.model.embeddings
        state = part.word_embeddings(batch.token_ids)
        state = state + part.position_embeddings(blocks.positions + self.first_position)
        if hasattr(part, "token_type_embeddings"):
            state = state + part.token_type_embeddings.weight[0]
        dropped: Tensor = part.dropout(part.LayerNorm(state))
        return dropped

    def _layer(
        self, number: int, weights: LayerWeights, state: Tensor, blocks: _Blocks, cut: bool
    ) -> Tensor:
        """One transformer layer; with ``cut``, only the first row of each sentence comes out."""
        modules = self._layers[number]
        dtype = weights.qkv.dtype
        mixed = self._attend(modules, weights, state.to(dtype), blocks, cut)
        if cut:
            state = state[blocks.first]
        mixed = F.linear(mixed, weights.output, weights.output_bias)
        if modules.output_dropout is not None:
            mixed = modules.output_dropout(mixed)
        state = modules.attention_norm(state + mixed)
        inner = modules.activation(F.linear(state.to(dtype), weights.up, weights.up_bias))
        inner = modules.down_dropout(F.linear(inner, weights.down, weights.down_bias))
        normed: Tensor = modules.norm(state + inner)
        return normed

    def _attend(
        self,
        modules: LayerModules,
        weights: LayerWeights,
        state: Tensor,
        blocks: _Blocks,
        cut: bool,
    ) -> Tensor:
        """Self-attention; ``(T, D)``, or ``(S, D)`` of the first tokens with ``cut``."""
        if cut:
            width = self.width
            query = F.linear(state[blocks.first], weights.qkv[:width], weights.qkv_bias[:width])
            rest = F.linear(state, weights.qkv[width:], weights.qkv_bias[width:])
            key, value = self._split(blocks.pad(rest), 2)
            query = query.view(blocks.sentences, 1, self.heads, -1).transpose(1, 2)
        else:
            packed = F.linear(state, weights.qkv, weights.qkv_bias)
            query, key, value = self._split(blocks.pad(packed), 3)
        rate = modules.attention_dropout.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, blocks.mask, rate)
        mixed = mixed.transpose(1, 2)
        return mixed.reshape(blocks.sentences, -1) if cut else blocks.unpad(mixed)

    def _split(self, block: Tensor, parts: int) -> tuple[Tensor, ...]:
        """``(S, L, parts * D)`` to ``parts`` times ``(S, H, L, D / H)``."""
        sentences, longest, _ = block.shape
        apart = block.view(sentences, longest, parts, self.heads, -1)
        return apart.permute(2, 0, 3, 1, 4).unbind(0)

    def _weights(self, dtype: torch.dtype) -> list[LayerWeights]:
        """The matrices of all layers in ``dtype``; without gradients they are kept for next time."""
        if torch.is_grad_enabled():
            return [LayerWeights.of(layer, dtype) for layer in self._layers]
        key = (dtype, *((p.data_ptr(), p._version) for p in self.model.parameters()))
        if self._kept is None or self._kept[0] != key:
            self._kept = (key, [LayerWeights.of(layer, dtype) for layer in self._layers])
        return self._kept[1]


def _first_position(model: PreTrainedModel) -> int:
    """The number of the first token's position: RoBERTa counts on from its padding id."""
    offset = model.config.model_type in ("roberta", "xlm-roberta", "camembert")
    return int(model.config.pad_token_id) + 1 if offset else 0
