"""The BERT family on packed tokens: our forward over the modules of a ``transformers`` model.

Shapes: T tokens end to end, S sentences, L tokens of the longest, D width, H heads.
Linear maps, LayerNorm, GELU and dropout see ``(R, D)``, R >= T rows, a few of them spare; only
attention sees ``(S, H, L, D / H)``.
Dropout falls in the places, and with the rates, of the ``transformers`` modules.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from contrasent.data.batch import Batch
from contrasent.model.backbones.attention import attention, first_attention
from contrasent.model.backbones.base import Backbone, first_position
from contrasent.model.backbones.inference import InferenceLayer, SingleSentence, WeightCache
from contrasent.model.backbones.layers import (
    LayerModules,
    LayerWeights,
    dropout,
    dropout_norm,
    embed_tokens,
    has_products,
    layers_of,
    linear,
)
from contrasent.model.backbones.packing import Blocks, packed_attention_available

_USUAL_ROWS = 4096
"""Rows of a batch that an encoder is given on a CPU, about."""

_WORTH_LAYING_OUT = 1024
_LAID_OUT = "laid out"

States = tuple[Tensor, Tensor]
"""A state ``(R, D)`` in the number format of the weights, and the same in that of the products."""


@dataclass(frozen=True, slots=True)
class SentenceAddition:
    """What a layer of a decoder adds to the tokens of each sentence after its self-attention.

    ``states (S, D)``, with dropout on what each token gets; ``norm`` is applied to the sum.
    """

    states: Tensor
    norm: nn.LayerNorm


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
        self.max_tokens = config.max_position_embeddings - first_position(model)
        self.read_layers()
        self._unchanging = WeightCache()
        self._serving = WeightCache()

    def read_layers(self) -> None:
        self._layers = layers_of(self.model)

    def states(
        self, batch: Batch, wanted: Set[int], first_only: bool, first_state: Tensor | None
    ) -> dict[int, Tensor]:
        device = batch.token_ids.device
        narrow, dtype = self.products(device)
        with torch.autocast(device.type, enabled=False):
            plain = first_state is None and batch.positions is None and not batch.changes_embeddings
            infers = plain and self._infers(device, dtype)
            if infers and batch.sentences == 1 and self._serving.is_open:
                return self._alone(batch, wanted, dtype)
            if infers and narrow and self._is_worth(batch, dtype):
                return self._infer(batch, wanted, dtype, first_only)
            return self._compute(batch, wanted, dtype, first_only, first_state)

    def decode(self, batch: Batch, additions: Sequence[SentenceAddition]) -> Tensor:
        """The last states ``(T, D)`` of tokens that see only themselves and those before them.

        There is one of ``additions`` for each layer.
        """
        device = batch.token_ids.device
        _, dtype = self.products(device)
        with torch.autocast(device.type, enabled=False):
            states = self._compute(batch, {self.depth}, dtype, False, None, additions)
        return states[self.depth]

    def continue_from(self, batch: Batch, states: Tensor) -> Tensor:
        """The last states ``(T, D)``, with ``states (T, D)`` as state 0 of every token."""
        device = batch.token_ids.device
        _, dtype = self.products(device)
        with torch.autocast(device.type, enabled=False):
            return self._compute(batch, {self.depth}, dtype, False, None, given=states)[self.depth]

    def new_layers(self, count: int) -> PackedBert:
        """So many layers of the same kind with new weights and no embedding layer.

        They are for :meth:`continue_from`.
        """
        config = copy.deepcopy(self.model.config)
        config.num_hidden_layers = count
        model: Any = type(self.model)(config)
        model.embeddings, model.pooler = nn.Identity(), None
        return PackedBert(model).to(self.device)

    def _compute(
        self,
        batch: Batch,
        wanted: Set[int],
        dtype: torch.dtype,
        first_only: bool,
        first_state: Tensor | None,
        additions: Sequence[SentenceAddition] = (),
        given: Tensor | None = None,
    ) -> dict[int, Tensor]:
        """The states of the layers ``wanted``, with gradients and dropout where they are on."""
        blocks = self._blocks(batch, dtype, causal=bool(additions))
        tokens = len(batch.token_ids)
        state = self._embed(batch, blocks.positions) if given is None else given
        if first_state is not None:
            state = blocks.with_first(state, first_state)
        state = batch.changed(state)
        by_number = {0: state}
        state = F.pad(state, (0, 0, 0, blocks.rows - tokens))
        states = state, state.to(dtype)
        weights = self._weights(dtype)
        for number in range(1, max(wanted) + 1):
            cut = first_only and number == self.depth
            addition = additions[number - 1] if additions else None
            arguments = number - 1, weights[number - 1], states, blocks, cut, addition
            states = self.run_layer(self._layer, *arguments)
            if number in wanted:
                by_number[number] = states[0] if cut else states[0][:tokens]
        return by_number

    def _infers(self, device: torch.device, dtype: torch.dtype) -> bool:
        """Whether weights may be laid out for inference, because they stay as they are."""
        plain = self.training or torch.is_grad_enabled()
        return not plain and self._unchanging.is_open and has_products(device, dtype)

    def _is_worth(self, batch: Batch, dtype: torch.dtype) -> bool:
        """Whether laying the weights out pays: that takes longer than casting them."""
        is_large = len(batch.token_ids) >= _WORTH_LAYING_OUT
        return is_large or (_LAID_OUT, dtype) in self._unchanging

    def _infer(
        self, batch: Batch, wanted: Set[int], dtype: torch.dtype, first_only: bool
    ) -> dict[int, Tensor]:
        """:meth:`_compute` without gradients and dropout."""
        layers = self._unchanging.get((_LAID_OUT, dtype), lambda: self._lay_out(dtype))
        blocks = self._blocks(batch, dtype)
        tokens = len(batch.token_ids)
        state = self._embed(batch, blocks.positions)
        by_number = {0: state}
        state = F.pad(state.to(dtype), (0, 0, 0, blocks.rows - tokens))
        for number, layer in enumerate(layers[: max(wanted)], start=1):
            if first_only and number == self.depth:
                by_number[number] = layer.first(
                    state, blocks.first, lambda q, kv: first_attention(q, kv, blocks, 0.0)
                ).to(by_number[0].dtype)
                break
            state = layer(state, lambda packed: attention(packed, blocks, 0.0))
            if number in wanted:
                by_number[number] = state[:tokens].to(by_number[0].dtype)
        return by_number

    def _lay_out(self, dtype: torch.dtype) -> list[InferenceLayer]:
        return [
            InferenceLayer.of(layer, dtype, _USUAL_ROWS, parted=number == self.depth)
            for number, layer in enumerate(self._layers, start=1)
        ]

    def _alone(self, batch: Batch, wanted: Set[int], dtype: torch.dtype) -> dict[int, Tensor]:
        """The states of a single sentence, while serving."""
        alone = self._serving.get(dtype, lambda: SingleSentence(self._layers, self.heads, dtype))
        return alone(self._embed(batch, torch.arange(len(batch.token_ids))), wanted)

    def _blocks(self, batch: Batch, dtype: torch.dtype, *, causal: bool = False) -> Blocks:
        device = batch.token_ids.device
        return Blocks.of(
            batch,
            self.heads,
            rounded=dtype == torch.bfloat16 and device.type == "cpu",
            packed=packed_attention_available(device, dtype, self.width // self.heads),
            causal=causal,
        )

    def _embed(self, batch: Batch, places: Tensor) -> Tensor:
        part: Any = self.model.embeddings
        return dropout(embed_tokens(part, batch, places), self.rate_of(part.dropout))

    def _layer(
        self,
        number: int,
        weights: LayerWeights,
        states: States,
        blocks: Blocks,
        cut: bool,
        addition: SentenceAddition | None,
    ) -> States:
        """One transformer layer; with ``cut``, only the first row of each sentence comes out."""
        modules = self._layers[number]
        state, narrow = states
        mixed = self._attend(modules, weights, narrow, blocks, cut)
        if cut:
            state = state[blocks.first]
        mixed = linear(mixed, *weights.output)
        rate = self.rate_of(modules.output_dropout)
        state, narrow = dropout_norm(state, mixed, rate, modules.attention_norm)
        if addition is not None:
            sentence = F.pad(blocks.sentence, (0, len(state) - len(blocks.sentence)))
            added = addition.states.to(narrow.dtype).index_select(0, sentence)
            rate = self.rate_of(modules.down_dropout)
            state, narrow = dropout_norm(state, added, rate, addition.norm)
        inner = linear(modules.activation(linear(narrow, *weights.up)), *weights.down)
        return dropout_norm(state, inner, self.rate_of(modules.down_dropout), modules.norm)

    def _attend(
        self, modules: LayerModules, weights: LayerWeights, state: Tensor, blocks: Blocks, cut: bool
    ) -> Tensor:
        """Self-attention; ``(R, D)``, or ``(S, D)`` of the first tokens with ``cut``."""
        rate = self.rate_of(modules.attention_dropout)
        if not cut:
            return attention(linear(state, *weights.qkv), blocks, rate)
        sizes = [self.width, 2 * self.width]
        of_query, of_rest = torch.split(weights.qkv.weight, sizes)
        query_bias, rest_bias = torch.split(weights.qkv.bias, sizes)
        query = linear(state[blocks.first], of_query, query_bias)
        return first_attention(query, linear(state, of_rest, rest_bias), blocks, rate)

    def unchanging(self) -> AbstractContextManager[None]:
        return self._unchanging

    @contextmanager
    def serving(self) -> Iterator[None]:
        with self._unchanging, self._serving:
            yield

    def _weights(self, dtype: torch.dtype) -> list[LayerWeights]:
        """The matrices of all layers in ``dtype``."""
        if torch.is_grad_enabled() or not self._unchanging.is_open:
            return [LayerWeights.of(layer, dtype) for layer in self._layers]
        return self._unchanging.get(
            dtype, lambda: [LayerWeights.of(layer, dtype) for layer in self._layers]
        )


class PackedElectra(PackedBert):
    """ELECTRA: BERT over token embeddings of a width of their own (Clark et al. 2020)."""

    def _embed(self, batch: Batch, places: Tensor) -> Tensor:
        state = super()._embed(batch, places)
        projection = getattr(self.model, "embeddings_project", None)
        if projection is None:
            return state
        projected: Tensor = projection(state)
        return projected


class PackedMpnet(PackedBert):
    """MPNet: BERT with a bias by the distance of two tokens in every layer (Song et al. 2020)."""

    def states(
        self, batch: Batch, wanted: Set[int], first_only: bool, first_state: Tensor | None
    ) -> dict[int, Tensor]:
        # The first tokens' own attention would need the first row of the bias.
        return super().states(batch, wanted, False, first_state)

    def _blocks(self, batch: Batch, dtype: torch.dtype, *, causal: bool = False) -> Blocks:
        blocks = super()._blocks(batch, dtype, causal=causal)
        encoder: Any = self.model.encoder
        places = torch.arange(blocks.longest, device=blocks.first.device)
        distances = places.unsqueeze(0) - places.unsqueeze(1)
        buckets = encoder.relative_position_bucket(distances)
        bias = encoder.relative_attention_bias(buckets).permute(2, 0, 1)
        return replace(blocks, runs=None, added=bias, mask=_mask(blocks, batch))

    @contextmanager
    def serving(self) -> Iterator[None]:
        with self.unchanging():
            yield


def _mask(blocks: Blocks, batch: Batch) -> Tensor | None:
    """Which places of the blocks are tokens, also where packed attention would not ask."""
    if blocks.runs is None:
        return blocks.mask
    places = torch.arange(blocks.longest, device=blocks.first.device)
    return places < batch.lengths.unsqueeze(1)
