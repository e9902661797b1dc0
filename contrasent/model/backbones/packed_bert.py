"""The BERT family on packed tokens: our forward over modules of ``transformers``.

A layer is written once, for training and for inference, and :data:`PACKED` says where each
architecture keeps its parts. For inference the weights are laid out once, and the residual and GELU
are computed inside oneDNN's products.

Shapes: T tokens end to end, S sentences, L tokens of the longest, D width, H heads. All but
attention, which sees ``(S, H, L, D / H)``, see ``(R, D)``, R >= T rows, a few of them spare.
"""

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from contrasent.data.batch import Batch
from contrasent.model.backbones import kernels
from contrasent.model.backbones.base import Backbone, WeightCache, first_position
from contrasent.model.backbones.kernels import Blocks

ADAPTER = "default"
"""Of peft's low-rank changes, which :mod:`contrasent.model.weights` adds."""

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
        if x.dtype != torch.bfloat16 or not kernels.has_products(x.device, x.dtype):
            return F.linear(x, *self)
        mapped: Tensor = kernels.CpuLinear.apply(x, *self)  # type: ignore[no-untyped-call]
        return mapped

    def activated(self, x: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
        return activation(self(x))

    def add_norm(self, x: Tensor, state: Tensor, norm: nn.LayerNorm, rate: float) -> States:
        return kernels.dropout_norm(state, self(x), rate, norm)


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

    def activated(self, x: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
        if getattr(activation, "act", None) is not F.gelu:
            return super().activated(x, activation)
        mapped: Tensor = torch.ops.mkldnn._linear_pointwise(x, *self, "gelu", [], "none")
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
    ) -> "LayerWeights":
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
            return kernels.attention(rest(state), blocks, rate, query)
        packed = self.qkv(state)
        if not self.alone:
            return kernels.attention(packed, blocks, rate)
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
    """One layer with the norm after each residual; ``maps`` are or do as :class:`LayerWeights`."""

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
            state, narrow = kernels.dropout_norm(state, added, rate, addition.norm)
        inner = maps.up.activated(narrow, it.activation)
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
    return torch.add(weight, linear.get_delta_weight(ADAPTER))


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
        return None, *(part.to(ctx.dtype) for part in torch.split(gradient, ctx.sizes))


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


_TABLE = Path(__file__).with_name("architectures.json")
ARCHITECTURES: Mapping[str, Mapping[str, Any]] = json.loads(_TABLE.read_text(encoding="utf-8"))
PACKED = {kind: LayerSpec(**parts) for kind, parts in ARCHITECTURES["layers"].items()}
"""By ``config.model_type``, what :class:`PackedBert` computes: a new backbone is one row."""


def layers_of(model: Any) -> list[LayerModules]:
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


_USUAL_ROWS = 4096  # rows of a batch that an encoder is given on a CPU, about
_FEW_ROWS = 16
"""Bf16 products are compiled for each number of rows, and 16 rows take no longer than 1."""
_WORTH_LAYING_OUT = 1024


class PackedBert(Backbone):
    """BERT, RoBERTa, XLM-R, CamemBERT, DistilBERT, ELECTRA and MPNet, by :data:`PACKED`."""

    takes_first_state = True

    def __init__(self, model: Any) -> None:
        super().__init__()
        config = model.config
        self.model = model
        self.spec = PACKED[config.model_type]
        self.width, self.heads = config.hidden_size, config.num_attention_heads
        self.depth = config.num_hidden_layers
        self.max_tokens = config.max_position_embeddings - first_position(model)
        self.read_layers()
        self._unchanging = WeightCache()
        self._serving = WeightCache()

    @property
    def is_plain(self) -> bool:
        """True if the layers and embeddings are BERT's, without ELECTRA's or MPNet's additions."""
        return not (self.spec.projection or self.spec.distances)

    @property
    def is_capturable(self) -> bool:
        """True if its passes over a batch can be captured as CUDA graphs."""
        is_left_out = self.spec.distances or self.checkpoint_layers or torch.version.hip
        return self.device.type == "cuda" and not is_left_out

    def keep_layers(self, count: int) -> None:
        if count > self.depth:
            problem = f"encoder.layers is {count}, but the encoder has {self.depth} layers"
            self.refuse(problem, f"ask for {self.depth} at most")
        layers: Any = attrgetter(self.spec.layers)(self.model)
        kept = {(number + 1) * self.depth // count - 1 for number in range(count)}
        for number in sorted({*range(self.depth)} - kept, reverse=True):
            del layers[number]
        self.model.config.num_hidden_layers = self.depth = count
        self.read_layers()

    def read_layers(self) -> None:
        self._layers = layers_of(self.model)

    def states(
        self,
        batch: Batch,
        wanted: Set[int],
        first_only: bool,
        first_state: Tensor | None,
        given: Tensor | None = None,
        additions: Sequence[SentenceAddition] = (),
    ) -> dict[int, Tensor]:
        # The first tokens' own attention would need the first row of the bias.
        first_only = first_only and not self.spec.distances
        device, tokens = batch.token_ids.device, len(batch.token_ids)
        narrow, dtype = self.products(device)
        keeps = self._unchanging.is_open and not torch.is_grad_enabled()
        changes = first_state is not None or batch.positions is not None or given is not None
        changes = changes or batch.changes_embeddings or self.training or bool(additions)
        # Weights may be laid out for inference where they stay as they are; that takes longer than
        # casting them.
        lays_out = keeps and not changes and kernels.has_products(device, dtype)
        is_worth = tokens >= _WORTH_LAYING_OUT or (True, dtype) in self._unchanging.kept
        is_alone = lays_out and batch.sentences == 1 and self._serving.is_open
        is_alone = is_alone and not self.spec.distances  # which have no bias there
        lays_out = is_alone or (lays_out and narrow and is_worth)

        def make() -> list[Layer]:
            if not lays_out:
                return [Layer(each, LayerWeights.of(each, dtype)) for each in self._layers]
            rows, last = (_FEW_ROWS, -1) if is_alone else (_USUAL_ROWS, self.depth - 1)
            maps = (
                LayerWeights.of(each, dtype, rows, parted=number == last, alone=is_alone)
                for number, each in enumerate(self._layers)
            )
            return [Layer(*both) for both in zip(self._layers, maps, strict=True)]

        with torch.autocast(device.type, enabled=False):
            if is_alone:
                spare = -tokens % _FEW_ROWS if dtype == torch.bfloat16 else 0
                blocks, first_only = Blocks.single(tokens, self.heads, spare), False
            else:
                blocks = self._blocks(batch, dtype, causal=bool(additions))
            state = self._embed(batch, blocks.positions) if given is None else given
            if first_state is not None:
                state = blocks.with_first(state, first_state)
            state = batch.changed(state)
            wide = F.pad(state, (0, 0, 0, blocks.rows - len(state)))
            cache = self._serving if is_alone else self._unchanging
            layers = cache.get((lays_out, dtype), make) if keeps else make()
            thin = lays_out or (keeps and not changes and narrow and kernels.fused_kernels(device))
            states = wide.to(dtype) if thin else wide, wide.to(dtype)
            by_number = {0: state}
            for number, layer in enumerate(layers[: max(wanted)], start=1):
                cut = blocks.first if first_only and number == self.depth else None
                addition = additions[number - 1] if additions else None
                states = self.run_layer(layer, states, blocks, cut, self.training, addition)
                if number in wanted:
                    rows = states[0] if cut is not None else states[0][: len(state)]
                    by_number[number] = rows.to(state.dtype)
        return {number: by_number[number] for number in wanted}

    def last_states(
        self, batch: Batch, given: Tensor | None = None, additions: Sequence[SentenceAddition] = ()
    ) -> Tensor:
        """The last states ``(T, D)``, with ``given (T, D)`` as state 0 of every token.

        With ``additions``, one for each layer, tokens see only themselves and those before them.
        """
        return self.states(batch, {self.depth}, False, None, given, additions)[self.depth]

    def new_layers(self, count: int) -> "PackedBert":
        """So many layers with new weights and no embedding layer, for :meth:`last_states`."""
        config = copy.deepcopy(self.model.config)
        config.num_hidden_layers = count
        model: Any = type(self.model)(config)
        model.embeddings, model.pooler = nn.Identity(), None
        return PackedBert(model).to(self.device)

    def _blocks(self, batch: Batch, dtype: torch.dtype, *, causal: bool = False) -> Blocks:
        device = batch.token_ids.device
        available = kernels.packed_attention_available(device, dtype, self.width // self.heads)
        packed = available and not self.spec.distances
        rounded = dtype == torch.bfloat16 and device.type == "cpu"
        blocks = Blocks.of(batch, self.heads, rounded=rounded, packed=packed, causal=causal)
        if not self.spec.distances:
            return blocks
        encoder: Any = self.model.encoder
        places = torch.arange(blocks.longest, device=device)
        buckets = encoder.relative_position_bucket(places.unsqueeze(0) - places.unsqueeze(1))
        return replace(blocks, added=encoder.relative_attention_bias(buckets).permute(2, 0, 1))

    def _embed(self, batch: Batch, places: Tensor) -> Tensor:
        part: Any = self.model.embeddings
        rate = rate_of(part.dropout, self.training)
        state = kernels.dropout(embed_tokens(part, batch, places), rate)
        projection = self.spec.projection and getattr(self.model, self.spec.projection, None)
        return projection(state) if projection else state

    def unchanging(self) -> AbstractContextManager[None]:
        return self._unchanging

    @contextmanager
    def serving(self) -> Iterator[None]:
        with self._unchanging, self._serving:
            yield
