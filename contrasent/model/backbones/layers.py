"""Transformer layers: where each architecture keeps its parts, linear maps, dropout and LayerNorm.

Drawing one random number per element took a fifth of a training step on a CPU. Here one 64-bit
number serves four elements: each takes 15 bits of its own, and the rate is the asked one to 1 in
65,536. The numbers come from NumPy's SFC64, twice as fast as torch's generator, which seeds it anew
for every mask. Accelerators draw masks inside their kernels, and keep torch's own dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.profiler import record_function
from transformers import PreTrainedModel

from contrasent.data.batch import Batch

ADAPTER = "default"
"""Of peft's low-rank changes, which :mod:`contrasent.model.weights` adds."""

_STEPS = 1 << 15
_AS_INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def dropout(x: Tensor, rate: float) -> Tensor:
    """Zero each element with probability ``rate`` and scale the others, as ``F.dropout`` does."""
    if rate == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, rate)
    dropped: Tensor = _Dropout.apply(x, rate)  # type: ignore[no-untyped-call]
    return dropped


def keep_mask(x: Tensor, rate: float) -> tuple[Tensor, float]:
    """Draw which elements of ``x`` stay: a mask for :func:`apply_mask`, and the factor to scale by.

    All bits of the mask are set where an element stays, none where it is dropped.
    """
    limit = min(round(rate * _STEPS), _STEPS - 1)
    seed = int(torch.empty((), dtype=torch.int64).random_())
    with record_function("dropout mask"):  # which a profile would not see otherwise
        numbers = np.random.SFC64(seed).random_raw((x.numel() + 3) // 4)
    mask = torch.from_numpy(numbers.view(np.int16))[: x.numel()].view(x.shape)
    # The 15 low bits are r, and the sign bit makes that r - 32768; adding the limit leaves it
    # negative if r < 32768 - limit, and the shift copies the sign into all bits.
    mask.bitwise_or_(-_STEPS).add_(limit).bitwise_right_shift_(15)
    return mask, _STEPS / (_STEPS - limit)


def apply_mask(x: Tensor, mask: Tensor) -> Tensor:
    """``x`` with zeros where ``mask`` has none of its bits set."""
    integer = _AS_INTEGER[x.element_size()]
    return (x.view(integer) & mask.to(integer)).view(x.dtype)


class _Dropout(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        mask, ctx.scale = keep_mask(x, rate)
        ctx.save_for_backward(mask)
        kept: Tensor = apply_mask(x, mask) * ctx.scale
        return kept

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (mask,) = ctx.saved_tensors
        return apply_mask(gradient.contiguous() * ctx.scale, mask), None


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``x weight^T + bias`` of ``x (R, I)`` and ``weight (O, I)``, as ``F.linear``.

    That one writes the bias into every row first and reads it again while it multiplies; oneDNN's
    own operator, which torch's compiler uses, does not.
    """
    if x.dtype != torch.bfloat16 or not has_products(x.device, x.dtype):
        return F.linear(x, weight, bias)
    mapped: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return mapped


_OPERATORS = ("_linear_pointwise", "_reorder_linear_weight", "_is_mkldnn_bf16_supported")
"""Of oneDNN, which torch keeps to itself: one without them computes by its public ones."""


def has_products(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies ``dtype`` on ``device``, and this torch lets us ask it to."""
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


PACKED = ("bert", "camembert", "distilbert", "electra", "mpnet", "roberta", "xlm-roberta")
"""The ``config.model_type`` of post-norm transformers, which :class:`PackedBert` computes."""


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


class LinearWeights(NamedTuple):
    """``(O, I)`` and ``(O,)`` of a linear map."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The matrices of one layer in the number format of the products.

    Made once per step, so that each weight is cast once and its gradient written once; query,
    key and value stand in one ``(3 D, D)`` matrix.
    """

    qkv: LinearWeights
    output: LinearWeights
    up: LinearWeights
    down: LinearWeights

    @classmethod
    def of(cls, layer: LayerModules, dtype: torch.dtype) -> LayerWeights:
        """Cast and join the weights of ``layer``."""
        parts = (layer.query, layer.key, layer.value)
        weight = _concat(dtype, *map(effective_weight, parts))
        qkv = LinearWeights(weight, _concat(dtype, *(part.bias for part in parts)))
        modules = (layer.output, layer.up, layer.down)
        weights = ((effective_weight(m), m.bias) for m in modules)
        return cls(qkv, *(LinearWeights(w.to(dtype), bias.to(dtype)) for w, bias in weights))


def effective_weight(linear: Any) -> Tensor:
    """The weight of a linear map, with its low-rank change if peft gave it one."""
    weight: Tensor = linear.weight
    if not hasattr(linear, "lora_A"):
        return weight
    change: Tensor = linear.get_delta_weight(ADAPTER)
    return weight + change


def _concat(dtype: torch.dtype, *parts: Tensor) -> Tensor:
    """One matrix of the rows of all parts."""
    joined: Tensor = _Concat.apply(dtype, *parts)  # type: ignore[no-untyped-call]
    return joined


class _Concat(Function):
    """Cast and joined in one pass, as are the gradients cut apart and cast."""

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


_AFTER_ATTENTION = (
    *("intermediate.dense", "intermediate.intermediate_act_fn"),
    *("output.dense", "output.dropout", "output.LayerNorm"),
)
_BERT = (
    *("attention.self.query", "attention.self.key", "attention.self.value"),
    *("attention.self.dropout", "attention.output.dense", "attention.output.dropout"),
    *("attention.output.LayerNorm", *_AFTER_ATTENTION),
)
_PATHS: dict[str, tuple[str | None, ...]] = {
    "mpnet": (
        *("attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.dropout"),
        *("attention.attn.o", "attention.dropout", "attention.LayerNorm", *_AFTER_ATTENTION),
    ),
    "distilbert": (
        *("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.dropout"),
        *("attention.out_lin", None, "sa_layer_norm", "ffn.lin1", "ffn.activation"),
        *("ffn.lin2", "ffn.dropout", "output_layer_norm"),
    ),
}
"""Where each architecture keeps what :class:`LayerModules` names, where that is not as in BERT."""


def layers_of(model: PreTrainedModel) -> list[LayerModules]:
    """The layers of a model whose ``config.model_type`` is one of :data:`PACKED`."""
    known: Any = model  # its parts have no static types
    kind = model.config.model_type
    layers = known.transformer.layer if kind == "distilbert" else known.encoder.layer
    paths = _PATHS.get(kind, _BERT)

    def part(layer: Any, path: str | None) -> Any:
        return attrgetter(path)(layer) if path else None

    return [LayerModules(*(part(layer, path) for path in paths)) for layer in layers]


def embed_tokens(embeddings: Any, batch: Batch, places: Tensor) -> Tensor:
    """State 0 ``(T, D)`` by the embedding layer of such a model, before its dropout.

    ``places (T,)`` are those of the tokens in their sentences.
    """
    padding = getattr(embeddings, "padding_idx", None)
    rows = places if batch.positions is None else batch.positions
    if padding is not None:
        rows = rows + (padding + 1)
        if batch.positions is None:
            rows = _without_padding(rows, places, batch.token_ids == padding, padding)
    state = embeddings.word_embeddings(batch.token_ids) + embeddings.position_embeddings(rows)
    if hasattr(embeddings, "token_type_embeddings"):
        state = state + embeddings.token_type_embeddings.weight[0]
    normed: Tensor = embeddings.LayerNorm(state)
    return normed


def _without_padding(rows: Tensor, places: Tensor, is_padding: Tensor, padding: int) -> Tensor:
    """The ``rows (T,)`` of positions where padding tokens, which a text may hold, do not count.

    As RoBERTa's and MPNet's own embedding layers: they have the row ``padding``.
    """
    passed = is_padding.cumsum(0)
    starts = torch.arange(len(places), device=places.device) - places
    earlier = passed[starts] - is_padding[starts].long()
    return torch.where(is_padding, padding, rows - passed + earlier)
