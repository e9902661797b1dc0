"""The BERT family and ModernBERT on packed tokens: our forward over modules of ``transformers``.

Shapes: T tokens end to end, S sentences, L tokens of the longest, D width, H heads. All but
attention, which sees ``(S, H, L, D / H)``, see ``(R, D)``, R >= T rows, a few of them spare.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from contrasent.data.batch import Batch
from contrasent.model.backbones.attention import (
    Blocks,
    attention,
    dropout,
    packed_attention_available,
)
from contrasent.model.backbones.base import Backbone, first_position
from contrasent.model.backbones.layers import (
    PACKED,
    Layer,
    LayerWeights,
    SentenceAddition,
    embed_tokens,
    has_products,
    layers_of,
    rate_of,
)
from contrasent.model.precision import WeightCache

_USUAL_ROWS = 4096
"""Rows of a batch that an encoder is given on a CPU, about."""
_FEW_ROWS = 16
"""Bf16 products are compiled for each number of rows, and 16 rows take no longer than 1."""
_WORTH_LAYING_OUT = 1024


class PackedBert(Backbone):
    """BERT, RoBERTa, XLM-R, CamemBERT, DistilBERT, ELECTRA and MPNet, by :data:`PACKED`."""

    takes_first_state = True

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        config = model.config
        self.model = model
        self.spec = PACKED[config.model_type]
        self.width = config.hidden_size
        self.heads = config.num_attention_heads
        self.depth = config.num_hidden_layers
        self.max_tokens = config.max_position_embeddings - first_position(model)
        self.read_layers()
        self._unchanging = WeightCache()
        self._serving = WeightCache()

    @property
    def is_plain(self) -> bool:
        """True if the layers and embeddings are BERT's, without ELECTRA's or MPNet's additions."""
        return not (self.spec.projection or self.spec.distances)

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
        lays_out = keeps and not changes and has_products(device, dtype)
        is_worth = tokens >= _WORTH_LAYING_OUT or (True, dtype) in self._unchanging.kept
        is_alone = lays_out and batch.sentences == 1 and self._serving.is_open
        is_alone = is_alone and not self.spec.distances  # which have no bias there
        lays_out = is_alone or (lays_out and narrow and is_worth)

        def make() -> list[Layer]:
            if lays_out:
                return self._lay_out(dtype, alone=is_alone)
            return [Layer(each, LayerWeights.of(each, dtype)) for each in self._layers]

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
            states = wide.to(dtype) if lays_out else wide, wide.to(dtype)
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
        self,
        batch: Batch,
        given: Tensor | None = None,
        additions: Sequence[SentenceAddition] = (),
    ) -> Tensor:
        """The last states ``(T, D)``, with ``given (T, D)`` as state 0 of every token.

        With ``additions``, one for each layer, tokens see only themselves and those before them.
        """
        return self.states(batch, {self.depth}, False, None, given, additions)[self.depth]

    def new_layers(self, count: int) -> PackedBert:
        """So many layers with new weights and no embedding layer, for :meth:`last_states`."""
        config = copy.deepcopy(self.model.config)
        config.num_hidden_layers = count
        model: Any = type(self.model)(config)
        model.embeddings, model.pooler = nn.Identity(), None
        return PackedBert(model).to(self.device)

    def _lay_out(self, dtype: torch.dtype, *, alone: bool = False) -> list[Layer]:
        rows, last = _FEW_ROWS if alone else _USUAL_ROWS, -1 if alone else self.depth - 1
        maps = (
            LayerWeights.of(each, dtype, rows, parted=number == last, alone=alone)
            for number, each in enumerate(self._layers)
        )
        return [Layer(*both) for both in zip(self._layers, maps, strict=True)]

    def _blocks(self, batch: Batch, dtype: torch.dtype, *, causal: bool = False) -> Blocks:
        device = batch.token_ids.device
        available = packed_attention_available(device, dtype, self.width // self.heads)
        blocks = Blocks.of(
            batch,
            self.heads,
            rounded=dtype == torch.bfloat16 and device.type == "cpu",
            packed=available and not self.spec.distances,
            causal=causal,
        )
        if not self.spec.distances:
            return blocks
        encoder: Any = self.model.encoder
        places = torch.arange(blocks.longest, device=device)
        buckets = encoder.relative_position_bucket(places.unsqueeze(0) - places.unsqueeze(1))
        return replace(blocks, added=encoder.relative_attention_bias(buckets).permute(2, 0, 1))

    def _embed(self, batch: Batch, places: Tensor) -> Tensor:
        part: Any = self.model.embeddings
        state = dropout(embed_tokens(part, batch, places), rate_of(part.dropout, self.training))
        projection = self.spec.projection and getattr(self.model, self.spec.projection, None)
        return projection(state) if projection else state

    def unchanging(self) -> AbstractContextManager[None]:
        return self._unchanging

    @contextmanager
    def serving(self) -> Iterator[None]:
        with self._unchanging, self._serving:
            yield


_UNSEEN = -30_000.0
"""Added to a score makes its weight 0, also in fp16; finite, as a padded row may see nothing."""


class PackedModernBert(Backbone):
    """ModernBERT (Warner et al. 2024): rotary positions, gated layers, a local window in most."""

    takes_first_state = True

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        config = model.config
        self.model = model
        self.width, self.heads = config.hidden_size, config.num_attention_heads
        self.depth = config.num_hidden_layers
        self.max_tokens = config.max_position_embeddings

    def states(
        self, batch: Batch, wanted: Set[int], first_only: bool, first_state: Tensor | None
    ) -> dict[int, Tensor]:
        known: Any = self.model
        blocks = self._blocks(batch, self.products(batch.token_ids.device)[1])
        places = blocks["full_attention"]
        state = known.embeddings(batch.token_ids)
        if first_state is not None:
            state = places.with_first(state, first_state)
        state = batch.changed(state)
        by_number = {0: state}
        positions, kinds = places.positions.unsqueeze(0), set(self.model.config.layer_types)
        angles = {kind: known.rotary_emb(state.float(), positions, kind) for kind in kinds}
        for number, layer in enumerate(known.layers[: max(wanted)], start=1):
            kind = layer.attention_type
            state = self.run_layer(self._layer, layer, state, angles[kind], blocks[kind])
            if number in wanted:
                by_number[number] = known.final_norm(state) if number == self.depth else state
        return {n: by_number[n] for n in wanted}

    def _blocks(self, batch: Batch, dtype: torch.dtype) -> dict[str, Blocks]:
        device, config = batch.token_ids.device, self.model.config
        window = config.sliding_window
        packed = packed_attention_available(device, dtype, self.width // self.heads)
        whole = Blocks.of(batch, self.heads, packed=packed)
        local = whole
        if batch.longest > window + 1:
            local = Blocks.of(batch, self.heads)
            places = torch.arange(local.longest, device=device)
            far = (places.unsqueeze(0) - places.unsqueeze(1)).abs() > window
            unseen = torch.zeros(far.shape, device=device).masked_fill(far, _UNSEEN)
            local = replace(local, added=unseen.unsqueeze(0))
        return {"full_attention": whole, "sliding_attention": local}

    def _layer(
        self, layer: Any, state: Tensor, angles: tuple[Tensor, Tensor], blocks: Blocks
    ) -> Tensor:
        part = layer.attn
        qkv = part.Wqkv(layer.attn_norm(state))
        qkv = _rotate(qkv, *angles, self.heads)
        rate = part.attention_dropout if self.training else 0.0
        mixed = attention(F.pad(qkv, (0, 0, 0, blocks.rows - len(qkv))), blocks, rate)
        mixed = part.Wo(mixed[: len(state)])
        state = state + dropout(mixed, rate_of(part.out_drop, self.training))
        mlp = layer.mlp
        inner, gate = mlp.Wi(layer.mlp_norm(state)).chunk(2, dim=-1)
        inner = dropout(mlp.act(inner) * gate, rate_of(mlp.drop, self.training))
        total: Tensor = state + mlp.Wo(inner)
        return total


def _rotate(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    """``(T, 3 D)`` with queries and keys turned by the angles ``(1, T, d)`` of their positions."""
    parts = qkv.view(len(qkv), 3, heads, -1)
    turned = parts[:, :2].float()
    real, imaginary = turned.chunk(2, dim=-1)
    across = torch.cat([-imaginary, real], dim=-1)
    cosine, sine = (it.squeeze(0)[:, None, None] for it in (cos, sin))
    turned = (turned * cosine + across * sine).to(qkv.dtype)
    return torch.cat([turned, parts[:, 2:]], dim=1).flatten(1)
