"""A transformer layer and where each architecture keeps its parts; linear maps and LayerNorm.

For inference the weights are laid out once, and the residual is added inside oneDNN's products: a
short sentence takes as long as reading the weights and starting the operators.

Shapes: T tokens, R >= T rows that are computed, S sentences, D width.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from transformers import PreTrainedModel

from contrasent.data.batch import Batch
from contrasent.model.backbones.attention import (
    Blocks,
    apply_mask,
    attention,
    dropout,
    keep_mask,
)

ADAPTER = "default"
"""Of peft's low-rank changes, which :mod:`contrasent.model.weights` adds."""


_OPERATORS = ("_linear_pointwise", "_reorder_linear_weight", "_is_mkldnn_bf16_supported")
"""Of oneDNN, which torch keeps to itself: one without them computes by its public ones."""


def has_products(device: torch.device, dtype: torch.dtype) -> bool:
    """True if oneDNN multiplies ``dtype`` on ``device``, and this torch lets us ask it to."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if not all(hasattr(torch.ops.mkldnn, name) for name in _OPERATORS):
        return False
    return dtype == torch.float32 or (
        dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        mapped: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return mapped

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        across = gradient.t()
        if len(weight) < weight.shape[1]:
            across = across.contiguous()  # a copy of the narrower side is made up for
        return gradient @ weight, across @ x, gradient.sum(0)


def dropout_norm(
    state: Tensor, x: Tensor, rate: float, norm: nn.LayerNorm
) -> tuple[Tensor, Tensor]:
    """``norm(state + dropout(x))``, ``(R, D)``, in the number formats of ``state`` and of ``x``."""
    if rate == 0 or x.device.type != "cpu" or state.dtype == x.dtype:
        normed = norm(state + dropout(x, rate))
        return normed, normed.to(x.dtype)
    both: tuple[Tensor, Tensor] = _DropoutNorm.apply(  # type: ignore[no-untyped-call]
        state, x, rate, norm.weight, norm.bias, norm.eps
    )
    return both


class _DropoutNorm(Function):
    """In one function, its two gradients are added and scaled in fewer passes."""

    @staticmethod
    def forward(
        ctx: Any, state: Tensor, x: Tensor, rate: float, weight: Tensor, bias: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        mask, ctx.scale = keep_mask(x, rate)
        # Cast first: a sum of two number formats takes longer than both steps.
        kept = apply_mask(x, mask).to(state.dtype)
        total = torch.add(state, kept, alpha=ctx.scale, out=kept)
        normed, mean, rstd = torch.native_layer_norm(total, weight.shape, weight, bias, eps)
        ctx.save_for_backward(total, mean, rstd, weight, bias, mask)
        ctx.set_materialize_grads(False)
        ctx.dtype = x.dtype
        return normed, normed.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, of_normed: Tensor | None, of_narrow: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        total, mean, rstd, weight, bias, mask = ctx.saved_tensors
        if of_normed is None or of_narrow is None:
            gradient = of_normed if of_narrow is None else of_narrow.to(total.dtype)
        else:
            gradient = of_narrow.to(total.dtype).add_(of_normed)
        if gradient is None:
            return (None,) * 6
        of_total, of_weight, of_bias = torch.ops.aten.native_layer_norm_backward(
            gradient.contiguous(), total, weight.shape, mean, rstd, weight, bias, [True] * 3
        )
        of_x = torch.empty_like(of_total, dtype=ctx.dtype)
        torch.mul(of_total, ctx.scale, out=of_x)
        return of_total, apply_mask(of_x, mask), None, of_weight, of_bias, None


LayerModules = SimpleNamespace
States = tuple[Tensor, Tensor]
"""A state ``(R, D)`` in the number format of the weights, and the same in that of the products."""


@dataclass(frozen=True, slots=True)
class SentenceAddition:
    """The addition of a decoder's layer to its self-attention: ``states (S, D)``, and ``norm``."""

    states: Tensor
    norm: nn.LayerNorm


class Linear(NamedTuple):
    """The weight ``(O, I)`` and bias ``(O,)`` of a map."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """``F.linear``; for bf16 by oneDNN, as torch's writes and reads the bias in every row."""
        if x.dtype != torch.bfloat16 or not has_products(x.device, x.dtype):
            return F.linear(x, *self)
        mapped: Tensor = _Linear.apply(x, *self)  # type: ignore[no-untyped-call]
        return mapped

    def add_norm(self, x: Tensor, state: Tensor, norm: nn.LayerNorm, rate: float) -> States:
        return dropout_norm(state, self(x), rate, norm)


