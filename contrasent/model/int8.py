"""The BERT family on a CPU with 8-bit products, for encoding only.

Products are of integers; attention is in bf16; sums of states and LayerNorm are in fp32. With
weights ``w = w_q * w_scale`` (one scale per output, ``w_q`` in [-127, 127]) and inputs
``x = (x_q - x_zero) * x_scale`` (one scale for all), a map is ``w_scale * x_scale *
(w_q @ (x_q - x_zero)) + bias``. Ranges are fixed, measured on random tokens.

Shapes: T tokens end to end, R >= T rows, S sentences, L tokens of the longest, D width, H heads;
I inputs and O outputs of a map.
"""

from collections.abc import Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from contrasent.data.batch import Batch
from contrasent.model.backbones import packed_bert
from contrasent.model.backbones.base import FULL_FP32, Backbone, cpu_has
from contrasent.model.backbones.kernels import Blocks
from contrasent.model.backbones.packed_bert import Layer, LayerModules, PackedBert, States

_SAFE = 1e30
"""Sums of exponentials between this and its inverse have lost nothing to the ends of bf16."""


class Int8Bert(Backbone):
    """The states of :class:`PackedBert`, with rounded weights and inputs, without gradients."""

    engine = "int8"
    precisions = ("int8",)
    kind = "an encoder of 8-bit products"
    device = torch.device("cpu")
    identity: tuple[str, ...] = ()

    def __init__(self, backbone: PackedBert, ranges: Sequence[Mapping[str, Tensor]]) -> None:
        super().__init__()
        self.width, self.depth, self.heads = backbone.width, backbone.depth, backbone.heads
        self.max_tokens = backbone.max_tokens
        digest = sha256()
        for name, tensor in sorted(backbone.state_dict().items()):
            digest.update(f"{name} {list(tensor.shape)}\n".encode())
            digest.update(tensor.detach().float().cpu().contiguous().numpy())
        self.identity = (self.engine, digest.hexdigest(), *backbone.identity)
        self.training = False
        self.embeddings = backbone.model.embeddings
        self._layers = [
            Layer(each, _Maps(each, widest, self.heads))
            for each, widest in zip(packed_bert.layers_of(backbone.model), ranges, strict=True)
        ]

    @classmethod
    def from_backbone(cls, backbone: Backbone) -> Self:
        config, problem = backbone.model.config, ""
        used = getattr(config, "hidden_act", None) or getattr(config, "activation", None)
        if not (isinstance(backbone, PackedBert) and backbone.is_plain and used == "gelu"):
            problem = f"computes BERT's family with 'gelu', not {config.model_type!r} with {used!r}"
        elif not has_products():
            problem = "needs a CPU with VNNI instructions and torch's build for x86"
        if problem or not isinstance(backbone, PackedBert):
            backbone.refuse(f"the engine 'int8' {problem}", "load with engine 'torch'")
        return cls(backbone, measure(backbone))

    @torch.no_grad()
    def states(
        self, batch: Batch, wanted: Set[int], first_only: bool, first_state: Tensor | None
    ) -> dict[int, Tensor]:
        with torch.autocast("cpu", enabled=False):
            # Products of integers, too, are compiled for each number of rows.
            blocks, tokens = Blocks.of(batch, self.heads, rounded=True), len(batch.token_ids)
            embedded = packed_bert.embed_tokens(self.embeddings, batch, blocks.positions).float()
            state = F.pad(embedded, (0, 0, 0, blocks.rows - tokens))
            states = {0: embedded}
            # S is rounded up as R is, with copies of the first.
            step = 1 << max(0, blocks.sentences.bit_length() - 5)
            firsts = F.pad(blocks.first, (0, -blocks.sentences % step))
            for number, layer in enumerate(self._layers[: max(wanted)], start=1):
                cut = firsts if first_only and number == self.depth else None
                state, _ = layer((state, state), blocks, cut)
                if number in wanted:  # the next layer adds to the memory of this one's states
                    kept = state[: tokens if cut is None else batch.sentences]
                    states[number] = kept if number == max(wanted) else kept.clone()
        return {number: states[number] for number in wanted}

    def train(self, mode: bool = True) -> Self:
        if mode:
            self.refuse("the engine 'int8' only encodes", "to train, load with engine 'torch'")
        return super().train(mode)


