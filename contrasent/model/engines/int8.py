"""The BERT family on a CPU with 8-bit products, for encoding only.

Torch's own products, and not OpenVINO's: they need no other package, and OpenVINO with NNCF's
static quantisation was not faster when it was tried on all-MiniLM-L6-v2.

Products are of integers; attention is in bf16; sums of states and LayerNorm are in fp32.
Shapes: T tokens end to end, R >= T rows, S sentences, L tokens of the longest, D width, H heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from contrasent.data.batch import Batch
from contrasent.errors import ConfigError
from contrasent.model.backbones.base import Backbone
from contrasent.model.backbones.layers import LayerModules, embed_tokens, layers_of
from contrasent.model.backbones.packed_bert import PackedBert
from contrasent.model.backbones.packing import Blocks
from contrasent.model.engines.base import Engine
from contrasent.model.engines.quantized import (
    LayerRanges,
    QuantizedLinear,
    Scales,
    measure,
    require_products,
    round_to_int8,
)

_SAFE = 1e30
"""Sums of exponentials between this and its inverse have lost nothing to the ends of bf16."""


class Int8Bert(Engine):
    """What :class:`PackedBert` computes, with rounded weights and inputs of linear maps."""

    engine = "int8"
    precisions = ("int8",)

    def __init__(self, backbone: PackedBert, ranges: Sequence[LayerRanges]) -> None:
        super().__init__(backbone)
        self.heads = backbone.heads
        self.first_position = backbone.first_position
        self.embeddings = backbone.model.embeddings
        layers = zip(layers_of(backbone.model), ranges, strict=True)
        self._layers = [_Layer.of(modules, widest, self.heads) for modules, widest in layers]

    @classmethod
    @override
    def from_backbone(cls, backbone: Backbone) -> Self:
        if type(backbone) is not PackedBert:
            raise ConfigError(
                f"the engine 'int8' computes the BERT family, not "
                f"{backbone.model.config.model_type!r}; load with engine 'torch'"
            )
        config = backbone.model.config
        used = getattr(config, "hidden_act", None) or config.activation
        if used != "gelu":
            raise ConfigError(
                f"the engine 'int8' computes the activation 'gelu', not {used!r}; load with "
                "engine 'torch'"
            )
        require_products()
        return cls(backbone, measure(backbone))

    @override
    @torch.no_grad()
    def states(
        self, batch: Batch, wanted: Set[int], first_only: bool, first_state: Tensor | None
    ) -> dict[int, Tensor]:
        last = max(wanted)
        with torch.autocast("cpu", enabled=False):
            # Products of integers, too, are compiled for each number of rows.
            blocks = Blocks.of(batch, self.heads, rounded=True)
            tokens = len(batch.token_ids)
            positions = blocks.positions + self.first_position
            state = embed_tokens(self.embeddings, batch.token_ids, positions).float()
            state = F.pad(state, (0, 0, 0, blocks.rows - tokens))
            states = {}
            for number in range(last + 1):
                cut = first_only and number == self.depth
                if number:
                    state = self._layers[number - 1](state, blocks, cut)
                if number in wanted:
                    kept = state[: batch.sentences if cut else tokens]
                    # The next layer adds to the memory of this one's states.
                    states[number] = kept if number == last else kept.clone()
        return states


def _fp32_norm(module: nn.LayerNorm) -> Callable[[Tensor], Tensor]:
    weight, bias = module.weight.detach().float(), module.bias.detach().float()
    return partial(
        F.layer_norm, normalized_shape=weight.shape, weight=weight, bias=bias, eps=module.eps
    )


@dataclass(frozen=True, slots=True)
class _Layer:
    """One transformer layer; the factors bring fp32 inputs to steps of int8."""

    state_factor: Tensor
    qkv: QuantizedLinear
    output: QuantizedLinear
    attention_norm: Callable[[Tensor], Tensor]
    normed_factor: Tensor
    up: QuantizedLinear
    inner: Scales
    down: QuantizedLinear
    norm: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, modules: LayerModules, ranges: LayerRanges, heads: int) -> Self:
        """Round the weights of a layer whose inputs are as wide as ``ranges``."""
        parts = (modules.query, modules.key, modules.value)
        weights = [part.weight.detach().float() for part in parts]
        biases = [part.bias.detach().float() for part in parts]
        state = Scales.even(ranges.state, torch.cat(weights))
        mixed = Scales.even(ranges.mixed, modules.output.weight.detach().float())
        normed = Scales.even(ranges.normed, modules.up.weight.detach().float())
        inner = Scales.of_gelu(ranges.inner)
        # Attention's 1 / sqrt(d), and what brings its outputs to steps, cost nothing in weights.
        folded = (heads / len(mixed.per_input)) ** 0.5, 1.0, mixed.factor.unsqueeze(1)
        weight = torch.cat([w * f for w, f in zip(weights, folded, strict=True)])
        bias = torch.cat([b * _flat(f) for b, f in zip(biases, folded, strict=True)])
        return cls(
            state_factor=state.factor,
            qkv=QuantizedLinear(weight, bias, state),
            output=QuantizedLinear(modules.output.weight, modules.output.bias, mixed),
            attention_norm=_fp32_norm(modules.attention_norm),
            normed_factor=normed.factor,
            up=QuantizedLinear(modules.up.weight, modules.up.bias, normed),
            inner=inner,
            down=QuantizedLinear(modules.down.weight, modules.down.bias, inner),
            norm=_fp32_norm(modules.norm),
        )

    def __call__(self, state: Tensor, blocks: Blocks, cut: bool) -> Tensor:
        """``state (R, D)``, which is lost, to the next; with ``cut``, first tokens only.

        Then at least S rows come out, one for each sentence before those that belong to none.
        """
        mixed = self._attend(state, blocks)
        if cut:
            rows = _first_rows(blocks)
            mixed, state = mixed[rows], state[rows]
        state = self.output.add_to(state, round_to_int8(mixed))
        state = self.attention_norm(state)
        inner = self.up.gelu(round_to_int8(state * self.normed_factor), self.inner)
        return self.norm(self.down.add_to(state, inner))

    def _attend(self, state: Tensor, blocks: Blocks) -> Tensor:
        """``(R, D)`` bf16, in steps of int8."""
        packed = self.qkv(round_to_int8(state * self.state_factor))
        query, key, value = blocks.spread(packed, 3)
        return blocks.gather(_attention(query, key, value, blocks).unsqueeze(0))


def _attention(query: Tensor, key: Tensor, value: Tensor, blocks: Blocks) -> Tensor:
    """``softmax(q k) v``, ``(S * H, L, d)`` each.

    The division by the sum comes last, on few numbers, and the largest score is subtracted only
    where it must be: torch's softmax over short rows of bf16 takes four times all of this.
    """
    scores = _scores(query, key, blocks)
    weights = scores.exp_()
    total = weights.sum(-1, keepdim=True)
    least, most = torch.aminmax(total)
    if not (least > 1 / _SAFE and most < _SAFE):
        return torch.bmm(_scores(query, key, blocks).softmax(-1), value)
    return torch.bmm(weights, value).div_(total)


def _scores(query: Tensor, key: Tensor, blocks: Blocks) -> Tensor:
    bias = blocks.bias(query.dtype)
    if bias is None:
        return torch.bmm(query, key.transpose(1, 2))
    return torch.baddbmm(bias, query, key.transpose(1, 2))


def _first_rows(blocks: Blocks) -> Tensor:
    """The rows of first tokens; S is rounded up as R is, with copies of the first."""
    step = 1 << max(0, blocks.sentences.bit_length() - 5)
    return F.pad(blocks.first, (0, -blocks.sentences % step))


def _flat(factor: float | Tensor) -> float | Tensor:
    return factor.flatten() if isinstance(factor, Tensor) else factor
