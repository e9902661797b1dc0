"""Where each architecture of the BERT family keeps the parts of a layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel
from typing_extensions import override

PACKED = ("bert", "camembert", "distilbert", "roberta", "xlm-roberta")
"""The ``config.model_type`` that :class:`PackedBert` computes."""


@dataclass(frozen=True, slots=True)
class LayerModules:
    """The modules of one transformer layer, in the order in which they are applied."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    attention_dropout: nn.Dropout
    output: nn.Linear
    output_dropout: nn.Dropout | None
    attention_norm: nn.LayerNorm
    up: nn.Linear
    activation: Callable[[Tensor], Tensor]
    down: nn.Linear
    down_dropout: nn.Dropout
    norm: nn.LayerNorm


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The matrices of one layer in the number format of the products.

    Made once per step, so that each weight is cast once and its gradient written once; query,
    key and value stand in one ``(3 D, D)`` matrix.
    """

    qkv: Tensor
    qkv_bias: Tensor
    output: Tensor
    output_bias: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor

    @classmethod
    def of(cls, layer: LayerModules, dtype: torch.dtype) -> LayerWeights:
        """Cast and join the weights of ``layer``."""
        parts = (layer.query, layer.key, layer.value)
        return cls(
            qkv=_joined(dtype, *(part.weight for part in parts)),
            qkv_bias=_joined(dtype, *(part.bias for part in parts)),
            output=layer.output.weight.to(dtype),
            output_bias=layer.output.bias.to(dtype),
            up=layer.up.weight.to(dtype),
            up_bias=layer.up.bias.to(dtype),
            down=layer.down.weight.to(dtype),
            down_bias=layer.down.bias.to(dtype),
        )


def _joined(dtype: torch.dtype, *parts: Tensor) -> Tensor:
    """One matrix of the rows of all parts."""
    joined: Tensor = _Joined.apply(dtype, *parts)  # type: ignore[no-untyped-call]
    return joined


class _Joined(Function):
    """Cast and joined in one pass, as are the gradients cut apart and cast."""

    @staticmethod
    @override
    def forward(ctx: Any, dtype: torch.dtype, *parts: Tensor) -> Tensor:
        ctx.sizes, ctx.dtype = [len(part) for part in parts], parts[0].dtype
        joined = parts[0].new_empty(sum(ctx.sizes), *parts[0].shape[1:], dtype=dtype)
        return torch.cat(parts, out=joined)

    @staticmethod
    @once_differentiable
    @override
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        parts = torch.split(gradient, ctx.sizes)
        return None, *(part.to(ctx.dtype) for part in parts)


def layers_of(model: PreTrainedModel) -> list[LayerModules]:
    """The layers of a model whose ``config.model_type`` is one of :data:`PACKED`."""
    known: Any = model  # its parts have no static types
    if model.config.model_type == "distilbert":
        return [_distilbert(layer) for layer in known.transformer.layer]
    return [_bert(layer) for layer in known.encoder.layer]


def _bert(layer: Any) -> LayerModules:
    attention = layer.attention
    return LayerModules(
        query=attention.self.query,
        key=attention.self.key,
        value=attention.self.value,
        attention_dropout=attention.self.dropout,
        output=attention.output.dense,
        output_dropout=attention.output.dropout,
        attention_norm=attention.output.LayerNorm,
        up=layer.intermediate.dense,
        activation=layer.intermediate.intermediate_act_fn,
        down=layer.output.dense,
        down_dropout=layer.output.dropout,
        norm=layer.output.LayerNorm,
    )


def _distilbert(layer: Any) -> LayerModules:
    attention = layer.attention
    return LayerModules(
        query=attention.q_lin,
        key=attention.k_lin,
        value=attention.v_lin,
        attention_dropout=attention.dropout,
        output=attention.out_lin,
        output_dropout=None,
        attention_norm=layer.sa_layer_norm,
        up=layer.ffn.lin1,
        activation=layer.ffn.activation,
        down=layer.ffn.lin2,
        down_dropout=layer.ffn.dropout,
        norm=layer.output_layer_norm,
    )