class _Maps:
    """The maps of a layer whose inputs are as wide as :func:`measure` says."""

    def __init__(self, modules: LayerModules, ranges: Mapping[str, Tensor], heads: int) -> None:
        parts = (modules.query, modules.key, modules.value)
        weights = [part.weight.detach().float() for part in parts]
        biases = [part.bias.detach().float() for part in parts]
        state = Scales.even(ranges["state"], torch.cat(weights))
        mixed = Scales.even(ranges["mixed"], modules.output.weight.detach().float())
        normed = Scales.even(ranges["normed"], modules.up.weight.detach().float())
        inner = Scales.of_gelu(ranges["inner"])
        # Attention's 1 / sqrt(d), and what brings its outputs to steps, cost nothing in weights.
        scale, factor = (heads / len(mixed.per_input)) ** 0.5, mixed.factor
        weight = torch.cat([weights[0] * scale, weights[1], weights[2] * factor.unsqueeze(1)])
        bias = torch.cat([biases[0] * scale, biases[1], biases[2] * factor])
        self.qkv = QuantizedLinear(weight, bias, state)
        self.output = QuantizedLinear(modules.output.weight, modules.output.bias, mixed)
        self.up = QuantizedLinear(modules.up.weight, modules.up.bias, normed, gelu=inner)
        self.down = QuantizedLinear(modules.down.weight, modules.down.bias, inner)

    def mix(self, state: Tensor, blocks: Blocks, rows: Tensor | None, _: float) -> Tensor:
        """Self-attention, ``(R, D)`` or of ``rows`` alone; bf16, in steps of int8."""
        query, key, value = blocks.spread(self.qkv(state), 3)
        mixed = blocks.gather(_attention(query, key, value, blocks).unsqueeze(0))
        return mixed if rows is None else mixed[rows]


def _attention(query: Tensor, key: Tensor, value: Tensor, blocks: Blocks) -> Tensor:
    """``softmax(q k) v``, ``(S * H, L, d)`` each; the division by the sum comes last.

    The largest score is subtracted only where it must be: torch's softmax takes four times this.
    """

    def scores() -> Tensor:
        bias, across = blocks.bias(query.dtype), key.transpose(1, 2)
        return torch.bmm(query, across) if bias is None else torch.baddbmm(bias, query, across)

    weights = scores().exp_()
    total = weights.sum(-1, keepdim=True)
    least, most = torch.aminmax(total)
    if not (least > 1 / _SAFE and most < _SAFE):
        return torch.bmm(scores().softmax(-1), value)
    return torch.bmm(weights, value).div_(total)


_MOST = 127
_SIGN = 128
_TINY = 1e-5
_GELU_LEAST = -0.17  # GELU is nowhere less


def has_products() -> bool:
    """True if this machine and torch multiply 8-bit integers: without VNNI two sums saturate."""
    if not hasattr(torch.ops.onednn, "qlinear_prepack"):
        return False
    if not hasattr(torch.cpu, "get_capabilities"):
        return bool(torch.cpu._is_vnni_supported())
    return cpu_has("avx512_vnni", "avx_vnni")


@cache
def signed_is_fast() -> bool:
    """True if oneDNN has a kernel for int8 inputs here; without AMX it takes a plain loop."""
    return cpu_has("amx_int8")


def round_to_int8(x: Tensor) -> Tensor:
    """``x``, already in steps, as int8: to nearest even, cut at the ends; ``x`` is lost."""
    return x.round_().clamp_(-_MOST - 1, _MOST).to(torch.int8)


@dataclass(frozen=True, slots=True)
class Scales:
    """How the inputs of a map are brought to integers: x_scale, and x_zero, 0 for int8 inputs.

    An input is divided by its number in ``per_input (I,)`` before the rounding, and the weights
    are multiplied by it (Xiao et al. 2023, SmoothQuant, with alpha = 1/2).
    """

    per_input: Tensor
    scale: float
    zero: int = 0

    @classmethod
    def even(cls, largest: Tensor, weight: Tensor) -> Self:
        """Share the range of inputs, ``largest (I,)`` in size, with that of ``weight (O, I)``."""
        wide = largest.clamp_min(_TINY)
        per_input = (wide / weight.abs().amax(0).clamp_min(_TINY)).sqrt()
        return cls(per_input, float((wide / per_input).max()) / _MOST)

    @classmethod
    def of_gelu(cls, largest: Tensor) -> Self:
        """For outputs of GELU of at most ``largest (I,)``, as uint8."""
        scale = (float(largest.max().clamp_min(_TINY)) - _GELU_LEAST) / 255
        return cls(torch.ones_like(largest), scale, round(-_GELU_LEAST / scale))

    @property
    def factor(self) -> Tensor:
        """``(I,)``, what inputs are multiplied by before they are rounded."""
        return 1 / (self.per_input * self.scale)