class Map(Linear):
    """``x W^T + b``, with ``W`` in a layout that only oneDNN can read."""

    @classmethod
    def of(cls, linear: Linear, rows: int) -> Self:
        """Lay the weight out for products of about ``rows`` rows; any number can be had."""
        weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.contiguous(), rows)
        return cls(weight, linear.bias)

    def __call__(self, x: Tensor) -> Tensor:
        mapped: Tensor = torch.ops.mkldnn._linear_pointwise(x, *self, "none", [], "")
        return mapped

    def add_norm(self, x: Tensor, state: Tensor, norm: nn.LayerNorm, _: float) -> States:
        normed = norm(torch.ops.mkldnn._linear_pointwise.binary(x, state, *self, "add"))
        return normed, normed


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The maps of one layer in the number format of the products.

    For training they are made once per step, so that each weight is cast once and its gradient
    written once; query, key and value stand in one ``(3 D, D)`` matrix, which is ``parted`` where
    only first tokens ask. For inference they are laid out, for a single sentence ``alone``.
    """

    qkv: Linear
    output: Linear
    up: Linear
    down: Linear
    parted: tuple[Linear, ...] = ()
    alone: bool = False

    @classmethod
    def of(
        cls,
        modules: LayerModules,
        dtype: torch.dtype,
        rows: int = 0,
        *,
        parted: bool = False,
        alone: bool = False,
    ) -> LayerWeights:
        """Cast and join the weights of a layer, and lay them out for about ``rows`` rows."""
        joined = (modules.query, modules.key, modules.value)
        weight = _Concat.apply(dtype, *map(effective_weight, joined))  # type: ignore[no-untyped-call]
        bias = _Concat.apply(dtype, *(part.bias for part in joined))  # type: ignore[no-untyped-call]
        others = (modules.output, modules.up, modules.down)
        output, up, down = (
            Linear(effective_weight(it).to(dtype), it.bias.to(dtype)) for it in others
        )
        cast = cls(Linear(weight, bias), output, up, down)
        if not rows:
            return cast
        qkv, output, up, down = (Map.of(it, rows) for it in (cast.qkv, output, up, down))
        parts = tuple(Map.of(it, rows) for it in cast.part()) if parted else ()
        return cls(qkv, output, up, down, parts, alone)

    def mix(self, state: Tensor, blocks: Blocks, rows: Tensor | None, rate: float) -> Tensor:
        """Self-attention, ``(R, D)``, or of the queries of ``rows`` alone."""
        if rows is not None:
            query_map, rest = self.parted or self.part()
            query = query_map(state[rows])  # first, as gradients are added up in this order
            return attention(rest(state), blocks, rate, query)
        packed = self.qkv(state)
        if not self.alone:
            return attention(packed, blocks, rate)
        parts = packed.view(1, len(packed), 3, blocks.heads, -1).permute(2, 0, 3, 1, 4)
        bias = blocks.bias(packed.dtype)
        mask = None if bias is None else bias[:1].unsqueeze(0)
        query, key, value = parts.unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, mask)
        return mixed.transpose(1, 2).reshape(len(packed), -1)

    def part(self) -> tuple[Linear, Linear]:
        """The query's map, and that of key and value."""
        width = len(self.output.weight)
        weights, biases = (torch.split(each, [width, 2 * width]) for each in self.qkv)
        return Linear(weights[0], biases[0]), Linear(weights[1], biases[1])


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer with the norm after each residual (Vaswani et al. 2017).

    Its ``maps`` are :class:`LayerWeights`, or others with `mix`, `output`, `up` and `down`.
    """

    modules: LayerModules
    maps: Any

    def __call__(
        self,
        states: States,
        blocks: Blocks,
        rows: Tensor | None = None,
        training: bool = False,
        addition: SentenceAddition | None = None,
    ) -> States:
        """``(R, D)`` to ``(R, D)``; with ``rows`` only these come out."""
        (state, narrow), it, maps = states, self.modules, self.maps
        rate = rate_of(it.down_dropout, training)
        mixed = maps.mix(narrow, blocks, rows, rate_of(it.attention_dropout, training))
        if rows is not None:
            state = state[rows]
        of_output = rate_of(it.output_dropout, training)
        state, narrow = maps.output.add_norm(mixed, state, it.attention_norm, of_output)
        if addition is not None:
            sentence = F.pad(blocks.sentence, (0, len(state) - len(blocks.sentence)))
            added = addition.states.to(narrow.dtype).index_select(0, sentence)
            state, narrow = dropout_norm(state, added, rate, addition.norm)
        inner = it.activation(maps.up(narrow))
        after: States = maps.down.add_norm(inner, state, it.norm, rate)
        return after


def rate_of(module: nn.Module | None, training: bool) -> float:
    """The rate of a dropout in training or not; 0 of what is none."""
    return module.p if training and isinstance(module, nn.Dropout) else 0.0


def effective_weight(linear: Any) -> Tensor:
    """The weight of a linear map, with its low-rank change if peft gave it one."""
    weight: Tensor = linear.weight
    if not hasattr(linear, "lora_A"):
        return weight
    change: Tensor = linear.get_delta_weight(ADAPTER)
    return weight + change


class _Concat(Function):
    """The rows of all parts, cast and joined in one pass, as are the gradients cut and cast."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *parts: Tensor) -> Tensor:
        ctx.sizes, ctx.dtype = [len(part) for part in parts], parts[0].dtype
        joined = parts[0].new_empty(sum(ctx.sizes), *parts[0].shape[1:], dtype=dtype)
        return torch.cat(parts, out=joined)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        parts = torch.split(gradient, ctx.sizes)
        return None, *(part.to(ctx.dtype) for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """Names by which an architecture keeps the parts of its ``layers``; the defaults are BERT's.

    ``projection`` maps the embeddings to the width of the layers (ELECTRA); ``distances`` adds a
    bias by the distance of two tokens to the scores of every layer (MPNet).
    """

    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    attention_dropout: str = "attention.self.dropout"
    output: str = "attention.output.dense"
    output_dropout: str | None = "attention.output.dropout"
    attention_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    activation: str = "intermediate.intermediate_act_fn"
    down: str = "output.dense"
    down_dropout: str = "output.dropout"
    norm: str = "output.LayerNorm"
    layers: str = "encoder.layer"
    projection: str | None = None
    distances: bool = False


_BERT = LayerSpec()
PACKED = {
    "bert": _BERT,
    "camembert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "electra": LayerSpec(projection="embeddings_project"),
    "mpnet": LayerSpec(
        query="attention.attn.q",
        key="attention.attn.k",
        value="attention.attn.v",
        attention_dropout="attention.attn.dropout",
        output="attention.attn.o",
        output_dropout="attention.dropout",
        attention_norm="attention.LayerNorm",
        distances=True,
    ),
    "distilbert": LayerSpec(
        layers="transformer.layer",
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        attention_dropout="attention.dropout",
        output="attention.out_lin",
        output_dropout=None,
        attention_norm="sa_layer_norm",
        up="ffn.lin1",
        activation="ffn.activation",
        down="ffn.lin2",
        down_dropout="ffn.dropout",
        norm="output_layer_norm",
    ),
}
"""By ``config.model_type``, what :class:`PackedBert` computes: a new backbone is one row."""


def layers_of(model: PreTrainedModel) -> list[LayerModules]:
    """The modules of each layer of a model of :data:`PACKED`, by :class:`LayerSpec`'s names."""
    paths = asdict(spec := PACKED[model.config.model_type])
    names = paths.keys() - {"layers", "projection", "distances"}
    return [
        SimpleNamespace(**{n: attrgetter(paths[n])(layer) if paths[n] else None for n in names})
        for layer in attrgetter(spec.layers)(model)
    ]


def embed_tokens(embeddings: Any, batch: Batch, places: Tensor) -> Tensor:
    """State 0 ``(T, D)`` before its dropout; ``places (T,)`` are those in the sentences."""
    padding = getattr(embeddings, "padding_idx", None)
    rows = places if batch.positions is None else batch.positions
    if padding is not None:
        rows = rows + (padding + 1)
        if batch.positions is None:
            # Padding tokens, which a text may hold, have the row ``padding`` and do not count, as
            # in RoBERTa's and MPNet's own embedding layers.
            is_padding = batch.token_ids == padding
            passed = is_padding.cumsum(0)
            starts = torch.arange(len(places), device=places.device) - places
            earlier = passed[starts] - is_padding[starts].long()
            rows = torch.where(is_padding, padding, rows - passed + earlier)
    state = embeddings.word_embeddings(batch.token_ids) + embeddings.position_embeddings(rows)
    if hasattr(embeddings, "token_type_embeddings"):
        state = state + embeddings.token_type_embeddings.weight[0]
    normed: Tensor = embeddings.LayerNorm(state)
    return normed