class QuantizedLinear:
    """A linear map of integers, with GELU if its outputs get scales ``gelu``."""

    def __init__(
        self, weight: Tensor, bias: Tensor, scales: Scales, gelu: Scales | None = None
    ) -> None:
        """Lay the weights out for the CPU's products."""
        weight = weight.detach().float() * scales.per_input
        self.scales, self.factor = scales, scales.factor
        self.bias = bias.detach().float().clone()
        self.weight_scale = weight.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / _MOST
        self._zeros = torch.zeros(len(weight), dtype=torch.int64)
        self._after: tuple[Any, ...] = (1.0, 0, torch.bfloat16, "none")
        if gelu is not None:
            self._after = (gelu.scale, gelu.zero, torch.uint8, "gelu")
        rows = (weight / self.weight_scale.unsqueeze(1)).round().to(torch.int8)
        self._packed = torch.ops.onednn.qlinear_prepack(rows, None)

    def __call__(self, x: Tensor) -> Tensor:
        """``(R, I)`` to ``(R, O)``, bf16, or uint8 after GELU."""
        return torch.ops.onednn.qlinear_pointwise(  # type: ignore[no-any-return]
            *self._inputs(round_to_int8(x * self.factor)), self.bias, *self._after, [], "none"
        )

    def activated(self, x: Tensor, _: Any) -> Tensor:
        """The map, which has GELU inside."""
        return self(x)

    def add_norm(self, x: Tensor, state: Tensor, norm: nn.LayerNorm, _: float) -> States:
        """``norm(state + map(x))`` of ``x`` in steps; the memory of ``state``, fp32, is taken."""
        total = torch.ops.onednn.qlinear_pointwise.binary(
            *self._inputs(x if x.dtype == torch.uint8 else round_to_int8(x)), state, self.bias,
            1.0, 0, torch.float32, 1.0, 0, "sum", 1.0, "none", [], "none",
        )  # fmt: skip
        normed = norm(total)
        return normed, normed

    def _inputs(self, x: Tensor) -> tuple[Tensor, float, int, Tensor, Tensor, Tensor]:
        zero = self.scales.zero
        if x.dtype == torch.int8 and not signed_is_fast():
            # The same integers as uint8, each 128 more, which the zero takes off again, exactly.
            x, zero = x.view(torch.uint8) ^ _SIGN, zero + _SIGN
        return x, self.scales.scale, zero, self._packed, self.weight_scale, self._zeros


_TOKENS = 24
_LOW_IDS = 128
_SENTENCES_AT_ONCE = 64


def measure(backbone: PackedBert) -> list[dict[str, Tensor]]:
    """The largest size of each input of the maps of every layer.

    `state` goes into query, key and value, `mixed` into output, `normed` to up, `inner` to down.
    """
    ranges: list[dict[str, Tensor]] = []
    # Random token ids between two low ones that are one or two apart: at the tokenizer's own
    # tokens, which have such ids, some states are far larger than elsewhere.
    config, generator = backbone.eval().model.config, torch.Generator().manual_seed(0)
    vocabulary, shape = config.vocab_size, (2 * _LOW_IDS, min(_TOKENS, backbone.max_tokens))
    ids, low = torch.randint(vocabulary, shape, generator=generator), torch.arange(_LOW_IDS)
    ids[:, 0] = low.repeat(2) % vocabulary
    above = torch.tensor([1, 2]).repeat_interleave(_LOW_IDS)
    ids[:, -1] = (low.repeat(2) + above) % vocabulary
    padding = config.pad_token_id
    if padding is not None:  # transformers would number the positions of the others differently
        ids[ids == padding] = (padding + 1) % vocabulary

    def watch(widest: dict[str, Tensor], name: str, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        largest = inputs[0].detach().float().flatten(0, -2).abs().amax(0)
        widest[name] = torch.maximum(widest[name], largest) if name in widest else largest

    with ExitStack() as hooks, torch.inference_mode(), FULL_FP32:
        for layer in packed_bert.layers_of(backbone.model):
            ranges.append({})
            maps = {"state": layer.query, "mixed": layer.output, "normed": layer.up}
            for name, module in {**maps, "inner": layer.down}.items():
                seen = module.register_forward_pre_hook(partial(watch, ranges[-1], name))
                hooks.callback(seen.remove)
        for sentences in torch.split(ids, _SENTENCES_AT_ONCE):
            backbone.model(input_ids=sentences)
    return ranges
